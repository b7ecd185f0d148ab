// Package stream is a link over a stream socket: a cable between two programs, either of which may
// be a virtual machine. It needs no privileges.
//
// Each Ethernet frame follows its length, four bytes in network byte order, as in QEMU's -netdev
// stream and -netdev socket:
//
//	 0         4
//	+---------+---------------------------+---------+----
//	| length  | Ethernet frame, no FCS    | length  | ...
//	+---------+---------------------------+---------+----
//
// A virtual machine connects to a link that listens on /tmp/vm0 with
//
//	-netdev stream,id=net,server=off,addr.type=unix,addr.path=/tmp/vm0 -device virtio-net-pci,netdev=net
//
// One side listens and the other connects. The link has carrier while they are connected. After a
// disconnect the listening side waits for the next client, and the connecting side tries to connect
// again, once a second.
//
// The end of a connection is that of a cable, not of a host: behind it there may be a switch, and a
// virtual machine that goes on. So a link is no [link.Departures]. When the peer's process is
// killed, the port is down at once, and connections fail when their retries have failed.
//
// A stream carries single packets with complete checksums. A link accepts superframes nevertheless,
// and cuts them in Write. That costs a host less than building single packets.
package stream

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/internal/station"
)

// DefaultMTU is the MTU of the zero Config: the default of a virtual machine.
const DefaultMTU = 1500

// Config configures a link. The zero Config has useful defaults.
type Config struct {
	// MTU is the MTU, link.MinMTU to link.MaxSuperframe bytes; 0 means DefaultMTU. The other side
	// needs the same, as the stream does not negotiate it. An MTU of 4200 allows a RoCE path MTU of
	// 4096; QEMU's virtio-net-pci sets it with host_mtu=4200.
	MTU int
	// MAC is the Ethernet address of the host behind the link; nil means a random locally
	// administered address. All links of a Listener have it.
	MAC net.HardwareAddr
	// Listening makes Open wait for the other side to connect, instead of connecting to it.
	// [Listen] always does so.
	Listening bool
}

// check returns the configuration with defaults in place of zero values.
func (cfg *Config) check(text string) (c Config, a address, err error) {
	if cfg != nil {
		c = *cfg
	}
	if err := cmp.Or(station.CheckMTU(c.MTU, link.MaxSuperframe), station.CheckMAC(c.MAC)); err != nil {
		return c, a, fmt.Errorf("stream %s: %w", text, err)
	}
	c.MTU = cmp.Or(c.MTU, DefaultMTU)
	a, err = parse(text)
	return c, a, err
}

// Open opens a link over the socket at address: the path of a unix socket, or "tcp:HOST:PORT".
//
// Without Listening it connects, and fails if no program listens there. After that the other side
// may disconnect, and the link connects again. With Listening it returns at once, and the link has
// no carrier until a client connects. It serves one client at a time, and Close removes the unix
// socket. An existing unix socket on which no program listens is replaced: a killed program has
// left it.
func Open(address string, cfg *Config) (*Link, error) {
	c, a, err := cfg.check(address)
	if err != nil {
		return nil, err
	}
	if c.Listening {
		l, err := a.listen()
		if err != nil {
			return nil, err
		}
		return newLink(address, &c, newAcceptor(l), nil), nil
	}
	d := &dialer{address: a}
	conn, err := d.dial(context.Background())
	if err != nil {
		return nil, err
	}
	return newLink(address, &c, d, conn), nil
}

// Listener accepts any number of connections to one address, each as a link of its own.
type Listener struct {
	address string
	config  Config
	l       net.Listener
}

// Listen listens at an address as Open does with Listening. cfg applies to the links that
// Accept returns.
func Listen(address string, cfg *Config) (*Listener, error) {
	c, a, err := cfg.check(address)
	if err != nil {
		return nil, err
	}
	l, err := a.listen()
	if err != nil {
		return nil, err
	}
	return &Listener{address: address, config: c, l: l}, nil
}

// Accept waits for a client. The link's state becomes link.Removed when the other side disconnects.
// After Close, the error wraps net.ErrClosed.
func (l *Listener) Accept() (*Link, error) {
	conn, err := l.l.Accept()
	if err != nil {
		return nil, fmt.Errorf("stream %s: %w", l.address, err)
	}
	c := l.config
	return newLink(l.address, &c, noSource{}, conn), nil
}

// Addr is the listening address.
func (l *Listener) Addr() net.Addr { return l.l.Addr() }

// Close ends Accept and removes the unix socket. Links that Accept has returned stay open.
func (l *Listener) Close() error { return l.l.Close() }

// Link is one end of a stream, and the link of the host at this end. It implements [link.Link].
type Link struct {
	name string
	mac  net.HardwareAddr
	mtu  int

	cancel   context.CancelFunc
	closed   atomic.Bool
	done     chan struct{} // closed when the link's goroutine has ended
	attached chan struct{} // closed when recv is set
	started  atomic.Bool
	recv     link.Receiver
	source   source

	out       atomic.Pointer[writer] // of the present connection; nil: none
	dropped   atomic.Uint64
	malformed atomic.Uint64

	state atomic.Uint32 // a link.State
	mu    sync.Mutex    // held while watch runs
	watch func()
}

var (
	_ link.Link    = (*Link)(nil)
	_ link.Carrier = (*Link)(nil)
)

// newLink returns a link over the connections of source. first is an established connection, or
// nil.
func newLink(address string, c *Config, source source, first net.Conn) *Link {
	if c.MAC == nil {
		c.MAC = station.RandomMAC()
	}
	l := &Link{name: "stream:" + address, mac: c.MAC, mtu: c.MTU, source: source,
		done: make(chan struct{}), attached: make(chan struct{})}
	l.state.Store(uint32(link.NoCarrier))
	var ctx context.Context
	ctx, l.cancel = context.WithCancel(context.Background())
	if first != nil {
		l.connect(first)
	}
	go l.run(ctx, first)
	return l
}

// run serves one connection after the other, until ctx ends or source has no more.
func (l *Link) run(ctx context.Context, conn net.Conn) {
	defer close(l.done)
	for {
		if conn != nil {
			l.serve(ctx, conn)
		}
		var err error
		if conn, err = l.source.next(ctx); err != nil {
			if ctx.Err() == nil {
				l.setState(link.Removed)
			}
			return
		}
		l.connect(conn)
	}
}

func (l *Link) connect(conn net.Conn) {
	l.out.Store(newWriter(conn, &l.dropped))
	l.setState(link.Up)
}

// serve receives from a connection until it ends, and closes it.
func (l *Link) serve(ctx context.Context, conn net.Conn) {
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	select {
	case <-ctx.Done():
	case <-l.attached:
		l.receive(conn)
	}
	out := l.out.Swap(nil)
	_ = conn.Close()
	out.wait()
	if ctx.Err() == nil {
		l.setState(link.NoCarrier)
	}
}

func (l *Link) setState(s link.State) {
	if link.State(l.state.Swap(uint32(s))) == s {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.watch != nil {
		l.watch()
	}
}

// Name is "stream:" and the address.
func (l *Link) Name() string { return l.name }

// MAC is the address of the host at this end.
func (l *Link) MAC() net.HardwareAddr { return l.mac }

// MTU is the configured MTU.
func (l *Link) MTU() int { return l.mtu }

var offloads = link.Offloads{USO: true, TSO: true, Checksum: true}

// Offloads are all offloads: Write cuts superframes and completes checksums.
func (l *Link) Offloads() link.Offloads { return offloads }

// State implements link.Carrier.
func (l *Link) State() link.State { return link.State(l.state.Load()) }

// Watch implements link.Carrier.
func (l *Link) Watch(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.watch = f
}

// Dropped returns the number of packets that were dropped because the other side did not read.
func (l *Link) Dropped() uint64 { return l.dropped.Load() }

// Malformed returns the number of invalid lengths received. A length that is too large ends its
// connection, because the next frame's position is unknown.
func (l *Link) Malformed() uint64 { return l.malformed.Load() }

// Attach implements link.Link. Earlier frames are read from the connection now.
func (l *Link) Attach(recv link.Receiver) {
	if l.started.Swap(true) {
		if l.closed.Load() {
			return
		}
		panic(l.name + ": Attach called twice: a link serves one host")
	}
	l.recv = recv
	close(l.attached)
}

// Write implements link.Link. It never waits: while the other side does not read, a few megabytes
// are queued and further frames dropped. Without carrier all frames are dropped.
func (l *Link) Write(frames []link.Frame) (int, error) {
	if l.closed.Load() {
		return 0, fmt.Errorf("%s: %w", l.name, net.ErrClosed)
	}
	for i := range frames {
		if err := frames[i].Validate(l.mtu, offloads); err != nil {
			l.send(frames[:i])
			return i, fmt.Errorf("%s: %w", l.name, err)
		}
	}
	l.send(frames)
	return len(frames), nil
}

func (l *Link) send(frames []link.Frame) {
	if out := l.out.Load(); out != nil && len(frames) > 0 {
		out.send(frames)
	}
}

// Close closes the connection, and removes the unix socket of a link that listened.
func (l *Link) Close() error {
	var err error
	if !l.closed.Swap(true) {
		l.started.Store(true)
		l.cancel()
		err = l.source.close()
	}
	<-l.done
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}
