package netstack

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/stack"
)

// Interface is one NIC of a [Host].
type Interface struct {
	host     *Host
	id       tcpip.NICID
	link     *sniffableLink
	poller   link.Poller  // the link, or nil
	shared   link.Shared  // the link, or nil
	carrier  link.Carrier // the link, or nil
	closed   atomic.Bool  // by the host's Close
	endpoint *Endpoint
	mac      [6]byte
	port     *port
	gids     atomic.Pointer[[]netip.Addr] // replaced, never modified: reception reads it
	watcher  atomic.Pointer[func(stack.Change)]
	departed atomic.Pointer[func(netip.Addr)]
	up, lost atomic.Bool // last state of the link reported to the watcher

	groupMu sync.Mutex // held by writers
	// Number of joins; replaced, never modified: reception reads it.
	groups atomic.Pointer[map[netip.Addr]int]

	// Guarded by host.mu. prefixes[i] belongs to GID i; the zero prefix is a hole.
	prefixes []netip.Prefix
	gateways []netip.Addr

	neighMu    sync.Mutex
	neighbours map[neighbourKey]*neighbour

	steerMu sync.Mutex

	pathGroupMu sync.Mutex
	pathGroups  map[pathGroupKey]*pathGroup

	loopMu   sync.Mutex
	loop     [2]*pipe.Port // in, out; nil until a path needs them
	loopDone bool
}

var (
	_ stack.NIC        = (*Interface)(nil)
	_ stack.Departures = (*Interface)(nil)
)

func (h *Host) addInterface(c *nicConfig) error {
	n := &Interface{
		host:       h,
		id:         tcpip.NICID(len(h.nics) + 1),
		link:       &sniffableLink{Link: c.link},
		mac:        [6]byte(c.link.MAC()),
		neighbours: map[neighbourKey]*neighbour{},
		pathGroups: map[pathGroupKey]*pathGroup{},
	}
	if p, ok := c.link.(link.InPlace); ok {
		p.AllowInPlace()
		n.link.inPlace = p
	}
	n.endpoint = NewEndpoint(n.link)
	n.poller, _ = c.link.(link.Poller)
	n.shared, _ = c.link.(link.Shared)
	n.carrier, _ = c.link.(link.Carrier)
	n.port = &port{nic: n}
	n.gids.Store(new([]netip.Addr))
	n.groups.Store(&map[netip.Addr]int{})
	if err := h.stack.CreateNICWithOptions(n.id, n.endpoint, gstack.NICOptions{QDisc: n.endpoint.QDisc()}); err != nil {
		return fmt.Errorf("interface on %s: %w", c.link.Name(), stackError(err))
	}
	h.nics = append(h.nics, n)
	n.register()
	n.up.Store(true)
	link.Watch(c.link, n.linkChanged)
	n.linkChanged() // for earlier changes
	link.WatchDepartures(c.link, n.hostLeft)

	linkLocal := netip.AddrFrom16(header.LinkLocalAddr(n.endpoint.LinkAddress()).As16())
	for _, p := range append([]netip.Prefix{netip.PrefixFrom(linkLocal, 64)}, c.addrs...) {
		if err := n.add(p); err != nil {
			return err
		}
	}
	return nil
}

// Name is the link's name.
func (n *Interface) Name() string { return n.link.Name() }

// MAC is the link's address.
func (n *Interface) MAC() net.HardwareAddr { return n.link.MAC() }

// MTU is the largest IP packet in bytes.
func (n *Interface) MTU() int { return n.link.MTU() }

// GIDs returns the interface's addresses by GID index.
func (n *Interface) GIDs() []netip.Addr { return slices.Clone(*n.gids.Load()) }

// Datagrams is the interface's datagram port.
func (n *Interface) Datagrams() stack.DatagramPort { return n.port }

// Poll receives pending frames on the caller's goroutine, if the link is a [link.Poller].
func (n *Interface) Poll() bool { return n.poller != nil && n.poller.Poll() }

// EndPoll implements NIC.
func (n *Interface) EndPoll() {
	if n.poller != nil {
		n.poller.EndPoll()
	}
}

// Counters returns the traffic counters of the datagram port.
func (n *Interface) Counters() stack.Counters { return n.port.snapshot() }

// AddAddr adds an address, in the format of [Config].Addrs. It fills the first hole in the GID
// table, or becomes the last GID.
func (n *Interface) AddAddr(cidr string) error {
	p, err := parseCIDR(cidr)
	if err != nil {
		return err
	}
	err = n.add(p)
	if err == nil {
		n.notify(stack.GIDsChanged)
	}
	return err
}

// Watch implements NIC.
func (n *Interface) Watch(f func(stack.Change)) { n.watcher.Store(&f) }

// State returns the link's state. After the host was closed, it is LinkRemoved.
func (n *Interface) State() stack.LinkState {
	switch {
	case n.lost.Load():
		return stack.LinkRemoved
	case n.carrier == nil:
		return stack.LinkUp
	}
	return n.carrier.State()
}

// linkChanged is called when the link's state or MTU has changed, and notifies the watcher.
func (n *Interface) linkChanged() {
	n.endpoint.SetMTU(uint32(n.MTU()))
	state := n.State()
	n.host.log.Debug("link changed", "nic", n.Name(), "state", state, "mtu", n.MTU())
	switch up := state == stack.LinkUp; {
	case n.up.Swap(up) == up:
	case up:
		n.notify(stack.LinkCameUp)
	default:
		n.notify(stack.LinkWentDown)
	}
	if state == stack.LinkRemoved && !n.lost.Swap(true) {
		n.notify(stack.LinkGone)
	}
}

func (n *Interface) notify(c stack.Change) {
	if f := n.watcher.Load(); f != nil && *f != nil {
		(*f)(c)
	}
}

func (n *Interface) add(p netip.Prefix) error {
	h := n.host
	h.mu.Lock()
	defer h.mu.Unlock()
	if o := h.owner(p.Addr()); o != nil {
		return fmt.Errorf("address %v: %s has it already", p, o.Name())
	}
	if err := h.stack.AddProtocolAddress(n.id, tcpip.ProtocolAddress{
		Protocol:          protocolOf(p.Addr()),
		AddressWithPrefix: tcpip.AddressWithPrefix{Address: tcpipAddr(p.Addr()), PrefixLen: p.Bits()},
	}, gstack.AddressProperties{}); err != nil {
		return fmt.Errorf("address %v on %s: %w", p, n.Name(), stackError(err))
	}
	if i := slices.Index(n.prefixes, netip.Prefix{}); i >= 0 {
		n.prefixes[i] = p
	} else {
		n.prefixes = append(n.prefixes, p)
	}
	n.addrsChanged()
	n.announce(p.Addr())
	h.log.Debug("address added", "nic", n.Name(), "addr", p)
	return nil
}

// RemoveAddr removes an address. It leaves a hole in the GID table until the next new address, so
// that all others keep their index. Paths from the address continue to send until they are closed.
// The link-local address made from the MAC cannot be removed.
func (n *Interface) RemoveAddr(a netip.Addr) error {
	err := n.remove(a)
	if err == nil {
		n.notify(stack.GIDsChanged)
	}
	return err
}

func (n *Interface) remove(a netip.Addr) error {
	h := n.host
	h.mu.Lock()
	defer h.mu.Unlock()
	i := slices.IndexFunc(n.prefixes, func(p netip.Prefix) bool { return p.IsValid() && p.Addr() == a })
	switch {
	case i < 0:
		return fmt.Errorf("address %v: %s does not have it", a, n.Name())
	case i == 0:
		return fmt.Errorf("address %v: the link-local address made from the MAC cannot be removed", a)
	}
	if err := h.stack.RemoveAddress(n.id, tcpipAddr(a)); err != nil {
		return fmt.Errorf("address %v on %s: %w", a, n.Name(), stackError(err))
	}
	n.prefixes[i] = netip.Prefix{}
	for last := len(n.prefixes) - 1; !n.prefixes[last].IsValid(); last-- {
		n.prefixes = n.prefixes[:last]
	}
	n.addrsChanged()
	h.log.Debug("address removed", "nic", n.Name(), "addr", a)
	return nil
}

// addrsChanged updates GIDs and routes from n.prefixes. host.mu is held.
func (n *Interface) addrsChanged() {
	gids := make([]netip.Addr, len(n.prefixes))
	for i, p := range n.prefixes {
		gids[i] = p.Addr()
	}
	n.gids.Store(&gids)
	registry.changes.Add(1)
	n.host.setRoutes()
}

func (n *Interface) setGateway(gw netip.Addr) error {
	h := n.host
	h.mu.Lock()
	defer h.mu.Unlock()
	if !slices.ContainsFunc(n.prefixes, func(p netip.Prefix) bool { return p.Contains(gw) }) {
		return fmt.Errorf("gateway %v: %s is not in its network, but in %s", gw, n.Name(), n.networks(gw.Is4()))
	}
	if h.owner(gw) != nil {
		return fmt.Errorf("gateway %v: that is the host's own address; must be the router's", gw)
	}
	n.gateways = append(n.gateways, gw)
	h.setRoutes()
	return nil
}

// networks lists the addresses of one IP version for an error. host.mu is held.
func (n *Interface) networks(v4 bool) string {
	var s []string
	for _, p := range n.prefixes {
		if p.IsValid() && p.Addr().Is4() == v4 {
			s = append(s, p.String())
		}
	}
	if len(s) == 0 {
		return "none of IPv4"
	}
	return strings.Join(s, ", ")
}

// has reports whether a is one of the interface's addresses.
func (n *Interface) has(a netip.Addr) bool { return a.IsValid() && slices.Contains(*n.gids.Load(), a) }

// loopback returns the link to the interface's own datagram port. It is a switch with two ports. A
// datagram to the interface itself thus waits in a bounded queue and arrives on another goroutine.
// The MTU is the largest possible, because the MTUs of paths change.
func (n *Interface) loopback() (link.Link, error) {
	n.loopMu.Lock()
	defer n.loopMu.Unlock()
	if n.loopDone {
		return nil, errClosed
	}
	if n.loop[0] == nil {
		sw, err := pipe.New(&pipe.Config{MTU: link.MaxSuperframe})
		if err != nil {
			return nil, err
		}
		in, err := sw.PortWithMAC(n.MAC())
		if err != nil {
			return nil, err
		}
		in.Attach(n.port.handleLoopback)
		n.loop = [2]*pipe.Port{in, sw.Port()}
	}
	return n.loop[1], nil
}

func (n *Interface) closeLoopback() {
	n.loopMu.Lock()
	defer n.loopMu.Unlock()
	n.loopDone = true
	for _, p := range n.loop {
		if p != nil {
			_ = p.Close()
		}
	}
}

var errClosed = errors.New("the host is closed")
