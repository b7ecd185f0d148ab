// Package tap opens a TAP interface of the kernel as a link. What is sent on the link the kernel receives on the interface, as
// if it had come over a cable, and passes to its own network stack, or to a bridge that the interface is in.
//
// The host behind the link is a neighbour of the machine and has its own MAC address. On Linux UDP and TCP superframes
// cross to other TAP interfaces and through bridges uncut, in both directions. On macOS (with a tuntap driver) and Windows (with
// tap0901) the link carries single packets and the interface must be configured beforehand.
package tap

import (
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/internal/station"
)

// MaxMTU is the largest MTU that the kernel's TAP has, in bytes.
const MaxMTU = link.MaxSuperframe - link.EthernetHeaderLen

// Option changes what [Open] does. Open returns the error of one whose argument is out of its bounds.
type Option func(*config) error

type config struct {
	station.Config
	name   string
	mtu    int // 0: as it is
	bridge string
	plain  bool
}

// MTU sets the MTU, link.MinMTU to MaxMTU bytes, of an interface that Open makes; an interface that exists must have it.
// Without this option Open takes an existing interface with any MTU, and the kernel makes new ones with 1500, which gives a
// RoCE path MTU of 1024. An MTU of 4200 gives a path MTU of 4096.
func MTU(n int) Option {
	return func(c *config) error {
		c.mtu = n
		return station.CheckMTU(n, MaxMTU)
	}
}

// MAC sets the Ethernet address of the host behind the link: a unicast address, and not the interface's own. Without this
// option Open draws a locally administered address at random.
func MAC(mac net.HardwareAddr) Option {
	return func(c *config) error { return c.SetMAC(mac) }
}

// Bridge puts an interface that Open makes into the bridge of this name, which must exist; an interface that exists must be
// in it. Linux only.
func Bridge(name string) Option {
	return func(c *config) error {
		if name == "" {
			return errors.New("the bridge's name is empty: leave the option out for an interface in no bridge")
		}
		c.bridge = name
		return nil
	}
}

// NoOffloads opens the interface without superframes and partial checksums: each frame is one packet with complete
// checksums, as it always is on other systems than Linux.
func NoOffloads() Option {
	return func(c *config) error {
		c.plain = true
		return nil
	}
}

// Wait says how the link's own goroutine waits for frames. Linux only; other systems always wait for events.
func Wait(w link.Wait) Option {
	return func(c *config) error { return c.SetWait(w) }
}

// MaxQueues is the largest number of queues that Open takes: 16.
const MaxQueues = station.MaxQueues

// Queues opens n queues, 1 to MaxQueues, over which the kernel spreads what arrives by flow, so that several processors
// receive at once. Linux only; an interface that exists must have been made with multi_queue. The default is 1.
func Queues(n int) Option {
	return func(c *config) error { return c.SetQueues(n) }
}

// Open attaches to the TAP interface of this name, or makes one, in the network namespace of the calling thread. Close removes
// an interface that Open made. An interface that existed is never changed: it must be up, with the MTU and in the bridge that
// the options name. Making an interface needs CAP_NET_ADMIN; attaching to one that root made for this user does not.
func Open(name string, opts ...Option) (*Link, error) {
	c := config{name: name, Config: station.Config{Queues: 1}}
	if err := checkName(name); err != nil {
		return nil, err
	}
	for _, o := range opts {
		if err := o(&c); err != nil {
			return nil, fmt.Errorf("tap %s: %w", name, err)
		}
	}
	if err := c.check(); err != nil {
		return nil, err
	}
	if c.MAC == nil {
		c.MAC = station.RandomMAC()
	}
	return open(&c)
}

func checkName(name string) error {
	badLength := name == "" || len(name) > 15
	isDirectory := name == "." || name == ".."
	if badLength || isDirectory || strings.ContainsAny(name, "/ \t\n%:") {
		return fmt.Errorf("tap: %q is not an interface name: give 1 to 15 characters without '/', ':', '%%' and spaces", name)
	}
	return nil
}

// check checks the options together; each has checked its own argument.
func (c *config) check() error {
	if c.Queues > 1 && c.plain {
		return fmt.Errorf("tap %s: %d queues: without offloads there is only 1", c.name, c.Queues)
	}
	return nil
}

// medium is what carries the frames.
type medium interface {
	Attach(link.Receiver)
	Write([]link.Frame) (int, error)
	Close() error
}

// carrier knows the interface's state.
type carrier interface {
	link.Carrier
	MTU() int
	Close()
}

// Link is the link of a host behind a TAP interface. It implements [link.Link].
type Link struct {
	medium
	poller   link.Poller // the medium, or nil
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

// Name is the interface's.
func (l *Link) Name() string { return l.name }

// MAC is the address of the host behind the link; the interface's own is another.
func (l *Link) MAC() net.HardwareAddr { return l.mac }

// MTU is the interface's; other systems than Linux do not tell of its changes.
func (l *Link) MTU() int { return l.carrier.MTU() }

// State implements link.Carrier. On Linux a link is without carrier while the interface, or the bridge that it is in, is
// down; on other systems all that is known is that an interface that cannot be read is no more.
func (l *Link) State() link.State { return l.carrier.State() }

// Watch implements link.Carrier.
func (l *Link) Watch(f func()) { l.carrier.Watch(f) }

// Close implements link.Link.
func (l *Link) Close() error {
	l.carrier.Close()
	return l.medium.Close()
}

// Offloads are what the kernel accepted.
func (l *Link) Offloads() link.Offloads { return l.offloads }

// Poll implements link.Poller; only Linux's can be polled.
func (l *Link) Poll() bool { return l.poller != nil && l.poller.Poll() }

// EndPoll implements link.Poller.
func (l *Link) EndPoll() {
	if l.poller != nil {
		l.poller.EndPoll()
	}
}
