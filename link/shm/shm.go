// Package shm is an Ethernet segment between the processes of one machine, in memory that they share. It needs no privileges
// and no daemon. Linux only.
//
//	l, err := shm.Open("lab") // each process that opens this name is on the segment
//	host, err := netstack.New(l, netstack.Addr("10.0.0.1/24"))
//
// Processes come and go at any time, and may be killed. A frame goes to the process that has its destination address, or to all
// if it is for a group, or to switches (see [Switch]) if nobody has the address. No two processes have the same address: each
// is claimed by a lock on a file, which ends with its process (see [Claim] and [Pick]). Superframes are not cut.
//
// Between two hosts of package netstack, RoCE packets are built and read in the shared memory ([link.Placer]): a payload is
// copied once by the sender and once by the receiver, and has no ICRC. Hosts behind a wrapper, such as capture or impair, send
// and get complete packets.
//
// # Who can join
//
// A segment is a directory (see [Directory]) with mode 0700: it is for the processes of one user, and those of root. What another
// process writes into the memory is trusted no more than a packet is.
//
// # Limits
//
// A process has 256 others on its segment at most, and shares two rings of memory with each (see [Ring]). All on a segment should
// have the same MTU. Write never waits: frames that a slow receiver has no room for are kept up to a bound, and beyond that lost
// and counted, as in a switch.
package shm

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"strings"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/internal/station"
	"github.com/softrnic/softrnic/link/ring"
	"github.com/softrnic/softrnic/link/userdir"
)

// DefaultMTU leaves room for RoCE packets of the largest path MTU, 4096, with all their headers.
const DefaultMTU = 4200

// DefaultRing is the size of each ring, in bytes. There are two for each pair of processes.
const DefaultRing = 4 << 20

// Option changes what [Open] does. Open returns the error of one whose argument is out of its bounds.
type Option func(*config) error

type config struct {
	dir  string // of the segment
	mtu  int
	mac  net.HardwareAddr // nil: drawn at random
	ring int
	log  *slog.Logger // nil: nothing is logged

	claims []string
	sw     bool
	pick   func(i int) (claim string, mac net.HardwareAddr, ok bool)
	picked int
}

// MTU sets the MTU, link.MinMTU to link.MaxSuperframe bytes, which all on a segment should have. The default is DefaultMTU.
func MTU(n int) Option {
	return func(c *config) error {
		c.mtu = n
		return station.CheckMTU(n, link.MaxSuperframe)
	}
}

// MAC sets the Ethernet address of the host behind the link. Without this option a locally administered address is drawn at
// random.
func MAC(mac net.HardwareAddr) Option {
	return func(c *config) error {
		c.mac = mac
		return station.CheckMAC(mac)
	}
}

// Ring sets the size of the rings that others put frames for this process into, in bytes: a power of two from 256 KiB to
// 64 MiB. The default is DefaultRing.
func Ring(n int) Option {
	return func(c *config) error {
		if n < ring.MinLen || n > ring.MaxLen || n&(n-1) != 0 {
			return fmt.Errorf("ring of %d bytes: give a power of two from %d to %d", n, ring.MinLen, ring.MaxLen)
		}
		c.ring = n
		return nil
	}
}

// Switch makes the link a port of a switch: what is for an address that no process on the segment has is for it.
func Switch() Option {
	return func(c *config) error {
		c.sw = true
		return nil
	}
}

// Logger has the link log, at level warn, why it refuses a process.
func Logger(log *slog.Logger) Option {
	return func(c *config) error {
		c.log = log
		return nil
	}
}

// Claim claims names, such as IP addresses, until the link is closed or the process ends. Open's error wraps [ErrClaimed] if
// another process on the segment has claimed one. Each process claims its Ethernet address anyway.
func Claim(names ...string) Option {
	return func(c *config) error {
		c.claims = append(c.claims, names...)
		return nil
	}
}

// Pick claims the first of a row of names that nobody has claimed, and takes the Ethernet address that goes with it: choice
// is asked for them by number, from 0 on, until ok is false. Link.Picked returns the number.
func Pick(choice func(i int) (claim string, mac net.HardwareAddr, ok bool)) Option {
	return func(c *config) error {
		c.pick = choice
		return nil
	}
}

// ErrClaimed is what the error wraps that says that another process on the segment has claimed a name.
var ErrClaimed = errors.New("taken by another process on the segment")

// Directory sets where the directories of segments are; it is made if it is not there. The default is that of [DefaultDirectory].
func Directory(path string) Option {
	return func(c *config) error {
		if path == "" {
			return errors.New("the directory is empty: leave the option out for the default")
		}
		c.dir = path
		return nil
	}
}

// DefaultDirectory is softrnic in $XDG_RUNTIME_DIR. Where that is not set, it is softrnic-UID in the directory for temporary
// files.
func DefaultDirectory() string { return userdir.Default() }

// maxName leaves room for a directory in the path of a unix socket, which is short.
const maxName = 32

// newConfig checks the name of a segment, and makes its directory's name part of the config.
func newConfig(name string, opts []Option) (*config, error) {
	c := &config{mtu: DefaultMTU, ring: DefaultRing}
	if name == "" || len(name) > maxName || strings.ContainsAny(name, "/\x00") || name[0] == '.' {
		return nil, fmt.Errorf("shm: %q is no name of a segment: give 1 to %d characters without '/', that do not begin with '.'", name, maxName)
	}
	for _, o := range opts {
		if err := o(c); err != nil {
			return nil, fmt.Errorf("shm %s: %w", name, err)
		}
	}
	if c.dir == "" {
		c.dir = DefaultDirectory()
	}
	c.dir = filepath.Join(c.dir, "shm-"+name)
	return c, nil
}

// medium is what carries the frames.
type medium interface {
	link.Poller
	link.Placer
	link.Departures
	Attach(link.Receiver)
	Write([]link.Frame) (int, error)
	Close() error
	Peers() []net.HardwareAddr
	Dropped() uint64
	Malformed() uint64
	Arrivals() ([]byte, error)
}

// Link is a process's place on a segment, and the link of a host. It implements [link.Link]. Peers are the addresses of the
// other processes there are now. Dropped is the number of frames that were lost because a peer did not take them, and Malformed
// that of frames received whose fields contradicted each other, and of rings that were given up. Arrivals is memory by which code
// that is not Go's sees when to call Poll: see [ring.Group.Arrivals].
type Link struct {
	medium
	name   string
	mac    net.HardwareAddr
	mtu    int
	picked int
}

var (
	_ link.Link   = (*Link)(nil)
	_ link.Poller = (*Link)(nil)
	_ link.Placer = (*Link)(nil)

	_ link.Departures = (*Link)(nil)
)

// Open joins the segment of this name, and makes it if nobody is on it. When it returns, it has met those who were there and
// answered within a second; others come and go later. The error wraps net.ErrClosed in Write after Close.
func Open(name string, opts ...Option) (*Link, error) {
	c, err := newConfig(name, opts)
	if err != nil {
		return nil, err
	}
	if c.mac == nil {
		c.mac = station.RandomMAC()
	}
	m, err := open(c)
	if err != nil {
		return nil, fmt.Errorf("shm %s: %w", name, err)
	}
	return &Link{medium: m, name: "shm:" + name, mac: c.mac, mtu: c.mtu, picked: c.picked}, nil
}

// Name is "shm:" and the segment's name.
func (l *Link) Name() string { return l.name }

// Picked is the number of what the option Pick has claimed.
func (l *Link) Picked() int { return l.picked }

// MAC is the address of the host behind the link.
func (l *Link) MAC() net.HardwareAddr { return l.mac }

// MTU is that of the options.
func (l *Link) MTU() int { return l.mtu }

// Offloads are all there are: what a peer is given is as it was written.
func (l *Link) Offloads() link.Offloads { return ring.Offloads }
