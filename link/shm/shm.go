// Package shm is an Ethernet segment between the processes of one machine, in shared memory. It
// needs no privileges and no daemon. Linux only.
//
//	l, err := shm.Open("lab") // each process that opens this name is on the segment
//	host, err := netstack.New(l, &netstack.Config{Addrs: []string{"10.0.0.1/24"}})
//
// Processes may join, leave or be killed at any time. A frame goes to the process that has its
// destination address. A group frame goes to all processes, and a frame to an unknown address goes
// to switches (see [Config.Switch]). No two processes have the same address: each is claimed by a
// lock on a file, which ends with its process (see [Config.Claims] and [Config.Pick]). Superframes
// are not cut.
//
// Between two hosts of package netstack, RoCE packets are built and read in the shared memory
// ([link.InPlace]). The sender and the receiver each copy a payload once, and packets have no
// ICRC. Hosts behind a wrapper, such as capture or impair, exchange complete packets.
//
// # Access
//
// A segment is a directory (see [Config.Directory]) with mode 0700: it is for the processes of one
// user and of root. Data that another process writes into the memory is trusted no more than a
// packet.
//
// # Limits
//
// A process has at most 256 peers on its segment, and shares two rings with each (see
// [Config.Ring]). All processes on a segment should have the same MTU. Write never waits: frames
// that do not fit into a slow receiver's ring are queued up to a bound. Beyond it they are lost and
// counted, as in a switch.
package shm

import (
	"cmp"
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

// DefaultMTU leaves room for RoCE packets of the largest path MTU, 4096, with all headers.
const DefaultMTU = 4200

// DefaultRing is the size of each ring, in bytes. Each pair of processes has two.
const DefaultRing = 4 << 20

// Config configures a link. The zero Config has useful defaults.
type Config struct {
	// Directory is the parent of the segments' directories, and is created if missing; "" means
	// [DefaultDirectory].
	Directory string
	// MTU is the MTU, link.MinMTU to link.MaxSuperframe bytes; 0 means DefaultMTU. All processes on
	// a segment should have the same.
	MTU int
	// MAC is the Ethernet address of the host behind the link; nil means a random locally
	// administered address.
	MAC net.HardwareAddr
	// Ring is the size in bytes of each ring that this process creates, one for each peer, to receive
	// frames. It is a power of two from 256 KiB to 64 MiB; 0 means DefaultRing.
	Ring int
	// Switch makes the link a port of a switch: it receives frames to addresses that no process on
	// the segment has.
	Switch bool
	// Claims are names, such as IP addresses, that are claimed until the link is closed or the process
	// ends. If another process on the segment has claimed one of them, Open's error wraps
	// [ErrClaimed]. Each process always claims its Ethernet address.
	Claims []string
	// Pick, if not nil, is a list: it returns the entry with number i, from 0 on, and ok is false
	// after the last. Open claims the first name of the list that is not claimed and whose Ethernet
	// address is not either, and uses that address. Link.Picked returns the number.
	Pick func(i int) (claim string, mac net.HardwareAddr, ok bool)
	// Logger logs, at level warn, why the link refuses a process; nil logs nothing.
	Logger *slog.Logger
}

type config struct {
	dir  string // of the segment
	mtu  int
	mac  net.HardwareAddr // nil: drawn at random
	ring int
	log  *slog.Logger // nil: no log

	claims   []string
	isSwitch bool
	pick     func(i int) (claim string, mac net.HardwareAddr, ok bool)
	picked   int
}

// ErrClaimed is wrapped by an error if another process on the segment has claimed a name.
var ErrClaimed = errors.New("in use by another process on the segment")

// DefaultDirectory returns softrnic in $XDG_RUNTIME_DIR. If that is not set, it returns
// /run/softrnic-0 for root, and for others softrnic-UID in the directory for temporary files.
func DefaultDirectory() string { return userdir.Default() }

// maxName limits a segment's name, because the path of a unix socket is short and also has a
// directory.
const maxName = 32

// newConfig checks the name of a segment and its configuration.
func newConfig(name string, cfg *Config) (*config, error) {
	if name == "" || len(name) > maxName || strings.ContainsAny(name, "/\x00") || name[0] == '.' {
		return nil, fmt.Errorf("shm: %q is not a segment name: must be 1 to %d characters without '/' that do not begin with '.'",
			name, maxName)
	}
	if cfg == nil {
		cfg = &Config{}
	}
	n := cmp.Or(cfg.Ring, DefaultRing)
	err := cmp.Or(station.CheckMTU(cfg.MTU, link.MaxSuperframe), station.CheckMAC(cfg.MAC))
	switch {
	case err != nil:
	case n < ring.MinLen || n > ring.MaxLen || n&(n-1) != 0:
		err = fmt.Errorf("field Ring %d: must be a power of two from %d to %d, or 0 for %d", n, ring.MinLen, ring.MaxLen, DefaultRing)
	case cfg.Pick != nil && cfg.MAC != nil:
		err = fmt.Errorf("MAC %v and Pick, which has addresses of its own: only one is allowed", cfg.MAC)
	}
	if err != nil {
		return nil, fmt.Errorf("shm %s: %w", name, err)
	}
	return &config{dir: filepath.Join(cmp.Or(cfg.Directory, DefaultDirectory()), "shm-"+name), mtu: cmp.Or(cfg.MTU, DefaultMTU),
		mac:  cfg.MAC,
		ring: n, log: cfg.Logger, claims: cfg.Claims, isSwitch: cfg.Switch, pick: cfg.Pick}, nil
}

// medium carries the frames.
type medium interface {
	link.Poller
	link.InPlace
	link.Departures
	Attach(link.Receiver)
	Write([]link.Frame) (int, error)
	Close() error
	Peers() []net.HardwareAddr
	Dropped() uint64
	Malformed() uint64
	Arrivals() ([]byte, error)
}

// Link is a process's membership in a segment, and the link of a host. It implements [link.Link].
// Peers returns the addresses of the other processes. Dropped is the number of frames that were
// lost because a peer was too slow. Malformed is the number of received frames with contradictory
// fields, plus the number of corrupt rings. Arrivals returns memory in which C code sees when to
// call Poll: see [ring.Group.Arrivals].
type Link struct {
	medium
	name   string
	mac    net.HardwareAddr
	mtu    int
	picked int
}

var (
	_ link.Link    = (*Link)(nil)
	_ link.Poller  = (*Link)(nil)
	_ link.InPlace = (*Link)(nil)

	_ link.Departures = (*Link)(nil)
)

// Open joins the segment of this name, and creates it if needed. When it returns, the link is
// connected with all processes that were present and answered within a second. Others may join and
// leave later. With nil, cfg is the zero Config. After Close, Write's error wraps net.ErrClosed.
func Open(name string, cfg *Config) (*Link, error) {
	c, err := newConfig(name, cfg)
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

// Picked is the number that Config.Pick has claimed.
func (l *Link) Picked() int { return l.picked }

// MAC is the address of the host behind the link.
func (l *Link) MAC() net.HardwareAddr { return l.mac }

// MTU is the configured MTU.
func (l *Link) MTU() int { return l.mtu }

// Offloads are all offloads, because frames are not converted.
func (l *Link) Offloads() link.Offloads { return ring.Offloads }
