package kernel

import (
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

// segmentSize is the payload of a full TCP segment; 0 if it is not known.
func segmentSize(fd uintptr) int {
	n, _ := unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_MAXSEG)
	return n
}

// setUserTimeout bounds how long the peer may leave data unacknowledged, or its window closed.
func setUserTimeout(fd uintptr, d time.Duration) {
	_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(d.Milliseconds()))
}

// setGroupInterface has datagrams to multicast groups leave from an interface. The machine's own members get copies, which is
// the default.
func setGroupInterface(fd uintptr, src netip.Addr, index int) {
	if src.Is4() {
		_ = unix.SetsockoptIPMreqn(int(fd), unix.IPPROTO_IP, unix.IP_MULTICAST_IF, &unix.IPMreqn{Ifindex: int32(index)})
	} else {
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_IF, index)
	}
}

// setTOS sets both families' option: a socket of IPv6 may have a connection over IPv4.
func setTOS(fd uintptr, tos int) {
	_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_TOS, tos)
	_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_TCLASS, tos)
}

// setReceiveBuffer bounds the receive buffer; 0 leaves it to the kernel, which lets it grow with the traffic.
func setReceiveBuffer(fd uintptr, n int) {
	if n > 0 {
		_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, n/2) // the kernel doubles it
		return
	}
	// A size that was set keeps the buffer from growing, unless the lock is taken off (Linux 5.14).
	if unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_BUF_LOCK, 0) != nil {
		_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, defaultReceiveBuffer)
	}
}
