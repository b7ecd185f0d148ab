package hub

import (
	"net"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/softrnic/softrnic/stack"
	"github.com/softrnic/softrnic/stack/kernel/internal/inlet"
)

// outlet is a socket that the hub sends from at one of its addresses.
type outlet struct {
	conn *net.UDPConn
	port uint16
}

// outletOf opens the socket for an address when it is needed first. mu is held.
func (r *relay) outletOf(a netip.Addr) (*outlet, error) {
	if o := r.outlets[a]; o != nil {
		return o, nil
	}
	conn, _, err := inlet.Bind(netip.AddrPortFrom(a, 0), func(fd uintptr, v4 bool) error {
		if v4 {
			return unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO)
		}
		return unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_DO)
	})
	if err != nil {
		return nil, err
	}
	o := &outlet{conn, uint16(conn.LocalAddr().(*net.UDPAddr).Port)}
	r.outlets[a] = o
	r.senders[netip.AddrPortFrom(a, o.port)] = nil
	return o, nil
}

// maxSent is how many payload bytes a datagram of the hub's may have.
const maxSent = 1024

// send implements [stack.SendFunc]. mu is held. What is for one of the hub's own addresses passes the kernel, too, and comes back.
func (r *relay) send(to stack.PathAttr, n int, fill func(header, payload []byte)) {
	if n <= 0 || n > maxSent || to.Src.Is4() != to.Dst.Is4() {
		return
	}
	o, err := r.outletOf(to.Src)
	if err != nil {
		return
	}
	// The ICRC does not cover the traffic class and the TTL, which are the kernel's.
	var head [inlet.MaxHeader]byte
	header := head[:inlet.PutHeader(head[:], to.Src, to.Dst, o.port, 0, 64)]
	stack.PutLengths(header, n)
	payload := make([]byte, n)
	fill(header, payload)
	_, _ = o.conn.WriteToUDPAddrPort(payload, netip.AddrPortFrom(to.Dst, stack.RoCEPort)) // what is lost is said again
}
