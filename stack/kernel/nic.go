package kernel

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/softrnic/softrnic/link/idle"
	"github.com/softrnic/softrnic/stack"
	"github.com/softrnic/softrnic/stack/internal/rxsocket"
)

// nic is the host's interface.
type nic struct {
	name     string
	index    int
	mac      net.HardwareAddr
	wanted   []netip.Addr // selected addresses; nil for all of the interface
	port     *port
	log      *slog.Logger
	watch    *watch
	streams  atomic.Int32 // open ones
	yielder  idle.Yielder
	table    atomic.Pointer[gidTable] // replaced under changing, never modified
	changing sync.Mutex

	watcher    atomic.Pointer[func(stack.Change)]
	retry      *time.Timer   // runs updateAddrs, or nil; guarded by changing
	retryAfter time.Duration // the last interval

	opened bool        // the first addresses have been added; guarded by changing
	closed bool        // Unopened
	up     atomic.Bool // last state reported to the watcher
	lost   atomic.Bool
}

var _ stack.NIC = (*nic)(nil)

// gidTable has the host's addresses with their networks by GID index; holes are zero. Index 0 is
// the link-local address, or a hole, for which GIDs substitutes another. A link-local address that
// is added later gets the next free index, because an index must keep its meaning while an
// application uses it. An address that comes back gets its former index, unless another has taken
// that.
type gidTable struct {
	prefixes []netip.Prefix
	last     []netip.Addr // the last address of each index
}

// newNIC opens the sockets for addresses of an interface. A new IPv6 address is in duplicate
// address detection for a second. Such an address is added afterwards, unless it was selected by
// name.
func newNIC(iface *net.Interface, addrs []netip.Prefix, c *config) (*nic, error) {
	n := &nic{name: iface.Name, index: iface.Index, mac: iface.HardwareAddr, wanted: c.addrs, log: c.log, closed: c.closed}
	n.table.Store(&gidTable{make([]netip.Prefix, 1), make([]netip.Addr, 1)})
	if len(n.mac) != 6 || n.mac.String() == "00:00:00:00:00:00" {
		n.mac = syntheticMAC(addrs[0].Addr())
	}
	var err error
	if n.watch, err = newWatch(n, iface); err != nil {
		n.yielder.Close()
		return nil, err
	}
	n.port = newPort(n)
	n.up.Store(n.State() == stack.LinkUp)
	n.changing.Lock() // a hub may appear or disappear
	err = n.addAddrs(addrs, c.sharing)
	n.opened = true
	n.changing.Unlock()
	if err == nil && !n.closed {
		err = n.port.probe()
	}
	go n.watch.run() // runs until watch is closed
	if err != nil {
		n.watch.close()
		n.port.close()
		n.yielder.Close()
		return nil, err
	}
	return n, nil
}

// addAddrs opens the port for the first addresses.
func (n *nic) addAddrs(addrs []netip.Prefix, sharing *Sharing) error {
	if sharing != nil {
		if err := n.port.join(sharing); err != nil {
			return err
		}
	}
	for _, p := range addrs {
		err := n.addAddr(p)
		if errors.Is(err, syscall.EADDRNOTAVAIL) && len(n.wanted) == 0 && p.Addr().Is6() {
			continue
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// addAddr opens the sockets of an address and assigns a GID. After an error nothing has changed.
// changing is held.
func (n *nic) addAddr(p netip.Prefix) error {
	a := p.Addr()
	err := n.port.openAddr(a)
	// A socket that was just closed may still be open for a moment.
	for try := 0; errors.Is(err, syscall.EADDRINUSE) && try < 5; try++ {
		time.Sleep(10 * time.Millisecond)
		err = n.port.openAddr(a)
	}
	if err != nil {
		return err
	}
	n.port.reopenSourcePorts(a) // before a new path can replace them
	if err := n.port.registerSourcePorts(a); err != nil {
		n.port.closeAddr(a)
		n.port.closeSourcePorts(a)
		return err
	}
	old := n.table.Load()
	t := &gidTable{slices.Clone(old.prefixes), slices.Clone(old.last)}
	i := t.freeIndex(a, !n.opened)
	t.prefixes[i], t.last[i] = p, a
	n.table.Store(t)
	return nil
}

// freeIndex returns the index for a new address, and makes room for it. first says that the host
// has just been created.
func (t *gidTable) freeIndex(a netip.Addr, first bool) int {
	free := func(i int) bool { return i >= 0 && !t.prefixes[i].IsValid() }
	if i := slices.Index(t.last, a); free(i) {
		return i
	}
	// The application knows index 0 as the link-local address, or as nothing at all.
	known := t.last[0].IsValid() || first || !slices.ContainsFunc(t.prefixes, netip.Prefix.IsValid)
	if a.Is6() && a.IsLinkLocalUnicast() && free(0) && known {
		return 0
	}
	for i := range t.prefixes {
		if i > 0 && free(i) {
			return i
		}
	}
	t.prefixes, t.last = append(t.prefixes, netip.Prefix{}), append(t.last, netip.Addr{})
	return len(t.prefixes) - 1
}

// updateAddrs follows the interface's present addresses.
func (n *nic) updateAddrs() {
	if n.syncAddrs() {
		n.notify(stack.GIDsChanged)
	}
}

// interfacePrefixes is a variable for tests.
var interfacePrefixes = prefixesOf

// syncAddrs adds and removes addresses. It reports whether anything has changed.
func (n *nic) syncAddrs() (changed bool) {
	n.changing.Lock()
	defer n.changing.Unlock()
	if n.port.closed.Load() {
		return false
	}
	iface, err := net.InterfaceByIndex(n.index)
	if err != nil {
		return false // removed interfaces are reported by stateChanged
	}
	have, err := interfacePrefixes(iface)
	if err != nil {
		return false
	}
	old := n.table.Load()
	for i, p := range old.prefixes {
		if a := p.Addr(); a.IsValid() && !owns(have, a).IsValid() {
			t := n.table.Load()
			t = &gidTable{slices.Clone(t.prefixes), t.last}
			t.prefixes[i] = netip.Prefix{}
			n.table.Store(t)
			n.port.closeAddr(a)
			n.port.closeSourcePorts(a)
			changed = true
		}
	}
	failed := false
	for _, p := range have {
		if n.has(p.Addr()) || len(n.wanted) > 0 && !slices.Contains(n.wanted, p.Addr()) {
			continue
		}
		if n.addAddr(p) == nil {
			changed = true
		} else {
			failed = true
		}
	}
	n.scheduleRetry(failed)
	return changed
}

// An address that could not be added is retried with increasing intervals. Another process may have
// used its port, or the hub may have refused a socket.
const (
	firstRetry = time.Second
	lastRetry  = 30 * time.Second
)

// scheduleRetry schedules updateAddrs if an address could not be added. changing is held.
func (n *nic) scheduleRetry(failed bool) {
	if n.retry != nil {
		n.retry.Stop()
		n.retry = nil
	}
	if !failed {
		n.retryAfter = 0
		return
	}
	n.retryAfter = min(max(2*n.retryAfter, firstRetry), lastRetry)
	n.retry = time.AfterFunc(n.retryAfter, n.updateAddrs)
}

// syntheticMAC returns the MAC address of an interface without one, such as the loopback. It is
// locally administered, and derived from the IP address.
func syntheticMAC(a netip.Addr) net.HardwareAddr {
	b := a.As16()
	return net.HardwareAddr{2, 'S', b[12], b[13], b[14], b[15]}
}

func (n *nic) Name() string          { return n.name }
func (n *nic) MAC() net.HardwareAddr { return slices.Clone(n.mac) }

// MTU implements [stack.NIC]. It is limited because the MTU of Linux's loopback exceeds the largest
// IP packet.
func (n *nic) MTU() int { return min(n.watch.mtu(), 65535) }

// GIDs implements [stack.NIC]. Programs use index 0 by default. The link-local address stays there
// while the interface is down, like Linux's default GID. If the host never had it, index 0 repeats
// the address with the lowest index.
func (n *nic) GIDs() []netip.Addr {
	t := n.table.Load()
	gids := make([]netip.Addr, len(t.prefixes))
	for i, p := range t.prefixes {
		gids[i] = p.Addr()
	}
	if !gids[0].IsValid() {
		gids[0] = t.last[0]
	}
	if i := slices.IndexFunc(gids, netip.Addr.IsValid); i > 0 {
		gids[0] = gids[i]
	}
	return gids
}

// State implements [stack.NIC].
func (n *nic) State() stack.LinkState {
	if n.lost.Load() {
		return stack.LinkRemoved
	}
	state := n.watch.state()
	if s := n.port.shared; s != nil && state == stack.LinkUp && !s.Up() {
		return stack.LinkNoCarrier
	}
	return state
}

// Watch implements [stack.NIC].
func (n *nic) Watch(f func(stack.Change)) {
	if f == nil {
		n.watcher.Store(nil)
		return
	}
	n.watcher.Store(&f)
}

// stateChanged notifies the watcher if the state differs from the last reported one.
func (n *nic) stateChanged() {
	state := n.State()
	up := state == stack.LinkUp
	if n.up.Swap(up) != up {
		n.notify(map[bool]stack.Change{true: stack.LinkCameUp, false: stack.LinkWentDown}[up])
	}
	if state == stack.LinkRemoved && !n.lost.Swap(true) {
		n.notify(stack.LinkGone)
	}
}

func (n *nic) notify(c stack.Change) {
	if f := n.watcher.Load(); f != nil {
		(*f)(c)
	}
}

// setRemoved notifies the watcher that the host closes.
func (n *nic) setRemoved() {
	if !n.lost.Swap(true) {
		n.notify(stack.LinkGone)
	}
}

func (n *nic) close() {
	n.watch.close()
	n.port.close()
	n.changing.Lock()
	n.scheduleRetry(false)
	n.changing.Unlock()
}

func (n *nic) Counters() stack.Counters { return n.port.counters.snapshot() }

// Datagrams implements [stack.NIC].
func (n *nic) Datagrams() stack.DatagramPort {
	if n.port.shared != nil {
		return n.port.shared
	}
	return n.port
}

// Frames implements [stack.NIC]. It returns nil, because frames need privileges.
func (n *nic) Frames() stack.FramePort { return nil }

// Source implements [stack.NIC]. It queries the kernel's routing table, and returns only addresses
// of the host.
func (n *nic) Source(dst netip.Addr) (src netip.Addr, direct bool, err error) {
	dst = dst.Unmap().WithZone("")
	switch {
	case !isHostAddr(dst) && !dst.IsMulticast():
		return src, false, fmt.Errorf("route to %v: want the address of a host or a group: %w", dst, syscall.EINVAL)
	case n.has(dst):
		return dst, true, nil
	case dst.IsMulticast():
		return n.sourceOfGroup(dst)
	}
	prefixes := n.table.Load().prefixes
	direct = slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.IsValid() && p.Contains(dst) })
	// Connecting a UDP socket looks up the route, and sends nothing.
	c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(n.zoned(netip.AddrPortFrom(dst, stack.RoCEPort))))
	if err == nil {
		src = c.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap().WithZone("")
		_ = c.Close()
		if n.has(src) {
			return src, direct, nil
		}
	}
	if err == nil && src == dst { // another address of this machine, which every address reaches
		for _, a := range n.addrs() {
			if a.Is4() == dst.Is4() && a.IsLinkLocalUnicast() == dst.IsLinkLocalUnicast() {
				return a, true, nil
			}
		}
	}
	// The address that the kernel has chosen is not one of the host's. An address in the same network
	// is equally suitable.
	for _, p := range prefixes {
		if p.IsValid() && p.Contains(dst) {
			return p.Addr(), true, nil
		}
	}
	if err != nil && !errors.Is(err, syscall.ENETUNREACH) {
		return netip.Addr{}, false, fmt.Errorf("route to %v from %s: %w: %w", dst, n.name, syscall.ENETUNREACH, err)
	}
	return netip.Addr{}, false, fmt.Errorf("no route to %v from %s, whose addresses are %v: %w",
		dst, n.name, n.addrs(), syscall.ENETUNREACH)
}

// sourceOfGroup returns the source address for datagrams to a group. The address is link-local only
// if the group is, or if there is no other.
func (n *nic) sourceOfGroup(group netip.Addr) (src netip.Addr, direct bool, err error) {
	local := group.Is6() && group.IsLinkLocalMulticast()
	for _, a := range n.addrs() {
		if a.Is4() == group.Is4() && (!src.IsValid() || a.IsLinkLocalUnicast() == local && src.IsLinkLocalUnicast() != local) {
			src = a
		}
	}
	if !src.IsValid() {
		return src, false, fmt.Errorf("group %v: %s has no address of that IP version, only %v: %w",
			group, n.name, n.addrs(), syscall.ENETUNREACH)
	}
	setInterface := func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) { setGroupInterface(fd, src, n.index) })
	}
	d := net.Dialer{LocalAddr: net.UDPAddrFromAddrPort(n.zoned(netip.AddrPortFrom(src, 0))), Control: setInterface}
	// Looks up the route, and sends nothing.
	c, err := d.Dial("udp", n.zoned(netip.AddrPortFrom(group, stack.RoCEPort)).String())
	if err != nil {
		return src, false, fmt.Errorf("no route to group %v from %s: %w: %w", group, n.name, syscall.ENETUNREACH, err)
	}
	_ = c.Close()
	return src, true, nil
}

// Resolve implements [stack.NIC]. The kernel has the neighbours.
func (n *nic) Resolve(ctx context.Context, src, dst netip.Addr) error {
	dst = dst.Unmap().WithZone("")
	switch {
	case !n.has(src):
		return fmt.Errorf("path from %v: %s has no such address: %w", src, n.name, syscall.EADDRNOTAVAIL)
	case ctx.Err() != nil || dst.IsMulticast() || n.has(dst):
		return ctx.Err()
	}
	return n.awaitNeighbour(ctx, src, dst)
}

// Poll implements [stack.NIC].
func (n *nic) Poll() bool {
	if n.port.poll() {
		return true
	}
	if n.streams.Load() > 0 {
		n.yielder.EmptyPoll()
	}
	return false
}

// EndPoll implements [stack.NIC].
func (n *nic) EndPoll() { n.port.endPoll() }

// Join implements [stack.NIC].
func (n *nic) Join(group netip.Addr) error {
	group = group.Unmap().WithZone("")
	if !group.IsMulticast() {
		return fmt.Errorf("join %v: want a multicast address: %w", group, syscall.EINVAL)
	}
	p := n.port
	p.joining.Lock()
	defer p.joining.Unlock()
	if p.groups[group] == 0 {
		in, err := p.newGroupSocket(group)
		if err == nil {
			err = p.add(in)
		}
		if err != nil {
			return fmt.Errorf("join %v on %s: %w", group, n.name, err)
		}
	}
	p.groups[group]++
	return nil
}

// Leave implements [stack.NIC].
func (n *nic) Leave(group netip.Addr) error {
	group = group.Unmap().WithZone("")
	p := n.port
	p.joining.Lock()
	defer p.joining.Unlock()
	switch p.groups[group] {
	case 0:
		return fmt.Errorf("leave %v: %s has not joined it: %w", group, n.name, syscall.EADDRNOTAVAIL)
	case 1:
		delete(p.groups, group)
		p.remove(group)
	default:
		p.groups[group]--
	}
	return nil
}

// has reports whether a, without a zone, is one of the host's addresses.
func (n *nic) has(a netip.Addr) bool {
	return a.IsValid() && slices.ContainsFunc(n.table.Load().prefixes, func(p netip.Prefix) bool { return p.Addr() == a })
}

// addrs returns the host's addresses.
func (n *nic) addrs() (list []netip.Addr) {
	for _, p := range n.table.Load().prefixes {
		if p.IsValid() {
			list = append(list, p.Addr())
		}
	}
	return list
}

// zoned adds the interface as the zone of a link-local address, which the kernel needs.
func (n *nic) zoned(a netip.AddrPort) netip.AddrPort { return rxsocket.Zoned(a, n.name) }
