package kernel

import (
	"net/netip"
	"time"

	"golang.org/x/sys/windows"

	"github.com/softrnic/softrnic/stack/internal/rxsocket"
)

// segmentSize returns the payload of a full TCP segment, or 0 if unknown.
func segmentSize(fd uintptr) int {
	n, err := windows.GetsockoptInt(windows.Handle(fd), windows.IPPROTO_TCP, windows.TCP_MAXSEG)
	if err != nil {
		return 0
	}
	return n
}

// setUserTimeout does nothing: keepalive and the kernel's number of retransmissions limit the wait.
func setUserTimeout(uintptr, time.Duration) {}

// setGroupInterface sets the interface for datagrams to multicast groups.
func setGroupInterface(fd uintptr, src netip.Addr, index int) {
	if src.Is4() {
		_ = windows.SetsockoptInet4Addr(windows.Handle(fd), windows.IPPROTO_IP, windows.IP_MULTICAST_IF, src.As4())
	} else {
		_ = windows.SetsockoptInt(windows.Handle(fd), windows.IPPROTO_IPV6, windows.IPV6_MULTICAST_IF, index)
	}
}

// setTOS does nothing: Windows takes the type of service only from its policies.
func setTOS(uintptr, int) {}

// setReceiveBuffer limits the receive buffer; 0 means the size that other stacks use.
func setReceiveBuffer(fd uintptr, n int) {
	if n <= 0 {
		n = defaultReceiveBuffer
	}
	_ = windows.SetsockoptInt(windows.Handle(fd), windows.SOL_SOCKET, windows.SO_RCVBUF, n)
}

// dontFragment is IP_DONTFRAGMENT and IPV6_DONTFRAG (ws2ipdef.h), which package windows lacks.
const dontFragment = 14

// setSending prepares a socket for sending. Packets must not be fragmented: the ICRC covers the
// Don't Fragment flag. The ICRC also covers the identification, which Windows does not reveal. Over
// IPv4 the peer must compute it from the ICRC, as SoftRNIC does.
func setSending(fd uintptr, v4 bool) error {
	_ = windows.SetsockoptInt(windows.Handle(fd), windows.SOL_SOCKET, windows.SO_SNDBUF, rxsocket.SocketBuffer)
	if v4 {
		return windows.SetsockoptInt(windows.Handle(fd), windows.IPPROTO_IP, dontFragment, 1)
	}
	return windows.SetsockoptInt(windows.Handle(fd), windows.IPPROTO_IPV6, dontFragment, 1)
}

// setReuseAddr does nothing: Windows allows binding to a port in TIME-WAIT, and this option would
// allow a port in use.
func setReuseAddr(uintptr) {}
