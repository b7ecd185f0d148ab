// Package packet is a medium of the kernel: a packet socket (AF_PACKET) on an interface that is there already, such as
// one end of a veth pair or an Ethernet card. Linux only.
//
// By default the host behind the link has a MAC address of its own and the interface becomes promiscuous for it; the
// machine and the host are neighbours that cannot hear each other on that interface. With the interface's own address
// ([WithInterfaceMAC]) both get every frame: the kernel's stack answers ARP, ICMP and TCP for the addresses that it
// has, and where the host has the same address it resets the host's TCP connections. Give the host an address that the
// machine has not.
package packet

import (
	"crypto/rand"
	"fmt"
	"net"

	"github.com/softrnic/softrnic/link"
)

// Option changes what Open does.
type Option func(*config)

type config struct {
	name   string
	mac    net.HardwareAddr
	ownMAC bool
	wait   link.Wait
	queues int
}

// WithMAC sets the address of the host behind the link. Without it, the address is drawn at random and locally
// administered. Where the medium admits only the interface's own address (most wireless and cloud networks), use
// WithInterfaceMAC.
func WithMAC(mac net.HardwareAddr) Option {
	return func(c *config) { c.mac, c.ownMAC = mac, false }
}

// WithInterfaceMAC makes the host share the interface's address with the kernel's stack; see the package's remarks.
func WithInterfaceMAC() Option {
	return func(c *config) { c.mac, c.ownMAC = nil, true }
}

// WithWait says how the link's own goroutine waits.
func WithWait(w link.Wait) Option { return func(c *config) { c.wait = w } }

// MaxQueues is the largest number of queues that Open takes.
const MaxQueues = 16

// WithQueues opens n sockets, over which the kernel spreads what arrives by flow, so that several processors receive at
// once. It needs Linux 6.0.
func WithQueues(n int) Option { return func(c *config) { c.queues = n } }

// Open opens a packet socket on the interface of this name in the network namespace of the calling thread. It needs
// CAP_NET_RAW. The interface's MTU and state are the link's.
func Open(name string, opts ...Option) (*Link, error) {
	c := config{name: name, queues: 1}
	for _, o := range opts {
		o(&c)
	}
	if c.mac != nil && (len(c.mac) != 6 || c.mac[0]&1 != 0 || [6]byte(c.mac) == [6]byte{}) {
		return nil, fmt.Errorf("packet %s: MAC %q is not a unicast Ethernet address: give six bytes, the first one even", c.name, c.mac)
	}
	if c.queues < 1 || c.queues > MaxQueues {
		return nil, fmt.Errorf("packet %s: %d queues: give 1 to %d", c.name, c.queues, MaxQueues)
	}
	if c.mac == nil && !c.ownMAC {
		c.mac = make(net.HardwareAddr, 6)
		_, _ = rand.Read(c.mac) // never fails
		c.mac[0] = c.mac[0]&^1 | 2
	}
	return open(&c)
}

// medium is what carries the frames.
type medium interface {
	link.Poller
	Attach(link.Receiver)
	Write([]link.Frame) (int, error)
	Offloads() link.Offloads
	Close() error
}

// carrier knows the interface's state.
type carrier interface {
	link.Carrier
	MTU() int
	Close()
}

// Link is the link of a host on an interface.
type Link struct {
	medium
	carrier carrier
	name    string
	mac     net.HardwareAddr
}

var (
	_ link.Link    = (*Link)(nil)
	_ link.Poller  = (*Link)(nil)
	_ link.Carrier = (*Link)(nil)
)

// Name is the interface's.
func (l *Link) Name() string { return l.name }

// MAC is the address of the host behind the link.
func (l *Link) MAC() net.HardwareAddr { return l.mac }

// MTU is the interface's.
func (l *Link) MTU() int { return l.carrier.MTU() }

// State implements link.Carrier.
func (l *Link) State() link.State { return l.carrier.State() }

// Watch implements link.Carrier.
func (l *Link) Watch(f func()) { l.carrier.Watch(f) }

// Close implements link.Link.
func (l *Link) Close() error {
	l.carrier.Close()
	return l.medium.Close()
}
