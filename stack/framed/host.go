// Package framed has a stack's RoCE packets pass a link as Ethernet frames, where the stack itself has no link: what wraps a
// link, as packages capture and impair do, then wraps the datagram port of package kernel.
//
//	host, err := framed.New(sockets, func(l link.Link) (link.Link, error) { return capture.Create(l, "roce.pcapng") })
//
// The stack must give datagrams the IPv4 identifications that package kernel gives them: 0, and 0, 1, 2, … to those of one
// superframe. Frames have the IP and UDP headers that the ICRC covers, with checksums that are computed here, and Ethernet addresses that are
// made up where the stack does not know them. Streams pass as if the package were not there.
package framed

import (
	"errors"
	"fmt"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/stack"
)

// Stack is a network stack with one interface.
type Stack interface {
	stack.Network
	Close() error
}

// Host is a [Stack] whose datagrams pass a link.
type Host struct {
	Stack
	nic  *nic
	link link.Link
}

var _ Stack = (*Host)(nil)

// Option changes what New makes.
type Option func(*port)

// Singly has each datagram be a frame of its own. It is for links that cut superframes into packets before they pass them on:
// the sockets of package kernel give a packet that they send by itself another IPv4 identification than the same packet
// has in a superframe, and the ICRC covers it.
func Singly() Option { return func(p *port) { p.singly = true } }

// New passes the RoCE packets of s through what wrap makes of a link that leads to it. wrap closes the link that it was given
// if it fails. The host owns s from then on, and closes it with itself; if New fails, it is closed.
func New(s Stack, wrap func(link.Link) (link.Link, error), opts ...Option) (*Host, error) {
	nics := s.NICs()
	if len(nics) != 1 || nics[0].Datagrams() == nil {
		return nil, errors.Join(fmt.Errorf("framed: a stack of %d interfaces: want one, with a port for RoCE packets", len(nics)), s.Close())
	}
	m := newMedium(nics[0])
	l, err := wrap(m)
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	n := &nic{NIC: nics[0]}
	n.port = newPort(m, l)
	for _, o := range opts {
		o(n.port)
	}
	l.Attach(n.port.deliver)
	return &Host{Stack: s, nic: n, link: l}, nil
}

// NICs implements [stack.Network].
func (h *Host) NICs() []stack.NIC { return []stack.NIC{h.nic} }

// Close closes the link, with what it holds back, and the stack.
func (h *Host) Close() error { return errors.Join(h.link.Close(), h.Stack.Close()) }

// nic is the stack's interface, with another datagram port. Its counters are those of the stack: of what the link has let
// pass.
type nic struct {
	stack.NIC
	port *port
}

// Datagrams implements [stack.NIC].
func (n *nic) Datagrams() stack.DatagramPort {
	if shared, ok := n.NIC.Datagrams().(stack.Shared); ok {
		return sharedPort{n.port, shared}
	}
	return n.port
}

// sharedPort is a port whose addresses other processes have as well.
type sharedPort struct {
	*port
	stack.Shared
}
