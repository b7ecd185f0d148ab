// Package framed passes a stack's RoCE packets through a link as Ethernet frames, for a stack that
// has no link itself. Wrappers of links, such as packages capture and impair, can then wrap the
// datagram port of package kernel.
//
//	host, err := framed.New(sockets, func(l link.Link) (link.Link, error) { return capture.Create(l, "roce.pcapng") })
//
// The stack must use the IPv4 identifications of package kernel: 0 for a single datagram, and 0, 1,
// 2, … for those of one superframe. Frames have the IP and UDP headers that the ICRC covers, and
// checksums that are computed here. Unknown Ethernet addresses are invented. Streams bypass the
// package.
package framed

import (
	"errors"
	"fmt"
	"sync"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/clock"
	"github.com/softrnic/softrnic/stack"
)

// Stack is a network stack with one interface.
type Stack interface {
	stack.Network
	stack.FamilyListener
	Close() error
}

// Host is a [Stack] whose datagrams pass a link.
type Host struct {
	Stack
	nic  *nic
	link link.Link
}

var _ Stack = (*Host)(nil)

// Option configures New.
type Option func(*port)

// SingleDatagramFrames makes each datagram a frame of its own. Links that cut superframes into
// packets need it. For a single packet, the sockets of package kernel use another IPv4
// identification than for the same packet in a superframe, and the ICRC covers the identification.
func SingleDatagramFrames() Option { return func(p *port) { p.singleDatagram = true } }

// New passes the RoCE packets of s through a link. wrap creates that link around a link to s. If
// wrap fails, it closes the link that it was given. The host owns s, and Close closes it. If New
// fails, it closes s.
func New(s Stack, wrap func(link.Link) (link.Link, error), opts ...Option) (*Host, error) {
	nics := s.NICs()
	if len(nics) != 1 || nics[0].Datagrams() == nil {
		err := fmt.Errorf("framed: the stack has %d interfaces: want one, with a port for RoCE packets", len(nics))
		return nil, errors.Join(err, s.Close())
	}
	m := newMedium(nics[0])
	l, err := wrap(m)
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	n := &nic{NIC: nics[0], link: l}
	n.port = newPort(m, l)
	for _, o := range opts {
		o(n.port)
	}
	l.Attach(n.port.deliver)
	return &Host{Stack: s, nic: n, link: l}, nil
}

// NICs implements [stack.Network].
func (h *Host) NICs() []stack.NIC { return []stack.NIC{h.nic} }

// Clock implements [stack.Clocked].
func (h *Host) Clock() clock.Clock { return stack.ClockOf(h.Stack) }

// Close closes the link, which drops delayed packets, and the stack.
func (h *Host) Close() error { return errors.Join(h.link.Close(), h.Stack.Close()) }

// nic is the stack's interface with another datagram port. Its counters are the stack's, which
// count the packets that have passed the link.
type nic struct {
	stack.NIC
	port *port
	link link.Link

	mu    sync.Mutex // held during calls of watch
	watch func(stack.Change)
	down  bool // as last reported
}

// MTU implements [stack.NIC]. The link may lower it.
func (n *nic) MTU() int { return min(n.NIC.MTU(), n.link.MTU()) }

// State implements [stack.NIC]. The link may have lost its carrier.
func (n *nic) State() stack.LinkState {
	if s := n.NIC.State(); s != stack.LinkUp {
		return s
	}
	return link.StateOf(n.link)
}

// Watch implements [stack.NIC].
func (n *nic) Watch(f func(stack.Change)) {
	n.mu.Lock()
	n.watch = f
	n.mu.Unlock()
	n.NIC.Watch(f)
	link.Watch(n.link, n.linkChanged)
}

// linkChanged reports a change of the link's carrier.
func (n *nic) linkChanged() {
	n.mu.Lock()
	defer n.mu.Unlock()
	down := link.StateOf(n.link) != link.Up
	switch {
	case down == n.down || n.watch == nil:
	case down:
		n.watch(stack.LinkWentDown)
	default:
		n.watch(stack.LinkCameUp)
	}
	n.down = down
}

// Datagrams implements [stack.NIC].
func (n *nic) Datagrams() stack.DatagramPort {
	if shared, ok := n.NIC.Datagrams().(stack.Shared); ok {
		return sharedPort{n.port, shared}
	}
	return n.port
}

// sharedPort is a port whose addresses are shared with other processes.
type sharedPort struct {
	*port
	stack.Shared
}
