package netstack

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"sync/atomic"
	"syscall"

	"gvisor.dev/gvisor/pkg/tcpip/header"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/stack"
)

// path is a path to one peer from one UDP source port. There may be very many, so everything that
// paths can share is in pathGroup.
type path struct {
	*pathGroup
	ids     atomic.Uint32 // last IPv4 ID, with several senders
	ownID   uint16        // last IPv4 ID, with one sender
	oneOnly bool          // PathAttr.OneSender
	srcPort uint16
	closed  atomic.Bool

	_ [36]byte // keeps the IDs of QPs in different cache lines
}

// pathGroup is shared by paths that differ only in the source port. It has the headers of their
// datagrams, and the destination of frames.
type pathGroup struct {
	pathGroupKey
	refs int       // guarded by nic.pathGroupMu
	out  link.Link // the interface's link, or a loopback
	v4   bool      // over IPv4
	ends stack.Ends
	// template is the Ethernet, IP and UDP header, or for RoCE v1 the GRH, without source port,
	// lengths, ID and checksums.
	template [ethLen + ipv6Len + udpLen]byte
	pseudo   uint16 // sum of the UDP pseudo header without the length
	headers  int    // bytes of template in use
	localRoute
}

// pathGroupKey identifies a pathGroup. Routes and MTUs change, but a path keeps those of the time
// when it was opened.
type pathGroupKey struct {
	attr stack.PathAttr // without SrcPort, QPN and OneSender
	own  *Interface     // the destination, if it is one of the host's own interfaces
	nb   *neighbour     // nil if the template has the destination MAC: loopback, multicast
	uso  bool
	mtu  int // UDP payload
}

var _ stack.Path = (*path)(nil)

// Path implements DatagramPort.
func (p *port) Path(a stack.PathAttr) (stack.Path, error) {
	n := p.nic
	a.Src, a.Dst = a.Src.Unmap().WithZone(""), a.Dst.Unmap().WithZone("")
	switch {
	case !n.has(a.Src):
		return nil, fmt.Errorf("path from %v: %s has no such address: %w", a.Src, n.Name(), syscall.EADDRNOTAVAIL)
	case a.Dst.Is4() != a.Src.Is4():
		return nil, fmt.Errorf("path from %v to %v: the addresses are of different IP versions", a.Src, a.Dst)
	case !isHostAddr(a.Dst) && !a.Dst.IsMulticast() || a.Dst.IsLoopback():
		return nil, fmt.Errorf("path to %v: want the address of a host or a multicast group", a.Dst)
	case a.FlowLabel >= 1<<20:
		return nil, fmt.Errorf("path to %v: flow label %#x does not fit in 20 bits", a.Dst, a.FlowLabel)
	case a.Priority > 7:
		return nil, fmt.Errorf("path to %v: priority %d is not in 0–7", a.Dst, a.Priority)
	}
	if a.HopLimit == 0 {
		a.HopLimit = 64
	}
	t := &path{srcPort: a.SrcPort, oneOnly: a.OneSender}
	a.SrcPort, a.QPN, a.OneSender = 0, 0, false // paths that are equal otherwise share a pathGroup
	var err error
	if t.pathGroup, err = n.pathGroup(a); err != nil {
		return nil, err
	}
	t.ownID = uint16(n.host.clock.Uint32())
	t.ids.Store(uint32(t.ownID))
	return t, nil
}

// pathGroup finds or creates the pathGroup of a path, with a reference for the caller.
func (n *Interface) pathGroup(a stack.PathAttr) (*pathGroup, error) {
	t := &pathGroup{pathGroupKey: pathGroupKey{attr: a}, refs: 1, out: n.link, v4: a.Src.Is4() && !a.V1,
		ends: stack.Ends{Src: a.Src, Dst: a.Dst, V1: a.V1}, localRoute: localRoute{from: n, to: a.Dst}}
	mac, err := t.route(n)
	if err != nil {
		return nil, err
	}
	t.uso = !a.V1 && t.out.Offloads().USO && t.out.Offloads().Checksum
	switch {
	case a.V1:
		t.headers = ethLen + grhLen
	case t.v4:
		t.headers = ethLen + ipv4Len + udpLen
	default:
		t.headers = ethLen + ipv6Len + udpLen
	}
	t.mtu = min(n.MTU(), link.MaxSuperframe) - (t.headers - ethLen)

	n.pathGroupMu.Lock()
	defer n.pathGroupMu.Unlock()
	if old := n.pathGroups[t.pathGroupKey]; old != nil {
		old.refs++
		if t.nb != nil {
			t.nb.release() // the pathGroup already has a reference
		}
		return old, nil
	}
	t.fill(mac, n.mac)
	n.pathGroups[t.pathGroupKey] = t
	return t, nil
}

// route finds the link for the path's frames, and their destination MAC if no resolution is needed.
func (t *pathGroup) route(n *Interface) (mac []byte, err error) {
	dst := tcpipAddr(t.attr.Dst)
	if o := n.host.owner(t.attr.Dst); o != nil {
		t.own = o
		t.out, err = o.loopback()
		return o.MAC(), err
	}
	if t.attr.Dst.IsMulticast() {
		t.out = &groupLink{n.link, n, t.attr.Dst}
		if t.attr.Dst.Is4() {
			return []byte(header.EthernetAddressFromMulticastIPv4Address(dst)), nil
		}
		return []byte(header.EthernetAddressFromMulticastIPv6Address(dst)), nil
	}
	if t.attr.Via != ([6]byte{}) {
		return t.attr.Via[:], nil
	}
	if mac, ok := macFromLinkLocal(t.attr.Dst); ok && t.attr.V1 {
		return mac, nil
	}
	r, terr := n.host.stack.FindRoute(n.id, tcpipAddr(t.attr.Src), dst, protocolOf(t.attr.Dst), false)
	if terr != nil {
		n.host.mu.Lock()
		defer n.host.mu.Unlock()
		return nil, n.noRoute(t.attr.Dst)
	}
	defer r.Release()
	next := t.attr.Dst
	if hop := r.NextHop(); hop.BitLen() > 0 {
		next, _ = netip.AddrFromSlice(hop.AsSlice())
	}
	if err := t.direct(next); err != nil {
		return nil, err
	}
	t.nb = n.neighbour(t.attr.Src, next)
	return make([]byte, 6), nil
}

// fill writes the template.
func (t *pathGroup) fill(dst []byte, src [6]byte) {
	b := t.template[:]
	copy(b, dst)
	copy(b[6:], src[:])
	if t.attr.V1 {
		binary.BigEndian.PutUint16(b[12:], stack.RoCEv1Type)
		putGRH(b[ethLen:], &t.attr)
		return
	}
	ip, ipLen := b[ethLen:], ipv6Len
	if t.v4 {
		ipLen = ipv4Len
		binary.BigEndian.PutUint16(b[12:], uint16(header.IPv4ProtocolNumber))
		header.IPv4(ip).Encode(&header.IPv4Fields{
			TOS: t.attr.TrafficClass, Flags: header.IPv4FlagDontFragment, TTL: t.attr.HopLimit,
			Protocol: uint8(header.UDPProtocolNumber),
			SrcAddr:  tcpipAddr(t.attr.Src), DstAddr: tcpipAddr(t.attr.Dst),
		})
	} else {
		binary.BigEndian.PutUint16(b[12:], uint16(header.IPv6ProtocolNumber))
		header.IPv6(ip).Encode(&header.IPv6Fields{
			TrafficClass: t.attr.TrafficClass, FlowLabel: t.attr.FlowLabel, HopLimit: t.attr.HopLimit,
			TransportProtocol: header.UDPProtocolNumber,
			SrcAddr:           tcpipAddr(t.attr.Src), DstAddr: tcpipAddr(t.attr.Dst),
		})
	}
	header.UDP(ip[ipLen:]).Encode(&header.UDPFields{DstPort: stack.RoCEPort})
	t.pseudo = header.PseudoHeaderChecksum(header.UDPProtocolNumber, tcpipAddr(t.attr.Src), tcpipAddr(t.attr.Dst), 0)
}

// Ends implements Path.
func (t *pathGroup) Ends() *stack.Ends { return &t.ends }

// MTU implements Path.
func (t *pathGroup) MTU() int { return t.mtu }

// Batch implements Path.
func (t *pathGroup) Batch(n int) int {
	if !t.uso || n <= 0 {
		return 1
	}
	return max(1, min(link.MaxSegments, (link.MaxSuperframe-(t.headers-ethLen))/n))
}

// Backlog implements stack.Backlogged.
func (t *pathGroup) Backlog() (bytes int, ok bool) {
	to := t.from.link.inPlace
	if to == nil || t.nb == nil {
		return 0, false
	}
	var dst [6]byte
	putMAC(dst[:], t.nb.mac.Load())
	return to.Backlog(dst), true
}

// Close implements Path.
func (p *path) Close() {
	if p.closed.Swap(true) {
		return
	}
	t, n := p.pathGroup, p.from
	n.pathGroupMu.Lock()
	defer n.pathGroupMu.Unlock()
	if t.refs--; t.refs > 0 {
		return
	}
	delete(n.pathGroups, t.pathGroupKey)
	if t.nb != nil {
		t.nb.release()
	}
}
