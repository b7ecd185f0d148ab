package kernel

import (
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"
	"syscall"

	"github.com/softrnic/softrnic/stack"
	"github.com/softrnic/softrnic/stack/hub"
	"github.com/softrnic/softrnic/stack/internal/rxsocket"
)

const (
	// maxSegments is the number of datagrams that Linux accepts in one superframe; since 6.9 it
	// accepts 128.
	maxSegments = 64
	maxIPPacket = 65535
)

// path is a route to one peer.
type path struct {
	ends                   stack.Ends
	port                   *port
	out                    *sourcePort
	to                     netip.AddrPort // port 4791, with a zone if the kernel needs one
	mtu                    int
	trafficClass, hopLimit uint8
	headers                int                      // length of head
	head                   [rxsocket.MaxHeader]byte // without lengths
	dest                   destination              // for the kernel
	route                  *hub.Route               // bypasses the kernel; nil if impossible
	closed                 atomic.Bool
}

var (
	_ stack.Path       = (*path)(nil)
	_ stack.Backlogged = (*path)(nil)
)

// Path implements [stack.DatagramPort]. The requested source port only selects one of a few
// sockets, which have ports of their own. Priority and FlowLabel are ignored.
func (p *port) Path(a stack.PathAttr) (stack.Path, error) {
	n := p.nic
	a.Src, a.Dst = a.Src.Unmap().WithZone(""), a.Dst.Unmap().WithZone("")
	switch {
	case a.V1:
		return nil, fmt.Errorf("RoCE v1 over the kernel's sockets: %w", errors.ErrUnsupported)
	case !n.has(a.Src):
		return nil, fmt.Errorf("path from %v: %s has no such address: %w", a.Src, n.name, syscall.EADDRNOTAVAIL)
	case a.Dst.Is4() != a.Src.Is4():
		return nil, fmt.Errorf("path from %v to %v: the addresses are of different IP versions", a.Src, a.Dst)
	case !isHostAddr(a.Dst) && !a.Dst.IsMulticast():
		return nil, fmt.Errorf("path to %v: want the address of a host or a group", a.Dst)
	}
	if _, _, err := n.Source(a.Dst); err != nil {
		return nil, err
	}
	if a.HopLimit == 0 {
		a.HopLimit = 64
	}
	out, err := p.sourcePort(a.Src, a.SrcPort)
	if err != nil {
		return nil, err
	}
	t := &path{ends: stack.Ends{Src: a.Src, Dst: a.Dst}, port: p, out: out,
		to: n.zoned(netip.AddrPortFrom(a.Dst, stack.RoCEPort)), trafficClass: a.TrafficClass, hopLimit: a.HopLimit}
	t.headers = rxsocket.PutHeader(t.head[:], a.Src, a.Dst, out.port, a.TrafficClass, a.HopLimit)
	t.mtu = n.MTU() - t.headers
	t.dest.init(t.to, n.index, a.TrafficClass, a.HopLimit)
	if p.shared != nil && a.QPN != 0 && !a.Dst.IsMulticast() {
		t.route = p.shared.Route(a.Src, a.Dst, a.QPN)
	}
	return t, nil
}

// Ends implements [stack.Path].
func (t *path) Ends() *stack.Ends { return &t.ends }

// MTU implements [stack.Path].
func (t *path) MTU() int { return t.mtu }

// Batch implements [stack.Path].
func (t *path) Batch(n int) int {
	if n <= 0 || !t.port.segments.Load() && !t.isDirect() {
		return 1
	}
	return max(1, min(maxSegments, (maxIPPacket-t.headers)/n))
}

// LocalNIC implements [stack.Path]. It returns nil: a socket does not show whether the peer is in
// this process.
func (t *path) LocalNIC() stack.NIC { return nil }

// Close implements [stack.Path]. The sockets are shared and stay open.
func (t *path) Close() {
	if t.closed.Swap(true) {
		return
	}
	t.port.leave(t.out)
	if t.route != nil {
		t.route.Leave()
	}
}

// isDirect reports whether there are rings to the peer's process now.
func (t *path) isDirect() bool { return t.route != nil && t.route.HasRings() }

// Backlog implements [stack.Backlogged].
func (t *path) Backlog() (bytes int, ok bool) {
	if t.route == nil {
		return 0, false
	}
	return t.route.Backlog(), true
}
