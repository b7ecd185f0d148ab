package hub

import (
	"os"
	"strconv"
	"syscall"
)

// namespace is the number of the network namespace; "0" where there is none to be seen.
func namespace() string {
	info, err := os.Stat("/proc/self/ns/net")
	if err != nil {
		return "0"
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return "0"
	}
	return strconv.FormatUint(st.Ino, 10)
}
