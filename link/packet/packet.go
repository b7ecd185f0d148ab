// Package packet opens a packet socket (AF_PACKET) as a link on an existing network interface, such
// as an Ethernet card or one end of a veth pair. Linux only.
//
// By default the host behind the link has its own MAC address, and the interface becomes
// promiscuous. The machine and the host then cannot reach each other over that interface. With the
// interface's MAC ([Config.InterfaceMAC]) both receive every frame. The kernel's stack then still
// answers ARP, ICMP and TCP for the interface's IP addresses, and would reset the host's TCP
// connections. Give the host an IP address that the machine does not have.
package packet

import (
	"cmp"
	"fmt"
	"net"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/internal/station"
)

// Config configures a link. The zero Config has useful defaults.
type Config struct {
	// MAC is the Ethernet address of the host behind the link: a unicast address. Nil means a
	// random locally administered address. Where the medium admits only the interface's own address
	// (most wireless and cloud networks), use InterfaceMAC.
	MAC net.HardwareAddr
	// InterfaceMAC makes the host share the interface's address with the kernel's stack; see the
	// package documentation. It excludes MAC.
	InterfaceMAC bool
	// Wait is how the link's own goroutine waits for frames.
	Wait link.Wait
	// Queues is the number of sockets, 1 to MaxQueues; 0 means 1. The kernel distributes received
	// frames among them by flow, so that several processors receive concurrently. More than one
	// needs Linux 6.0.
	Queues int
}

type config struct {
	Config
	name string
}

// MaxQueues is the largest number of queues that Open accepts: 16.
const MaxQueues = station.MaxQueues

// Open opens a packet socket on the interface of this name in the network namespace of the calling
// thread. It needs CAP_NET_RAW. The link has the interface's MTU and state. With nil, cfg
// is the zero Config.
func Open(name string, cfg *Config) (*Link, error) {
	c := config{name: name}
	if cfg != nil {
		c.Config = *cfg
	}
	err := cmp.Or(station.CheckMAC(c.MAC), station.CheckWait(c.Wait), station.CheckQueues(c.Queues))
	if err == nil && c.InterfaceMAC && c.MAC != nil {
		err = fmt.Errorf("MAC %v and InterfaceMAC: only one is allowed", c.MAC)
	}
	if err != nil {
		return nil, fmt.Errorf("packet %s: %w", name, err)
	}
	c.Queues = max(c.Queues, 1)
	if c.MAC == nil && !c.InterfaceMAC {
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
