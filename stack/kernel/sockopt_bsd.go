//go:build unix && !linux

package kernel

import (
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softrnic/softrnic/stack/internal/rxsocket"
)

// segmentSize returns the payload of a full TCP segment, or 0 if unknown.
func segmentSize(fd uintptr) int {
	n, _ := unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_MAXSEG)
	return n
}

// setUserTimeout does nothing: keepalive and the kernel's number of retransmissions limit the wait.
func setUserTimeout(uintptr, time.Duration) {}

// setGroupInterface sets the interface for datagrams to multicast groups.
func setGroupInterface(fd uintptr, src netip.Addr, index int) {
	if src.Is4() {
		_ = unix.SetsockoptInet4Addr(int(fd), unix.IPPROTO_IP, unix.IP_MULTICAST_IF, src.As4())
	} else {
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_IF, index)
	}
}

// setTOS sets the option of both IP versions, because an IPv6 socket may have an IPv4 connection.
func setTOS(fd uintptr, tos int) {
	_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_TOS, tos)
	_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_TCLASS, tos)
}

// setReceiveBuffer limits the receive buffer; 0 means the size that other stacks use.
func setReceiveBuffer(fd uintptr, n int) {
	if n <= 0 {
		n = defaultReceiveBuffer
	}
	_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, n)
}

// setSending prepares a socket for sending. Packets must not be fragmented: the ICRC covers the
// Don't Fragment flag and the identification, which is then 0.
func setSending(fd uintptr, v4 bool) error {
	_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_SNDBUF, rxsocket.SocketBuffer)
	if v4 {
		return unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_DONTFRAG, 1)
	}
	return unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_DONTFRAG, 1)
}
