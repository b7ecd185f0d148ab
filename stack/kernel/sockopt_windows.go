package kernel

import (
	"net/netip"
	"time"

	"golang.org/x/sys/windows"

	"github.com/softrnic/softrnic/stack/kernel/internal/inlet"
)

// segmentSize is the payload of a full TCP segment; 0 if it is not known.
func segmentSize(fd uintptr) int {
	n, err := windows.GetsockoptInt(windows.Handle(fd), windows.IPPROTO_TCP, windows.TCP_MAXSEG)
	if err != nil {
		return 0
	}
	return n
}

// setUserTimeout does nothing: keepalive and the kernel's number of retransmissions bound the wait.
func setUserTimeout(uintptr, time.Duration) {}

// setGroupInterface has datagrams to multicast groups leave from an interface.
func setGroupInterface(fd uintptr, src netip.Addr, index int) {
	if src.Is4() {
		_ = windows.SetsockoptInet4Addr(windows.Handle(fd), windows.IPPROTO_IP, windows.IP_MULTICAST_IF, src.As4())
	} else {
		_ = windows.SetsockoptInt(windows.Handle(fd), windows.IPPROTO_IPV6, windows.IPV6_MULTICAST_IF, index)
	}
}

// setTOS does nothing: Windows takes the type of service from its policies only.
func setTOS(uintptr, int) {}

// setReceiveBuffer bounds the receive buffer; 0 makes it as large as other stacks have it.
func setReceiveBuffer(fd uintptr, n int) {
	if n <= 0 {
		n = defaultReceiveBuffer
	}
	_ = windows.SetsockoptInt(windows.Handle(fd), windows.SOL_SOCKET, windows.SO_RCVBUF, n)
}

// dontFragment is IP_DONTFRAGMENT and IPV6_DONTFRAG (ws2ipdef.h), which package windows does not have.
const dontFragment = 14

// setSending prepares a socket for sending. It must not fragment: the ICRC covers the flag. It covers the identification too,
// which Windows does not tell: over IPv4 only a peer understands it that solves it, as SoftRNIC does.
func setSending(fd uintptr, v4 bool) error {
	_ = windows.SetsockoptInt(windows.Handle(fd), windows.SOL_SOCKET, windows.SO_SNDBUF, inlet.SocketBuffer)
	if v4 {
		return windows.SetsockoptInt(windows.Handle(fd), windows.IPPROTO_IP, dontFragment, 1)
	}
	return windows.SetsockoptInt(windows.Handle(fd), windows.IPPROTO_IPV6, dontFragment, 1)
}

// setReuseAddr does nothing: Windows lets a port in TIME-WAIT be bound, and by this option one that is in use.
func setReuseAddr(uintptr) {}
