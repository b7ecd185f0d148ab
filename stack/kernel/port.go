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

	"github.com/softrnic/softrnic/link/idle"
	"github.com/softrnic/softrnic/stack"
	"github.com/softrnic/softrnic/stack/internal/rxsocket"
)

const (
	ethLen = 14 // Ethernet header, for the counters

	// sourcePorts is the number of source ports for sending from an address. Each is a socket.
	// Routers and receive queues spread flows by source port.
	sourcePorts = 8
)

// sendTimeout limits the time that a sender waits for room in a full socket, because the QP is
// locked meanwhile. By default an unprivileged socket has 425,984 bytes for packets. Even a link of
// 10 Mbit/s makes room within this time. Datagrams that find no room are lost and counted. So are
// later datagrams, until the socket accepts data again.
const sendTimeout = 250 * time.Millisecond

// port is the interface's datagram port. For each address it receives on one socket, on UDP port
// 4791, and sends from a few sockets on other ports.
type port struct {
	nic      *nic
	in       atomic.Pointer[[]*socket] // of addresses and groups; replaced under mu, never modified
	segments atomic.Bool               // the kernel cuts superframes
	watch    idle.SharedWatch
	closed   atomic.Bool
	readers  sync.WaitGroup
	senders  sync.Pool
	counters counters
	shared   *sharedPort                           // nil: the host has sockets of its own
	receiver atomic.Pointer[func(*stack.Datagram)] // nil: no receiver

	mu  sync.Mutex
	out map[sourcePortKey]*sourcePort

	joining sync.Mutex
	groups  map[netip.Addr]int // number of joins; guarded by joining
}

var _ stack.DatagramPort = (*port)(nil)

type counters struct {
	txFrames, txDatagrams, txErrors  atomic.Uint64
	rxFrames, rxMalformed, rxDropped atomic.Uint64
	sentPackets, sentBytes           atomic.Uint64 // without loopback, see leaves
	receivedPackets, receivedBytes   atomic.Uint64
	sentMulticast, receivedMulticast atomic.Uint64 // among those packets
}

// snapshot loads multicast packets before all packets, and these before their bytes. They are
// counted in the opposite order, so that no difference is negative.
func (c *counters) snapshot() stack.Counters {
	return stack.Counters{
		TxFrames: c.txFrames.Load(), TxDatagrams: c.txDatagrams.Load(), TxErrors: c.txErrors.Load(),
		RxFrames: c.rxFrames.Load(), RxMalformed: c.rxMalformed.Load(), RxDropped: c.rxDropped.Load(),
		Sent:     stack.Traffic{Multicast: c.sentMulticast.Load(), Packets: c.sentPackets.Load(), Bytes: c.sentBytes.Load()},
		Received: stack.Traffic{Multicast: c.receivedMulticast.Load(), Packets: c.receivedPackets.Load(), Bytes: c.receivedBytes.Load()},
	}
}

// leaves reports whether datagrams between the host and an address leave this process. With shared
// addresses, another process may have the same address as this host.
func (p *port) leaves(a netip.Addr) bool { return p.shared != nil || !p.nic.has(a) }

// sourcePortKey identifies a socket for sending. Paths from one address share it if their source
// ports are equal modulo sourcePorts.
type sourcePortKey struct {
	src  netip.Addr
	slot uint16
}

// sourcePort is a source port and its socket. The socket exists while the machine has the address.
// If the address is removed and added again, a new socket gets the same port, because the packets
// of existing paths contain it.
type sourcePort struct {
	key    sourcePortKey
	port   uint16
	socket atomic.Pointer[outSocket] // nil: the address was removed
	// The socket was full for sendTimeout, and has accepted no data since.
	full  atomic.Bool
	paths int // paths from this port; guarded by the port's mu
}

type outSocket struct {
	conn *outConn
	raw  syscall.RawConn
	port uint16
}

func newPort(n *nic) *port {
	p := &port{nic: n, out: map[sourcePortKey]*sourcePort{}, groups: map[netip.Addr]int{}}
	p.in.Store(new([]*socket))
	p.senders.New = func() any { return newSender(p) }
	return p
}

// add starts to receive on a socket. It closes the socket if the port is closed.
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
		in.Close() // waits for its reader
	}
}

// take removes a socket from those that are polled. It returns nil if there is none.
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

// sourcePort finds or opens the socket for a path from src.
func (p *port) sourcePort(src netip.Addr, srcPort uint16) (*sourcePort, error) {
	key := sourcePortKey{src, srcPort % sourcePorts}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed.Load() {
		return nil, net.ErrClosed
	}
	o := p.out[key]
	if o == nil || o.socket.Load() == nil {
		s, err := p.newOutSocket(src, 0)
		if err != nil {
			return nil, fmt.Errorf("opening a socket for sending from %v: %w", src, err)
		}
		o = &sourcePort{key: key, port: s.port}
		o.socket.Store(s)
		p.out[key] = o
	}
	o.paths++
	return o, nil
}

func (p *port) newOutSocket(src netip.Addr, srcPort uint16) (*outSocket, error) {
	udp, _, err := rxsocket.Bind(p.nic.zoned(netip.AddrPortFrom(src, srcPort)), func(fd uintptr, v4 bool) error {
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

// leave ends a path's use of a source port. If the address was removed, the source port ends with
// its last path.
func (p *port) leave(o *sourcePort) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if o.paths--; o.paths == 0 && o.socket.Load() == nil && p.out[o.key] == o {
		delete(p.out, o.key)
	}
}

// closeSourcePorts closes the sockets of a removed address.
func (p *port) closeSourcePorts(a netip.Addr) {
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

// reopenSourcePorts opens the sockets of existing paths again, after their address was added again.
// If another program has taken the port, the path stays without a socket.
func (p *port) reopenSourcePorts(a netip.Addr) {
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

// probe tests the kernel's abilities.
func (p *port) probe() error {
	src := p.nic.addrs()
	if len(src) == 0 {
		return nil // an address may be added later
	}
	out, err := p.sourcePort(src[0], 0)
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
		in.Do(func() {}) // waits for running calls
	}
	if p.shared != nil {
		p.shared.Wait()
	}
}

// poll receives pending datagrams of each address.
func (p *port) poll() (any bool) {
	p.watch.Poll()
	if p.shared != nil {
		return p.shared.poll()
	}
	return p.pollSockets()
}

func (p *port) pollSockets() (any bool) {
	for _, in := range *p.in.Load() {
		if in.Poll() {
			any = true
		}
	}
	return any
}

// endPoll makes the readers receive again.
func (p *port) endPoll() {
	if !p.watch.End() {
		return
	}
	for _, in := range *p.in.Load() {
		in.EndPoll()
	}
	if p.shared != nil {
		p.shared.EndPoll()
	}
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

// closeSockets closes sockets that were opened before the port was closed.
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
		in.Close() // waits for its reader, which may be closing a path
	}
}
