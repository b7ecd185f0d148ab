package hub

import (
	"fmt"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/softrnic/softrnic/stack"
	"github.com/softrnic/softrnic/stack/internal/rxsocket"
)

// hubSocket is a socket from which the hub sends, at one of its addresses.
type hubSocket struct {
	conn *net.UDPConn
	port uint16
}

// socketOf returns the socket of an address. It opens the socket on first use. mu is held.
func (r *relay) socketOf(a netip.Addr) (*hubSocket, error) {
	if o := r.sockets[a]; o != nil {
		return o, nil
	}
	conn, _, err := rxsocket.Bind(netip.AddrPortFrom(a, 0), func(fd uintptr, v4 bool) error {
		if v4 {
			return unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO)
		}
		return unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_DO)
	})
	if err != nil {
		return nil, err
	}
	o := &hubSocket{conn, uint16(conn.LocalAddr().(*net.UDPAddr).Port)}
	r.sockets[a] = o
	r.senders[netip.AddrPortFrom(a, o.port)] = nil
	return o, nil
}

// maxSent is the largest payload of the hub's datagrams, in bytes.
const maxSent = 1024

// send implements [SendFunc]. mu is held. A datagram to one of the hub's own addresses also
// goes through the kernel and comes back.
func (r *relay) send(to stack.PathAttr, n int, fill func(header, payload []byte)) {
	if n <= 0 || n > maxSent || to.Src.Is4() != to.Dst.Is4() {
		return
	}
	o, err := r.socketOf(to.Src)
	if err != nil {
		return
	}
	// The kernel sets the traffic class and the TTL, which the ICRC does not cover.
	var head [rxsocket.MaxHeader]byte
	header := head[:rxsocket.PutHeader(head[:], to.Src, to.Dst, o.port, 0, 64)]
	stack.PutLengths(header, n)
	payload := make([]byte, n)
	fill(header, payload)
	// If the packet is lost, it is retransmitted.
	_, _ = o.conn.WriteToUDPAddrPort(payload, netip.AddrPortFrom(to.Dst, stack.RoCEPort))
}

// sender returns the address and port of a UDP socket. A process with the descriptor owns the
// address and port, because no other socket can be bound to them.
func sender(fd int) (from netip.AddrPort, err error) {
	protocol, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PROTOCOL)
	if err != nil || protocol != unix.IPPROTO_UDP {
		return from, fmt.Errorf("the descriptor is not a UDP socket: %w", unix.EINVAL)
	}
	if elsewhere(fd) {
		return from, fmt.Errorf("the socket is of another network namespace: %w", unix.EINVAL)
	}
	at, err := unix.Getsockname(fd)
	if err != nil {
		return from, err
	}
	switch at := at.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(at.Addr), uint16(at.Port)), nil
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(at.Addr).Unmap(), uint16(at.Port)), nil
	}
	return from, fmt.Errorf("the socket has no IP address: %w", unix.EINVAL)
}

// elsewhere reports whether a socket is known to belong to another network namespace than this
// process. The kernel tells it since Linux 5.14.
func elsewhere(fd int) bool {
	own, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return true
	}
	defer unix.Close(own)
	here, err := unix.GetsockoptUint64(own, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if err != nil {
		return false
	}
	there, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	return err != nil || here != there
}
