package rxsocket

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"

	"github.com/softrnic/softrnic/stack"
)

// listenGroup opens a socket for a group at port 4791 on one interface. The socket is bound to the
// group. Package net would bind it to all addresses, and it would receive unicast datagrams too.
func listenGroup(group netip.Addr, index int) (_ *net.UDPConn, err error) {
	family := unix.AF_INET6
	if group.Is4() {
		family = unix.AF_INET
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("socket: %w", err)
	}
	f := os.NewFile(uintptr(fd), "group")
	defer f.Close()
	// Every member on the machine gets a copy, in any process.
	err = errors.Join(unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1), setReceiving(uintptr(fd), group.Is4()))
	var at unix.Sockaddr
	if group.Is4() {
		// Exclude datagrams from interfaces on which other processes have joined.
		err = errors.Join(err, unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_MULTICAST_ALL, 0))
		at = &unix.SockaddrInet4{Addr: group.As4(), Port: stack.RoCEPort}
	} else {
		_ = unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_ALL, 0) // since Linux 4.20
		err = errors.Join(err, unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1))
		at = &unix.SockaddrInet6{Addr: group.As16(), Port: stack.RoCEPort, ZoneId: uint32(index)}
	}
	if err != nil {
		return nil, fmt.Errorf("setsockopt: %w", err)
	}
	if err := unix.Bind(fd, at); err != nil {
		return nil, fmt.Errorf("bind: %w", err)
	}
	if group.Is4() {
		mreq := unix.IPMreqn{Multiaddr: group.As4(), Ifindex: int32(index)}
		err = unix.SetsockoptIPMreqn(fd, unix.IPPROTO_IP, unix.IP_ADD_MEMBERSHIP, &mreq)
	} else {
		mreq := unix.IPv6Mreq{Multiaddr: group.As16(), Interface: uint32(index)}
		err = unix.SetsockoptIPv6Mreq(fd, unix.IPPROTO_IPV6, unix.IPV6_JOIN_GROUP, &mreq)
	}
	if err != nil {
		return nil, err
	}
	c, err := net.FilePacketConn(f) // duplicates the descriptor
	if err != nil {
		return nil, err
	}
	return c.(*net.UDPConn), nil
}
