// Package packet opens a packet socket (AF_PACKET) as a link on an existing network interface, such
// as an Ethernet card or one end of a veth pair. Linux only.
//
// By default the host behind the link has its own MAC address, and the interface becomes
// promiscuous. The machine and the host then cannot reach each other over that interface. With the
// interface's MAC ([InterfaceMAC]) both receive every frame. The kernel's stack then still answers
// ARP, ICMP and TCP for the interface's IP addresses, and would reset the host's TCP connections.
// Give the host an IP address that the machine does not have.
package packet

import (
	"fmt"
	"net"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/internal/station"
)

// Option configures [Open]. Open returns an error if an option's argument is out of bounds.
type Option func(*config) error

type config struct {
	station.Config
	name   string
	ownMAC bool // the MAC is the interface's
}

// MAC sets the Ethernet address of the host behind the link: a unicast address. The default is a
// random locally administered address. Where the medium admits only the interface's own address
// (most wireless and cloud networks), use InterfaceMAC.
func MAC(mac net.HardwareAddr) Option {
	return func(c *config) error {
		c.ownMAC = false
		return c.SetMAC(mac)
	}
}

// InterfaceMAC makes the host share the interface's address with the kernel's stack; see the
// package documentation.
func InterfaceMAC() Option {
	return func(c *config) error {
		c.MAC, c.ownMAC = nil, true
		return nil
	}
}

// Wait sets how the link's own goroutine waits for frames.
func Wait(w link.Wait) Option {
	return func(c *config) error { return c.SetWait(w) }
}

// MaxQueues is the largest number of queues that Open accepts: 16.
const MaxQueues = station.MaxQueues

// Queues opens n sockets, 1 to MaxQueues. The kernel distributes received frames among them by
// flow, so that several processors receive concurrently. More than one needs Linux 6.0. The default
// is 1.
func Queues(n int) Option {
	return func(c *config) error { return c.SetQueues(n) }
}

// Open opens a packet socket on the interface of this name in the network namespace of the calling
// thread. It needs CAP_NET_RAW. The link has the interface's MTU and state.
func Open(name string, opts ...Option) (*Link, error) {
	c := config{name: name, Config: station.Config{Queues: 1}}
	for _, o := range opts {
		if err := o(&c); err != nil {
			return nil, fmt.Errorf("packet %s: %w", name, err)
		}
	}
	if c.MAC == nil && !c.ownMAC {
		c.MAC = station.RandomMAC()
	}
	return open(&c)
}

// medium carries the frames.
type medium interface {
	link.Poller
	Attach(link.Receiver)
	Write([]link.Frame) (int, error)
	Offloads() link.Offloads
	Close() error
}

// carrier follows the interface's state.
type carrier interface {
	link.Carrier
	MTU() int
	Close()
}

// Link is the link of a host on an interface. It implements [link.Link].
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

// Name is the interface's name.
func (l *Link) Name() string { return l.name }

// MAC is the address of the host behind the link.
func (l *Link) MAC() net.HardwareAddr { return l.mac }

// MTU is the interface's MTU.
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
