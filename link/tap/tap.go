// Package tap opens a kernel TAP interface as a link. The kernel receives the link's frames on the
// interface, as if from a cable, and passes them to its network stack or to the interface's bridge.
//
// The host behind the link is a neighbour of the machine and has its own MAC address. On Linux, UDP
// and TCP superframes pass to other TAP interfaces and through bridges uncut, in both directions.
// On macOS (with a tuntap driver) and Windows (with tap0901) the link carries single packets, and
// the interface must be configured beforehand.
package tap

import (
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/internal/station"
)

// MaxMTU is the largest MTU of the kernel's TAP, in bytes.
const MaxMTU = link.MaxSuperframe - link.EthernetHeaderLen

// Option configures [Open]. Open returns an error if an option's argument is out of bounds.
type Option func(*config) error

type config struct {
	station.Config
	name   string
	mtu    int // 0: unchanged
	bridge string
	plain  bool
}

// MTU sets the MTU, link.MinMTU to MaxMTU bytes, of an interface that Open creates; an existing
// interface must have it. Without this option Open accepts an existing interface with any MTU, and
// a new one gets 1500, which allows a RoCE path MTU of 1024. An MTU of 4200 allows a path MTU of
// 4096.
func MTU(n int) Option {
	return func(c *config) error {
		c.mtu = n
		return station.CheckMTU(n, MaxMTU)
	}
}

// MAC sets the Ethernet address of the host behind the link: a unicast address that differs from
// the interface's. The default is a random locally administered address.
func MAC(mac net.HardwareAddr) Option {
	return func(c *config) error { return c.SetMAC(mac) }
}

// Bridge adds an interface that Open creates to the bridge of this name, which must exist. An
// existing interface must be in it. Linux only.
func Bridge(name string) Option {
	return func(c *config) error {
		if name == "" {
			return errors.New("the bridge's name is empty: omit the option for an interface in no bridge")
		}
		c.bridge = name
		return nil
	}
}

// NoOffloads opens the interface without superframes and partial checksums: each frame is one
// packet with complete checksums. Systems other than Linux always do so.
func NoOffloads() Option {
	return func(c *config) error {
		c.plain = true
		return nil
	}
}

// Wait sets how the link's own goroutine waits for frames. Linux only; other systems always wait
// for events.
func Wait(w link.Wait) Option {
	return func(c *config) error { return c.SetWait(w) }
}

// MaxQueues is the largest number of queues that Open accepts: 16.
const MaxQueues = station.MaxQueues

// Queues opens n queues, 1 to MaxQueues. The kernel distributes received frames among them by flow,
// so that several processors receive concurrently. Linux only; an existing interface must have been
// created with multi_queue. The default is 1.
func Queues(n int) Option {
	return func(c *config) error { return c.SetQueues(n) }
}

// Open attaches to the TAP interface of this name, or creates it, in the network namespace of the
// calling thread. Close removes an interface that Open created. An existing interface is never
// modified: it must be up, and have the MTU and the bridge that the options name. Creating an
// interface needs CAP_NET_ADMIN; attaching to one that root created for this user does not.
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
		return fmt.Errorf("tap: %q is not an interface name: must be 1 to 15 characters without '/', ':', '%%' and spaces", name)
	}
	return nil
}

// check checks the combination of options; each option has checked its own argument.
func (c *config) check() error {
	if c.Queues > 1 && c.plain {
		return fmt.Errorf("tap %s: %d queues: without offloads there is only 1", c.name, c.Queues)
	}
	return nil
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
