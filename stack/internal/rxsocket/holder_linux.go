package rxsocket

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"

	"github.com/softrnic/softrnic/stack"
)

// holder returns the user whose socket has UDP port 4791 of an address. ok is false if there is
// none. The table is that of the calling thread's network namespace: the main thread, which
// /proc/net means, may be in another one.
func holder(a netip.Addr) (uid int, ok bool) {
	file := "/proc/thread-self/net/udp"
	if a.Is6() {
		file = "/proc/thread-self/net/udp6"
	}
	sockets, err := os.ReadFile(file)
	if err != nil {
		return 0, false
	}
	return holderIn(string(sockets), a)
}

// holderIn does the work of holder with the contents of the file. Its lines are as in Linux's
// proc_net_tcp.rst. An address consists of words in the machine's byte order.
func holderIn(sockets string, a netip.Addr) (uid int, ok bool) {
	var own, any strings.Builder
	for b := a.AsSlice(); len(b) > 0; b = b[4:] {
		fmt.Fprintf(&own, "%08X", binary.NativeEndian.Uint32(b))
		fmt.Fprintf(&any, "%08X", 0)
	}
	port := fmt.Sprintf(":%04X", stack.RoCEPort)
	for line := range strings.Lines(sockets) {
		f := strings.Fields(line)
		if len(f) < 8 || f[1] != own.String()+port && f[1] != any.String()+port {
			continue
		}
		if uid, err := strconv.Atoi(f[7]); err == nil {
			return uid, true
		}
	}
	return 0, false
}
