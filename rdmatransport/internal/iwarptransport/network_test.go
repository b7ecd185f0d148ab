package iwarptransport_test

// Hosts with TCP connections in memory, so that tests run in virtual time and choose how a stream
// is cut.

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/softrnic/softrnic/stack"
)

// network is a set of hosts that reach each other. Its fields are set before it is used.
type network struct {
	mss       int                 // of streams; 0 is 1460
	buffer    int                 // bytes that a stream holds in one direction; 0 is 1 MiB
	offloaded bool                // streams may send larger pieces
	cut       func(avail int) int // bytes that one Read of a stream returns; nil: all
	noAcks    bool                // sent data is only acknowledged by stream.acknowledge
	// The time by which received data is delayed, as after a retransmission of TCP; nil: none.
	stall func() time.Duration
	// Called with each sent piece of a stream, and may change or abort it; nil does nothing.
	damage func(*stream, []byte)

	mu    sync.Mutex
	hosts map[netip.Addr]*host
	port  uint16
	dials []*stream
}

func (n *network) host(addr string) *host {
	a := netip.MustParseAddr(addr)
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.hosts == nil {
		n.hosts = map[netip.Addr]*host{}
		n.port = 40000
	}
	if n.hosts[a] == nil {
		n.hosts[a] = &host{net: n, addr: a, listeners: map[uint16]*streamListener{}}
	}
	return n.hosts[a]
}

// host implements stack.Network and its only NIC.
type host struct {
	net         *network
	addr        netip.Addr
	unreachable bool                       // does not answer connection attempts
	listeners   map[uint16]*streamListener // protected by net.mu
}

func (h *host) NICs() []stack.NIC                                     { return []stack.NIC{h} }
func (h *host) Name() string                                          { return "mem0" }
func (h *host) MAC() net.HardwareAddr                                 { return net.HardwareAddr{2, 0, 0, 0, 0, 1} }
func (h *host) MTU() int                                              { return 1500 }
func (h *host) Counters() stack.Counters                              { return stack.Counters{} }
func (h *host) State() stack.LinkState                                { return stack.LinkUp }
func (h *host) Watch(func(stack.Change))                              {}
func (h *host) GIDs() []netip.Addr                                    { return []netip.Addr{h.addr} }
func (h *host) Datagrams() stack.DatagramPort                         { return noDatagrams{} }
func (h *host) Frames() stack.FramePort                               { return nil }
func (h *host) Source(netip.Addr) (netip.Addr, bool, error)           { return h.addr, true, nil }
func (h *host) Resolve(context.Context, netip.Addr, netip.Addr) error { return nil }
func (h *host) Join(netip.Addr) error                                 { return errors.ErrUnsupported }
func (h *host) Leave(netip.Addr) error                                { return errors.ErrUnsupported }
func (h *host) Poll() bool                                            { return false }
func (h *host) EndPoll()                                              {}

func (h *host) DialStream(ctx context.Context, laddr, raddr netip.AddrPort) (stack.Stream, error) {
	n := h.net
	n.mu.Lock()
	to := n.hosts[raddr.Addr()]
	n.port++
	local := netip.AddrPortFrom(h.addr, n.port)
	if to != nil && to.unreachable {
		n.mu.Unlock()
		<-ctx.Done()
		return nil, ctx.Err()
	}
	var l *streamListener
	if to != nil {
		l = to.listeners[raddr.Port()]
	}
	n.mu.Unlock()
	if l == nil {
		return nil, syscall.ECONNREFUSED
	}
	a, b := n.pair(local, raddr)
	n.mu.Lock()
	n.dials = append(n.dials, a)
	n.mu.Unlock()
	select {
	case l.conns <- b:
		return a, nil
	case <-l.done:
		return nil, syscall.ECONNREFUSED
	}
}

func (h *host) ListenStream(laddr netip.AddrPort) (stack.StreamListener, error) {
	h.net.mu.Lock()
	defer h.net.mu.Unlock()
	if h.listeners[laddr.Port()] != nil {
		return nil, syscall.EADDRINUSE
	}
	l := &streamListener{host: h, addr: laddr, conns: make(chan *stream, 4096), done: make(chan struct{})}
	h.listeners[laddr.Port()] = l
	return l, nil
}

type streamListener struct {
	host  *host
	addr  netip.AddrPort
	conns chan *stream
	done  chan struct{}
	once  sync.Once

	readBuffer atomic.Int64
}

func (l *streamListener) SetReadBuffer(n int) { l.readBuffer.Store(int64(n)) }

func (l *streamListener) Accept() (net.Conn, error) {
	select {
	case s := <-l.conns:
		s.SetReadBuffer(int(l.readBuffer.Load()))
		return s, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

func (l *streamListener) Addr() net.Addr { return net.TCPAddrFromAddrPort(l.addr) }

func (l *streamListener) Close() error {
	l.once.Do(func() {
		close(l.done)
		l.host.net.mu.Lock()
		delete(l.host.listeners, l.addr.Port())
		l.host.net.mu.Unlock()
	})
	return nil
}

type noDatagrams struct{}

func (noDatagrams) Path(stack.PathAttr) (stack.Path, error) { return nil, errors.ErrUnsupported }
func (noDatagrams) Sender() stack.Sender                    { return nil }
func (noDatagrams) Receive(func(*stack.Datagram))           {}

// stream is one end of a TCP connection in memory.
type stream struct {
	*link
	net           *network
	local, remote net.Addr
	in, out       *direction
	readBy        deadline
	writeBy       deadline
	closed        bool // Close or Abort was called
	pieces        int  // sent
	unacked       int  // sent since the last call of acknowledge

	onRoom func()
	room   chan struct{}
	done   chan struct{}
}

// link is the state common to both ends.
type link struct {
	mu    sync.Mutex
	cond  sync.Cond
	reset bool
}

// direction is the bytes in flight to one end.
type direction struct {
	buf     []byte
	r, w    int
	fin     bool
	bound   int     // bytes that the receiver accepts; 0 is the network's
	waiting *stream // the sender that waits for room
}

func (d *direction) len() int { return d.w - d.r }

// space returns n bytes at the end of d, for which it has room.
func (d *direction) space(n int) []byte {
	if d.w+n > len(d.buf) {
		copy(d.buf, d.buf[d.r:d.w])
		d.r, d.w = 0, d.w-d.r
	}
	if d.w+n > len(d.buf) {
		d.buf = append(d.buf, make([]byte, d.w+n-len(d.buf))...)
	}
	d.w += n
	return d.buf[d.w-n : d.w]
}

type deadline struct {
	timer *time.Timer
	past  bool
	turn  int
}

func (n *network) pair(local, remote netip.AddrPort) (a, b *stream) {
	l := &link{}
	l.cond.L = &l.mu
	x, y := &direction{}, &direction{}
	a = &stream{link: l, net: n, local: net.TCPAddrFromAddrPort(local), remote: net.TCPAddrFromAddrPort(remote),
		in: x, out: y, done: make(chan struct{})}
	b = &stream{link: l, net: n, local: a.remote, remote: a.local, in: y, out: x, done: make(chan struct{})}
	return a, b
}

// LocalNIC implements stack.Stream: no peer is in this process, so all data goes through the
// stream.
func (s *stream) LocalNIC() stack.NIC { return nil }

// limit returns the number of bytes that d can hold.
func (s *stream) limit(d *direction) int {
	switch {
	case d.bound > 0:
		return d.bound
	case s.net.buffer > 0:
		return s.net.buffer
	}
	return 1 << 20
}

func (s *stream) SetReadBuffer(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.in.bound = n
	s.in.wake()
	s.cond.Broadcast()
}

func (s *stream) MSS() int {
	if s.net.mss > 0 {
		return s.net.mss
	}
	return 1460
}

func (s *stream) Offloaded() bool      { return s.net.offloaded }
func (s *stream) SetTOS(uint8)         {}
func (s *stream) LocalAddr() net.Addr  { return s.local }
func (s *stream) RemoteAddr() net.Addr { return s.remote }

// writable returns nil if bytes may be sent.
func (s *stream) writable() error {
	switch {
	case s.closed:
		return net.ErrClosed
	case s.reset:
		return syscall.ECONNRESET
	case s.out.fin:
		return syscall.EPIPE
	}
	return nil
}

func (s *stream) Send(n int, fill stack.PieceWriter) (bool, error) {
	if n <= 0 || n > stack.MaxPiece {
		return false, errors.New("piece of a wrong size")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.writable(); err != nil {
		return false, err
	}
	if d := s.out; d.len() > 0 && d.len()+n > s.limit(d) {
		d.waiting = s
		return false, nil
	}
	b := s.out.space(n)
	if !fill.WritePiece(b) {
		s.out.w -= n
		return false, stack.ErrNotFilled
	}
	if s.net.damage != nil {
		s.net.damage(s, b)
	}
	s.pieces++
	s.unacked++
	s.cond.Broadcast()
	return true, nil
}

func (s *stream) OnRoom(f func()) {
	s.mu.Lock()
	s.onRoom, s.room = f, make(chan struct{}, 1)
	room, done := s.room, s.done
	s.mu.Unlock()
	go func() {
		for {
			select {
			case <-done:
				return
			case <-room:
				f()
			}
		}
	}()
}

// wake notifies the sender that waits for room. The link is locked.
func (d *direction) wake() {
	if s := d.waiting; s != nil && s.room != nil {
		d.waiting = nil
		select {
		case s.room <- struct{}{}:
		default:
		}
	}
}

func (s *stream) Read(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	d := s.in
	for {
		switch {
		case s.closed:
			return 0, net.ErrClosed
		case s.reset:
			return 0, syscall.ECONNRESET
		case s.readBy.past:
			return 0, os.ErrDeadlineExceeded
		case len(b) == 0:
			return 0, nil
		case d.len() > 0:
			n := min(len(b), d.len())
			if s.net.cut != nil {
				n = min(n, max(s.net.cut(d.len()), 1))
			}
			copy(b, d.buf[d.r:d.r+n])
			d.r += n
			if d.len() <= s.limit(d)/2 {
				d.wake()
			}
			s.cond.Broadcast()
			return n, nil
		case d.fin:
			return 0, io.EOF
		}
		s.cond.Wait()
	}
}

func (s *stream) Wait() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		switch d := s.in; {
		case s.readBy.past:
			return os.ErrDeadlineExceeded
		case s.closed, s.reset, d.len() > 0, d.fin:
			if stall := s.net.stall; stall != nil {
				s.mu.Unlock()
				time.Sleep(stall())
				s.mu.Lock()
			}
			return nil
		}
		s.cond.Wait()
	}
}

func (s *stream) Receive(take stack.Consumer) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	d := s.in
	for more := true; more; {
		switch {
		case s.closed:
			return net.ErrClosed
		case s.reset:
			return syscall.ECONNRESET
		case d.len() == 0 && d.fin:
			return io.EOF
		case d.len() == 0:
			return nil
		}
		n := d.len()
		if s.net.cut != nil {
			n = min(n, max(s.net.cut(n), 1))
		}
		more = take.Consume(d.buf[d.r : d.r+n])
		clear(d.buf[d.r : d.r+n]) // like gVisor, which reuses the memory at once
		d.r += n
		if d.len() <= s.limit(d)/2 {
			d.wake()
		}
		s.cond.Broadcast()
	}
	return nil
}

// Unanswered implements stack.Stream. Unless the network has noAcks set, all data is acknowledged
// at once.
func (s *stream) Unanswered() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.net.noAcks {
		return 0
	}
	return s.unacked
}

// CallOnAnswer implements stack.Stream. acknowledge always calls the function.
func (s *stream) CallOnAnswer() {}

// acknowledge simulates an acknowledgement. It returns the number of pieces that were sent before.
func (s *stream) acknowledge() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unacked = 0
	s.room <- struct{}{}
	return s.pieces
}

func (s *stream) Write(b []byte) (n int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(b) > 0 {
		if err := s.writable(); err != nil {
			return n, err
		}
		if s.writeBy.past {
			return n, os.ErrDeadlineExceeded
		}
		room := min(s.limit(s.out)-s.out.len(), len(b))
		if room <= 0 {
			s.cond.Wait()
			continue
		}
		copy(s.out.space(room), b)
		b, n = b[room:], n+room
		s.cond.Broadcast()
	}
	return n, nil
}

func (s *stream) CloseWrite() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.writable(); err != nil {
		return err
	}
	s.out.fin = true
	s.cond.Broadcast()
	return nil
}

func (s *stream) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.out.fin = true
	s.finish()
	return nil
}

func (s *stream) Abort() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reset = true
	s.in.wake()
	s.finish()
}

// finish ends this end. The link is locked.
func (s *stream) finish() {
	if !s.closed {
		s.closed = true
		close(s.done)
		for _, d := range []*deadline{&s.readBy, &s.writeBy} {
			d.turn++
			if d.timer != nil {
				d.timer.Stop()
			}
		}
	}
	s.cond.Broadcast()
}

func (s *stream) SetDeadline(t time.Time) error {
	return errors.Join(s.SetReadDeadline(t), s.SetWriteDeadline(t))
}

func (s *stream) SetReadDeadline(t time.Time) error  { return s.setDeadline(&s.readBy, t) }
func (s *stream) SetWriteDeadline(t time.Time) error { return s.setDeadline(&s.writeBy, t) }

func (s *stream) setDeadline(d *deadline, t time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return net.ErrClosed
	}
	if d.timer != nil {
		d.timer.Stop()
	}
	d.past = false
	d.turn++
	if t.IsZero() {
		return nil
	}
	turn := d.turn
	d.timer = time.AfterFunc(time.Until(t), func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if d.turn == turn {
			d.past = true
			s.cond.Broadcast()
		}
	})
	return nil
}

// open reports whether an end is neither closed nor lost.
func (s *stream) open() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.closed && !s.reset
}
