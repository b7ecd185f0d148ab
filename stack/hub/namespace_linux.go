package hub

import (
	"os"
	"strconv"
	"syscall"
)

// namespace returns the number of the network namespace, or "0" if unknown.
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
