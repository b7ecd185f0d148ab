// Package tap opens a kernel TAP interface as a link. The kernel receives the link's frames on the
// interface, as if from a cable, and passes them to its network stack or to the interface's bridge.
//
// The host behind the link is a neighbour of the machine and has its own MAC address. On Linux, UDP
// and TCP superframes pass to other TAP interfaces and through bridges uncut, in both directions.
// On macOS (with a tuntap driver) and Windows (with tap0901) the link carries single packets, and
// the interface must be configured beforehand.
package tap

import (
	"cmp"
	"fmt"
	"net"
	"strings"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/internal/station"
)

// MaxMTU is the largest MTU of the kernel's TAP, in bytes.
const MaxMTU = link.MaxSuperframe - link.EthernetHeaderLen

// Config configures a link. The zero Config has useful defaults.
type Config struct {
	// MTU is the MTU, link.MinMTU to MaxMTU bytes, of an interface that Open creates. An existing
	// interface must have it. With 0, Open accepts an existing interface with any MTU, and creates an
	// interface with 1500, which allows a RoCE path MTU of 1024. An MTU of 4200 allows a path MTU of
	// 4096.
	MTU int
	// MAC is the Ethernet address of the host behind the link: a unicast address that differs from
	// the interface's. Nil means a random locally administered address.
	MAC net.HardwareAddr
	// Bridge, if not "", is the bridge to which Open adds an interface that it creates. The bridge
	// must exist. An existing interface must be in it. Linux only.
	Bridge string
	// NoOffloads opens the interface without superframes and partial checksums: each frame is one
	// packet with complete checksums. Systems other than Linux always do so.
	NoOffloads bool
	// Wait is how the link's own goroutine waits for frames. Systems other than Linux wait for
	// events, and refuse WaitPoll.
	Wait link.Wait
	// Queues is the number of queues, 1 to MaxQueues; 0 means 1. The kernel distributes received
	// frames among them by flow, so that several processors receive concurrently. More than one queue
	// needs Linux, and excludes NoOffloads. An existing interface must have been created with
	// multi_queue.
	Queues int
}

type config struct {
	Config
	name string
}

// MaxQueues is the largest number of queues that Open accepts: 16.
const MaxQueues = station.MaxQueues

// Open attaches to the TAP interface of this name, or creates it, in the network namespace of the
// calling thread. Close removes an interface that Open created. Open does not modify an existing
// interface, which must be up and have cfg's MTU and bridge. To create an interface, Open needs
// CAP_NET_ADMIN; to attach to one that root created for this user, it does not.
func Open(name string, cfg *Config) (*Link, error) {
	c := config{name: name}
	if cfg != nil {
		c.Config = *cfg
	}
	if err := checkName(name); err != nil {
		return nil, err
	}
	if err := c.check(); err != nil {
		return nil, fmt.Errorf("tap %s: %w", name, err)
	}
	c.Queues = max(c.Queues, 1)
	if c.MAC == nil {
		c.MAC = station.RandomMAC()
	}
	return open(&c)
}

func checkName(name string) error {
	badLength := name == "" || len(name) > 15
	isDirectory := name == "." || name == ".."
	if badLength || isDirectory || strings.ContainsAny(name, "/ \t\n%:") {
		return fmt.Errorf("tap: %q is not an interface name: must be 1 to 15 characters without '/', ':', '%%' and spaces", name)
	}
	return nil
}

// check returns an error for a value that is out of bounds, or that another setting excludes.
func (c *Config) check() error {
	if c.Queues > 1 && c.NoOffloads {
		return fmt.Errorf("fields Queues %d and NoOffloads: without offloads there is only 1", c.Queues)
	}
	return cmp.Or(station.CheckMTU(c.MTU, MaxMTU), station.CheckMAC(c.MAC), station.CheckWait(c.Wait), station.CheckQueues(c.Queues))
}

// medium carries the frames.
type medium interface {
	Attach(link.Receiver)
	Write([]link.Frame) (int, error)
	Close() error
}

// carrier follows the interface's state.
type carrier interface {
	link.Carrier
	MTU() int
	Close()
}

// Link is the link of a host behind a TAP interface. It implements [link.Link].
type Link struct {
	medium
	poller   link.Poller // medium, or nil
	carrier  carrier
	name     string
	mac      net.HardwareAddr
	offloads link.Offloads
}

var (
	_ link.Link    = (*Link)(nil)
	_ link.Poller  = (*Link)(nil)
	_ link.Carrier = (*Link)(nil)
)

// Name is the interface's name.
func (l *Link) Name() string { return l.name }

// MAC is the address of the host behind the link; the interface has another.
func (l *Link) MAC() net.HardwareAddr { return l.mac }

// MTU is the interface's MTU. Only on Linux does it follow changes.
func (l *Link) MTU() int { return l.carrier.MTU() }

// State implements link.Carrier. On Linux the link has no carrier while the interface or its bridge
// is down. Other systems only report an interface that cannot be read as removed.
func (l *Link) State() link.State { return l.carrier.State() }

// Watch implements link.Carrier.
func (l *Link) Watch(f func()) { l.carrier.Watch(f) }

// Close implements link.Link.
func (l *Link) Close() error {
	l.carrier.Close()
	return l.medium.Close()
}

// Offloads are the offloads that the kernel accepted.
func (l *Link) Offloads() link.Offloads { return l.offloads }

// Poll implements link.Poller. It does nothing on systems other than Linux.
func (l *Link) Poll() bool { return l.poller != nil && l.poller.Poll() }

// EndPoll implements link.Poller.
func (l *Link) EndPoll() {
	if l.poller != nil {
		l.poller.EndPoll()
	}
}
