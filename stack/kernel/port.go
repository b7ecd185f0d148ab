package kernel

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/softrnic/softrnic/stack"
)

const (
	ethLen  = 14 // what a packet has more on the wire, for the counters
	ipv4Len = 20
	ipv6Len = 40
	udpLen  = 8

	// outlets is how many source ports an address has for what it sends. Each is a socket. They are for routers and receive
	// queues to spread flows by.
	outlets = 8

	socketBuffer = 4 << 20 // bytes asked for; the kernel may give less
)

// port is the interface's datagram port: a socket on UDP port 4791 of each address for what comes in, and a few on other
// ports for what goes out.
type port struct {
	nic      *nic
	in       []*inlet
	segments atomic.Bool  // the kernel cuts superframes
	polled   atomic.Int64 // when Poll was called last, in nanoseconds since 1970; 0 after EndPoll
	closed   atomic.Bool
	readers  sync.WaitGroup
	senders  sync.Pool
	counters counters

	mu  sync.Mutex
	out map[outletKey]*outlet
}

var _ stack.DatagramPort = (*port)(nil)

type counters struct {
	txFrames, txDatagrams, txBytes, txErrors  atomic.Uint64
	rxFrames, rxBytes, rxMalformed, rxDropped atomic.Uint64
	sentPackets, sentBytes                    atomic.Uint64 // without what loops back
	receivedPackets, receivedBytes            atomic.Uint64
}

func (c *counters) snapshot() stack.Counters {
	return stack.Counters{
		TxFrames: c.txFrames.Load(), TxDatagrams: c.txDatagrams.Load(), TxBytes: c.txBytes.Load(), TxErrors: c.txErrors.Load(),
		RxFrames: c.rxFrames.Load(), RxBytes: c.rxBytes.Load(), RxMalformed: c.rxMalformed.Load(), RxDropped: c.rxDropped.Load(),
		Sent:     stack.Traffic{Packets: c.sentPackets.Load(), Bytes: c.sentBytes.Load()},
		Received: stack.Traffic{Packets: c.receivedPackets.Load(), Bytes: c.receivedBytes.Load()},
	}
}

// outletKey says what a socket for sending is for: paths from an address whose source ports are the same modulo outlets.
type outletKey struct {
	src  netip.Addr
	slot uint16
}

// outlet is a socket that datagrams leave from.
type outlet struct {
	conn *net.UDPConn
	raw  syscall.RawConn
	port uint16
}

func newPort(n *nic) (*port, error) {
	p := &port{nic: n, out: map[outletKey]*outlet{}}
	p.senders.New = func() any { return newSender(p) }
	for _, a := range n.addrs() {
		in, err := p.newInlet(a)
		if err != nil {
			p.closeSockets()
			return nil, err
		}
		p.in = append(p.in, in)
	}
	p.segments.Store(canSegment(p.in[0].raw))
	for _, in := range p.in {
		p.readers.Go(in.run)
	}
	return p, nil
}

// bind opens a socket at one of the host's addresses; port 0 is one that the kernel chooses.
func (n *nic) bind(a netip.Addr, port uint16, set func(fd uintptr, v4 bool) error) (*net.UDPConn, syscall.RawConn, error) {
	network := "udp6"
	if a.Is4() {
		network = "udp4"
	}
	cfg := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var failed error
		err := c.Control(func(fd uintptr) { failed = set(fd, a.Is4()) })
		return errors.Join(err, failed)
	}}
	c, err := cfg.ListenPacket(context.Background(), network, n.zoned(netip.AddrPortFrom(a, port)).String())
	if err != nil {
		return nil, nil, err
	}
	conn := c.(*net.UDPConn)
	raw, err := conn.SyscallConn()
	if err != nil {
		_ = conn.Close()
		return nil, nil, err
	}
	return conn, raw, nil
}

// outlet finds the socket for a path from src, or opens it. Where there are no more ports, the one for reception serves.
func (p *port) outlet(src netip.Addr, srcPort uint16) (*outlet, error) {
	key := outletKey{src, srcPort % outlets}
	p.mu.Lock()
	defer p.mu.Unlock()
	if o := p.out[key]; o != nil {
		return o, nil
	}
	if p.closed.Load() {
		return nil, net.ErrClosed
	}
	conn, raw, err := p.nic.bind(src, 0, func(fd uintptr, v4 bool) error { return setSending(fd, v4) })
	if err != nil {
		return nil, fmt.Errorf("a socket to send from at %v: %w", src, err)
	}
	o := &outlet{conn: conn, raw: raw, port: uint16(conn.LocalAddr().(*net.UDPAddr).Port)}
	p.out[key] = o
	return o, nil
}

// Receive implements [stack.DatagramPort].
func (p *port) Receive(f func(*stack.Datagram)) {
	for _, in := range p.in {
		in.mu.Lock()
		in.receiver = f
		in.mu.Unlock()
	}
}

// poll receives what has come to each address.
func (p *port) poll() (any bool) {
	p.polled.Store(time.Now().UnixNano())
	for _, in := range p.in {
		if in.poll() {
			any = true
		}
	}
	return any
}

// isPolled tells whether somebody has polled a moment ago, and will again.
func (p *port) isPolled() bool {
	return time.Now().UnixNano()-p.polled.Load() < int64(time.Millisecond)
}

func (p *port) close() {
	p.closed.Store(true)
	p.closeSockets()
	p.readers.Wait()
	p.Receive(nil)
}

func (p *port) closeSockets() {
	for _, in := range p.in {
		_ = in.conn.Close()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, o := range p.out {
		_ = o.conn.Close()
	}
}
