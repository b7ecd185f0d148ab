package kernel

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/softrnic/softrnic/stack"
	"github.com/softrnic/softrnic/stack/kernel/internal/inlet"
)

const (
	ethLen = 14 // what a packet has more on the wire, for the counters

	// outlets is how many source ports an address has for what it sends. Each is a socket. They are for routers and receive
	// queues to spread flows by.
	outlets = 8
)

// patience is how long a sender waits for room in a socket that is full: with the QP locked, so that this must end. With the
// 425,984 bytes that an unprivileged socket has for packets by default, a link of 10 Mbit/s makes room sooner. What finds no room
// by then is lost, and counted, and so is all else until the socket takes something again.
const patience = 250 * time.Millisecond

// birth is that of this program, from which no time is 0. Times are counted from there, as the clock may be set back.
var birth = time.Now().Add(-1)

// port is the interface's datagram port: a socket on UDP port 4791 of each address for what comes in, and a few on other
// ports for what goes out.
type port struct {
	nic      *nic
	in       atomic.Pointer[[]*socket] // of addresses and groups; replaced under mu, never changed
	segments atomic.Bool               // the kernel cuts superframes
	polled   atomic.Int64              // when Poll was called last, as of time.Since(birth); 0: not, or EndPoll was called since
	closed   atomic.Bool
	readers  sync.WaitGroup
	senders  sync.Pool
	counters counters
	shared   *sharedPort                           // nil: the sockets are the host's own
	receiver atomic.Pointer[func(*stack.Datagram)] // nil: nobody receives

	mu  sync.Mutex
	out map[outletKey]*outlet

	joining sync.Mutex
	groups  map[netip.Addr]int // how often each was joined; under joining
}

var _ stack.DatagramPort = (*port)(nil)

type counters struct {
	txFrames, txDatagrams, txErrors  atomic.Uint64
	rxFrames, rxMalformed, rxDropped atomic.Uint64
	sentPackets, sentBytes           atomic.Uint64 // without what loops back, see leaves
	receivedPackets, receivedBytes   atomic.Uint64
	sentMulticast, receivedMulticast atomic.Uint64 // of those packets
}

func (c *counters) snapshot() stack.Counters {
	return stack.Counters{
		TxFrames: c.txFrames.Load(), TxDatagrams: c.txDatagrams.Load(), TxErrors: c.txErrors.Load(),
		RxFrames: c.rxFrames.Load(), RxMalformed: c.rxMalformed.Load(), RxDropped: c.rxDropped.Load(),
		Sent:     stack.Traffic{Packets: c.sentPackets.Load(), Multicast: c.sentMulticast.Load(), Bytes: c.sentBytes.Load()},
		Received: stack.Traffic{Packets: c.receivedPackets.Load(), Multicast: c.receivedMulticast.Load(), Bytes: c.receivedBytes.Load()},
	}
}

// leaves tells whether what goes to an address, or comes from it, leaves the process: where addresses are shared, what is at an
// address of this host may be another process.
func (p *port) leaves(a netip.Addr) bool { return p.shared != nil || !p.nic.has(a) }

// outletKey says what a socket for sending is for: paths from an address whose source ports are the same modulo outlets.
type outletKey struct {
	src  netip.Addr
	slot uint16
}

// outlet is where datagrams leave from: a socket, for as long as the machine has the address. If the address comes again, so does
// a socket with the same port, which is in the packets of the paths that there are.
type outlet struct {
	key    outletKey
	port   uint16
	socket atomic.Pointer[outSocket] // nil: the address has gone
	full   atomic.Bool               // the socket took nothing for a while, and has taken nothing since
	paths  int                       // that lead from here; under the port's mu
}

type outSocket struct {
	conn *outConn
	raw  syscall.RawConn
	port uint16
}

func newPort(n *nic) *port {
	p := &port{nic: n, out: map[outletKey]*outlet{}, groups: map[netip.Addr]int{}}
	p.in.Store(new([]*socket))
	p.senders.New = func() any { return newSender(p) }
	return p
}

// add begins to receive what comes to a socket's address or group. It is closed if the port is.
func (p *port) add(in *socket) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed.Load() {
		in.Close()
		return net.ErrClosed
	}
	all := append(slices.Clone(*p.in.Load()), in)
	p.in.Store(&all)
	p.readers.Go(in.Run)
	return nil
}

// remove ends reception at an address or group.
func (p *port) remove(a netip.Addr) {
	if in := p.take(a); in != nil {
		in.Close() // which waits for its reader
	}
}

// take takes a socket from those that are polled, nil if there is none.
func (p *port) take(a netip.Addr) *socket {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := slices.Clone(*p.in.Load())
	i := slices.IndexFunc(all, func(in *socket) bool { return in.Addr() == a })
	if i < 0 {
		return nil
	}
	in := all[i]
	all = slices.Delete(all, i, i+1)
	p.in.Store(&all)
	return in
}

// outlet finds the socket for a path from src, or opens it. Where there are no more ports, the one for reception serves.
func (p *port) outlet(src netip.Addr, srcPort uint16) (*outlet, error) {
	key := outletKey{src, srcPort % outlets}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed.Load() {
		return nil, net.ErrClosed
	}
	o := p.out[key]
	if o == nil || o.socket.Load() == nil {
		s, err := p.newOutSocket(src, 0)
		if err != nil {
			return nil, fmt.Errorf("a socket to send from at %v: %w", src, err)
		}
		o = &outlet{key: key, port: s.port}
		o.socket.Store(s)
		p.out[key] = o
	}
	o.paths++
	return o, nil
}

func (p *port) newOutSocket(src netip.Addr, srcPort uint16) (*outSocket, error) {
	udp, _, err := inlet.Bind(p.nic.zoned(netip.AddrPortFrom(src, srcPort)), func(fd uintptr, v4 bool) error {
		setGroupInterface(fd, src, p.nic.index)
		return setSending(fd, v4)
	})
	if err != nil {
		return nil, err
	}
	at := uint16(udp.LocalAddr().(*net.UDPAddr).Port)
	conn, raw, err := newOutConn(udp)
	if err != nil {
		return nil, err
	}
	return &outSocket{conn, raw, at}, nil
}

// leave ends a path from an outlet. One whose address has gone is forgotten with its last path.
func (p *port) leave(o *outlet) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if o.paths--; o.paths == 0 && o.socket.Load() == nil && p.out[o.key] == o {
		delete(p.out, o.key)
	}
}

// closeOutlets closes the sockets of an address that has gone.
func (p *port) closeOutlets(a netip.Addr) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for key, o := range p.out {
		if key.src != a {
			continue
		}
		if s := o.socket.Swap(nil); s != nil {
			_ = s.conn.Close()
		}
		if o.paths == 0 {
			delete(p.out, key)
		}
	}
}

// reopenOutlets gives the paths from an address that has come again their sockets. Where another program has the port by now,
// a path stays without.
func (p *port) reopenOutlets(a netip.Addr) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for key, o := range p.out {
		if key.src == a && o.socket.Load() == nil && !p.closed.Load() {
			if s, err := p.newOutSocket(a, o.port); err == nil {
				o.socket.Store(s)
			}
		}
	}
}

// probe finds out what the kernel can do.
func (p *port) probe() error {
	src := p.nic.addrs()
	if len(src) == 0 {
		return nil // there may be one later
	}
	out, err := p.outlet(src[0], 0)
	if err == nil {
		p.segments.Store(canSegment(out.socket.Load().raw))
		p.leave(out)
	}
	return err
}

// Receive implements [stack.DatagramPort].
func (p *port) Receive(f func(*stack.Datagram)) {
	if f == nil {
		p.receiver.Store(nil)
	} else {
		p.receiver.Store(&f)
	}
	for _, in := range *p.in.Load() {
		in.Do(func() {}) // running calls have ended
	}
	if p.shared != nil {
		p.shared.Wait()
	}
}

// poll receives what has come to each address.
func (p *port) poll() (any bool) {
	p.polled.Store(int64(time.Since(birth)))
	for _, in := range *p.in.Load() {
		if in.Poll() {
			any = true
		}
	}
	if p.shared != nil && p.shared.Poll() {
		any = true
	}
	return any
}

// endPoll has the readers receive again.
func (p *port) endPoll() {
	if p.polled.Swap(0) == 0 {
		return
	}
	for _, in := range *p.in.Load() {
		in.EndPoll()
	}
	if p.shared != nil {
		p.shared.EndPoll()
	}
}

// isPolled tells whether somebody has polled a moment ago, and will again.
func (p *port) isPolled() bool {
	polled := p.polled.Load()
	return polled != 0 && int64(time.Since(birth))-polled < int64(time.Millisecond)
}

func (p *port) close() {
	p.closed.Store(true)
	p.closeSockets()
	if p.shared != nil {
		p.shared.Close()
	}
	p.readers.Wait()
	p.Receive(nil)
}

// closeSockets closes what was opened before the port was closed.
func (p *port) closeSockets() {
	p.mu.Lock()
	for _, o := range p.out {
		if s := o.socket.Load(); s != nil {
			_ = s.conn.Close()
		}
	}
	all := *p.in.Load()
	p.mu.Unlock()
	for _, in := range all {
		in.Close() // which waits for its reader, that may be about to close a path
	}
}
