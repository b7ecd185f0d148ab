package kernel

import (
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

// segmentSize returns the payload of a full TCP segment, or 0 if unknown.
func segmentSize(fd uintptr) int {
	n, _ := unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_MAXSEG)
	return n
}

// setUserTimeout limits the time for which data may be unacknowledged, or the peer's window closed.
func setUserTimeout(fd uintptr, d time.Duration) {
	_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(d.Milliseconds()))
}

// setGroupInterface sets the interface for datagrams to multicast groups. Members on this machine
// get copies by default.
func setGroupInterface(fd uintptr, src netip.Addr, index int) {
	if src.Is4() {
		_ = unix.SetsockoptIPMreqn(int(fd), unix.IPPROTO_IP, unix.IP_MULTICAST_IF, &unix.IPMreqn{Ifindex: int32(index)})
	} else {
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_IF, index)
	}
}

// setTOS sets the option of both IP versions, because an IPv6 socket may have an IPv4 connection.
func setTOS(fd uintptr, tos int) {
	_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_TOS, tos)
	_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_TCLASS, tos)
}

// initialReceiveBuffer is Linux's usual buffer of a new connection, in bytes (tcp_rmem in tcp(7)).
const initialReceiveBuffer = 128 << 10

// setReceiveBuffer limits the receive buffer; 0 lets the kernel adjust it to the traffic.
func setReceiveBuffer(fd uintptr, n int) {
	if n > 0 {
		// The kernel doubles the value.
		_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, n/2)
		return
	}
	// Linux 6.1 enlarges only buffers that hold what arrives in a round trip. In a smaller one the
	// window closes after each batch, and the peer waits for its timer.
	_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, initialReceiveBuffer/2)
	// Setting a size disables the adjustment. Removing the lock enables it again (Linux 5.14).
	if unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_BUF_LOCK, 0) != nil {
		_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, defaultReceiveBuffer)
	}
}
