package kernel

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync/atomic"
	"syscall"

	"github.com/softrnic/softrnic/stack"
)

// nic is the host's interface.
type nic struct {
	name     string
	index    int
	mac      net.HardwareAddr
	prefixes []netip.Prefix // by GID index; the first is that of the link-local address, or zero
	gids     []netip.Addr
	port     *port
	watch    *watch

	watcher atomic.Pointer[func(stack.Change)]
	up      atomic.Bool // what the watcher knows
	lost    atomic.Bool
}

var _ stack.NIC = (*nic)(nil)

func newNIC(iface *net.Interface, addrs []netip.Prefix) (*nic, error) {
	n := &nic{name: iface.Name, index: iface.Index, mac: iface.HardwareAddr, prefixes: make([]netip.Prefix, 1)}
	for _, p := range addrs {
		if p.Addr().Is6() && p.Addr().IsLinkLocalUnicast() && !n.prefixes[0].IsValid() {
			n.prefixes[0] = p
		} else {
			n.prefixes = append(n.prefixes, p)
		}
	}
	for _, p := range n.prefixes {
		n.gids = append(n.gids, p.Addr())
	}
	if len(n.mac) != 6 || n.mac.String() == "00:00:00:00:00:00" {
		n.mac = madeUp(addrs[0].Addr())
	}
	var err error
	if n.watch, err = newWatch(n, iface); err != nil {
		return nil, err
	}
	n.up.Store(n.State() == stack.LinkUp)
	go n.watch.run()
	if n.port, err = newPort(n); err != nil {
		n.watch.close()
		return nil, err
	}
	return n, nil
}

// madeUp is the MAC address of an interface that has none, as the loopback: locally administered, and the same whenever the
// address is.
func madeUp(a netip.Addr) net.HardwareAddr {
	b := a.As16()
	return net.HardwareAddr{2, 'S', b[12], b[13], b[14], b[15]}
}

func (n *nic) Name() string          { return n.name }
func (n *nic) MAC() net.HardwareAddr { return slices.Clone(n.mac) }

// MTU implements [stack.NIC]. That of Linux's loopback is larger than an IP packet can be.
func (n *nic) MTU() int { return min(n.watch.mtu(), 65535) }

// GIDs implements [stack.NIC]. The first is the zero Addr if the host does not have the interface's link-local address.
func (n *nic) GIDs() []netip.Addr { return slices.Clone(n.gids) }

// State implements [stack.NIC].
func (n *nic) State() stack.LinkState {
	if n.lost.Load() {
		return stack.LinkRemoved
	}
	return n.watch.state()
}

// Watch implements [stack.NIC].
func (n *nic) Watch(f func(stack.Change)) {
	if f == nil {
		n.watcher.Store(nil)
		return
	}
	n.watcher.Store(&f)
}

// changed tells the watcher if the state is another than it knows.
func (n *nic) changed() {
	state := n.State()
	up := state == stack.LinkUp
	if n.up.Swap(up) != up {
		n.tell(map[bool]stack.Change{true: stack.LinkCame, false: stack.LinkWent}[up])
	}
	if state == stack.LinkRemoved && !n.lost.Swap(true) {
		n.tell(stack.LinkLost)
	}
}

func (n *nic) tell(c stack.Change) {
	if f := n.watcher.Load(); f != nil {
		(*f)(c)
	}
}

// lose tells the watcher that the host closes.
func (n *nic) lose() {
	if !n.lost.Swap(true) {
		n.tell(stack.LinkLost)
	}
}

func (n *nic) close() {
	n.watch.close()
	n.port.close()
}

func (n *nic) Counters() stack.Counters      { return n.port.counters.snapshot() }
func (n *nic) Datagrams() stack.DatagramPort { return n.port }

// Frames implements [stack.NIC]: there are no frames, as they take privileges.
func (n *nic) Frames() stack.FramePort { return nil }

// Source implements [stack.NIC]. It asks the kernel's routing table, and insists on an address of the host.
func (n *nic) Source(dst netip.Addr) (src netip.Addr, direct bool, err error) {
	dst = dst.Unmap().WithZone("")
	switch {
	case !isHostAddr(dst) && !dst.IsMulticast():
		return src, false, fmt.Errorf("route to %v: want the address of a host or a group: %w", dst, syscall.EINVAL)
	case n.has(dst):
		return dst, true, nil
	}
	direct = dst.IsMulticast() || slices.ContainsFunc(n.prefixes, func(p netip.Prefix) bool { return p.IsValid() && p.Contains(dst) })
	// Connecting a UDP socket looks for the route, and sends nothing.
	c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(n.zoned(netip.AddrPortFrom(dst, stack.RoCEPort))))
	if err == nil {
		src = c.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap().WithZone("")
		_ = c.Close()
		if n.has(src) {
			return src, direct, nil
		}
	}
	// The kernel would take an address that is not the host's. One in the same network does as well.
	for _, p := range n.prefixes {
		if p.IsValid() && p.Contains(dst) {
			return p.Addr(), true, nil
		}
	}
	if err != nil && !errors.Is(err, syscall.ENETUNREACH) {
		return netip.Addr{}, false, fmt.Errorf("route to %v from %s: %w: %w", dst, n.name, syscall.ENETUNREACH, err)
	}
	return netip.Addr{}, false, fmt.Errorf("no route to %v from %s, whose addresses are %v: %w", dst, n.name, n.addrs(), syscall.ENETUNREACH)
}

// Resolve implements [stack.NIC]. The kernel resolves the neighbour when the first packet is sent, and keeps that meanwhile.
func (n *nic) Resolve(ctx context.Context, src, dst netip.Addr) error {
	if !n.has(src) {
		return fmt.Errorf("path from %v: %s has no such address: %w", src, n.name, syscall.EADDRNOTAVAIL)
	}
	return ctx.Err()
}

// Poll implements [stack.NIC].
func (n *nic) Poll() bool { return n.port.poll() }

// EndPoll implements [stack.NIC].
func (n *nic) EndPoll() { n.port.polled.Store(0) }

// Join implements [stack.NIC]: not supported yet.
func (n *nic) Join(group netip.Addr) error { return noGroups(group) }

// Leave implements [stack.NIC].
func (n *nic) Leave(group netip.Addr) error { return noGroups(group) }

func noGroups(group netip.Addr) error {
	return fmt.Errorf("multicast group %v over the kernel's sockets: %w", group, errors.ErrUnsupported)
}

// has tells whether a, without a zone, is one of the host's addresses.
func (n *nic) has(a netip.Addr) bool { return a.IsValid() && slices.Contains(n.gids, a) }

// addrs are the host's addresses.
func (n *nic) addrs() []netip.Addr {
	return slices.DeleteFunc(n.GIDs(), func(a netip.Addr) bool { return !a.IsValid() })
}

// zoned gives a link-local address the interface as its zone, which the kernel needs.
func (n *nic) zoned(a netip.AddrPort) netip.AddrPort {
	if a.Addr().Is6() && a.Addr().IsLinkLocalUnicast() && a.Addr().Zone() == "" {
		return netip.AddrPortFrom(a.Addr().WithZone(n.name), a.Port())
	}
	return a
}
