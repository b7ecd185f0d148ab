package iwarp

// Set-up, accepting side. A new TCP connection is nobody's until its request has come in whole, and the application has
// answered; until then it is bounded in number, memory and, before the request, in time. (RFC 5044 §7.1.2, RFC 5042 §6.4)

import (
	"container/list"
	"errors"
	"io"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/softrnic/softrnic/rdmatransport/iwarp/mpa"
	"github.com/softrnic/softrnic/stack"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// listener takes connections for one address. What it keeps of peers that nobody knows yet is bounded: maxStarting
// connections whose request has not come, backlog requests that the application has not answered, and setupBuffer bytes
// for each.
type listener struct {
	e       *Engine
	h       rdmacm.Handler
	tcp     net.Listener
	backlog int
	tos     uint8
	done    chan struct{} // closed when no more are accepted

	mu       sync.Mutex
	closed   bool
	starting list.List          // of stack.Stream, oldest first: their request has not come, or is being turned away
	waiting  map[*conn]struct{} // the application has not answered
}

// Listen takes connection requests; see rdmacm.Provider.
func (e *Engine) Listen(attr *rdmacm.ListenAttr, h rdmacm.Handler) (io.Closer, error) {
	if attr.Space != rdmacm.TCP && attr.Space != rdmacm.IB {
		return nil, verbs.Errorf(verbs.ErrNotSupported, "listen", "port space %v over iWARP", attr.Space)
	}
	tcp, err := e.net.ListenStream(attr.Addr)
	if err != nil {
		return nil, err
	}
	tcp.SetReadBuffer(setupBuffer)
	l := &listener{
		e: e, h: h, tcp: tcp, backlog: max(attr.Backlog, 1), tos: attr.TOS, done: make(chan struct{}),
		waiting: map[*conn]struct{}{},
	}
	e.mu.Lock()
	e.listeners[l] = struct{}{}
	e.mu.Unlock()
	go l.accept()
	return l, nil
}

// Close stops listening. Requests that the application has taken, but not answered, stay as they are; of those that are on
// the way to it rdma_cm closes the connections.
func (l *listener) Close() error {
	err := l.tcp.Close()
	<-l.done
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	for at := l.starting.Front(); at != nil; at = at.Next() {
		at.Value.(stack.Stream).Abort()
	}
	l.forget()
	return err
}

// forget takes the listener off the engine's list when nothing comes of it any more. l.mu is held.
func (l *listener) forget() {
	if l.closed && len(l.waiting) == 0 {
		l.e.mu.Lock()
		delete(l.e.listeners, l)
		l.e.mu.Unlock()
	}
}

// end is Close, and closes the connections of all requests that are not answered.
func (l *listener) end() {
	_ = l.Close()
	l.mu.Lock()
	waiting := slices.Collect(maps.Keys(l.waiting))
	l.mu.Unlock()
	for _, c := range waiting {
		c.Close()
	}
}

func (l *listener) accept() {
	defer close(l.done)
	for {
		c, err := l.tcp.Accept()
		if err != nil {
			return
		}
		at := l.enter(c.(stack.Stream))
		l.e.work.Go(func() { l.start(at) })
	}
}

// enter makes a new connection one of those that are starting. Where there are too many the oldest has to go: an honest
// peer's request is a round trip away, while those who hold connections open to keep others out are the ones that last.
func (l *listener) enter(stream stack.Stream) *list.Element {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.starting.Len() >= maxStarting {
		l.starting.Remove(l.starting.Front()).(stack.Stream).Abort()
	}
	return l.starting.PushBack(stream)
}

// start takes a new connection through its request, and stays with it to its end.
func (l *listener) start(at *list.Element) {
	stream := at.Value.(stack.Stream)
	stream.SetTOS(l.tos)
	_ = stream.SetDeadline(time.Now().Add(requestTimeout))
	c, request, err := l.readRequest(stream)
	if err != nil || !l.keep(c, at) {
		l.e.Counters.ConnectsRefused.Add(1)
		if err == nil {
			c.turnAway()
		}
		stream.Abort()
		l.mu.Lock()
		l.starting.Remove(at)
		l.mu.Unlock()
		return
	}
	_ = stream.SetDeadline(time.Time{})
	c.mu.Lock()
	c.emit(request)
	c.mu.Unlock()
	c.attend()
}

// readRequest waits for a stream's request, and makes a connection of it and what the application is told.
func (l *listener) readRequest(stream stack.Stream) (*conn, *rdmacm.ConnEvent, error) {
	f, err := readFrame(stream, false)
	if err != nil {
		return nil, nil, err
	}
	local, remote := addrPort(stream.LocalAddr()), addrPort(stream.RemoteAddr())
	if !remote.IsValid() {
		return nil, nil, net.ErrClosed // it has no addresses any more
	}
	route, err := l.e.route(local.Addr(), remote.Addr())
	if err != nil {
		return nil, nil, err
	}
	c := &conn{e: l.e, h: l.h, listener: l, stream: stream, request: f, route: route, state: requested}
	c.ird, c.ord = MaxReads, MaxReads
	if f.HasEnhanced {
		// What the peer may send is what we answer, and the other way round.
		c.ird, c.ord = depth(f.Enhanced.ORD), depth(f.Enhanced.IRD)
	}
	c.ordLimit = c.ord
	return c, &rdmacm.ConnEvent{
		Type: rdmacm.ConnectRequest, Route: route, LocalPort: local.Port(), RemotePort: remote.Port(),
		Param: rdmacm.ConnParam{
			PrivateData: f.PrivateData, ResponderResources: uint8(c.ird), InitiatorDepth: uint8(c.ord),
		},
	}, nil
}

// keep gives a request one of the places of the backlog, if there is one.
func (l *listener) keep(c *conn, at *list.Element) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || len(l.waiting) >= l.backlog {
		return false
	}
	l.starting.Remove(at)
	l.waiting[c] = struct{}{}
	return true
}

// turnAway rejects a request that has no place. The peer closes first, so that no TIME-WAIT stays here; it is not waited
// for longer than for a request.
func (c *conn) turnAway() {
	f := c.reply(nil)
	f.Rejected, f.Reserved = true, 0
	if writeFrame(c.stream, f) == nil {
		_, _ = c.stream.Read(make([]byte, 1))
	}
}

// attend waits for what comes behind the request. The initiator may send nothing before the reply (RFC 5044 §7.1.2): as
// long as no QP has the stream, it can only be the peer's end, or a peer that is none.
func (c *conn) attend() {
	_ = c.stream.Wait()
	c.mu.Lock()
	q := c.qp
	lost := q == nil && c.state == requested
	if lost {
		c.abandoned()
	}
	c.mu.Unlock()
	switch {
	case q != nil:
		q.read(c)
	case lost:
		c.stream.Abort()
	}
}

// abandoned ends a request that the peer has not waited to see answered. c.mu is held.
func (c *conn) abandoned() {
	c.state, c.left = over, true
	c.answered()
	c.emit(&rdmacm.ConnEvent{Type: rdmacm.ConnectError, Status: -int(syscall.ECONNRESET)})
}

// depth is an IRD or ORD as far as the device has it.
func depth(n uint16) int {
	if n == mpa.NoNegotiation {
		return MaxReads
	}
	return min(int(n), MaxReads)
}

// addrPort is not valid for a stream that has ended.
func addrPort(a net.Addr) netip.AddrPort {
	tcp, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.AddrPort{}
	}
	ap := tcp.AddrPort()
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
}

// answered ends the request's wait for the application, and gives its place in the backlog back.
func (c *conn) answered() {
	if l := c.listener; l != nil {
		l.mu.Lock()
		delete(l.waiting, c)
		l.forget()
		l.mu.Unlock()
	}
}

// Accept implements rdmacm.ProviderConn. The QP has the stream by now, so that what follows the reply is received.
func (c *conn) Accept(p *rdmacm.ConnParam, _ uint32) error {
	if err := c.accept(p); err != nil {
		return err
	}
	if c.e.config.SendFirst {
		c.qp.sendFirst(c)
	}
	return nil
}

func (c *conn) accept(p *rdmacm.ConnParam) error {
	const op = "accept"
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.expect(op, requested); err != nil {
		return err
	}
	if c.qp == nil {
		return verbs.Errorf(verbs.ErrInvalid, op, "no QP has the connection's stream")
	}
	f := c.reply(p.PrivateData)
	if err := writeFrame(c.stream, f); err != nil {
		return err
	}
	c.answered()
	c.state = established
	c.emit(&rdmacm.ConnEvent{Type: rdmacm.Established})
	return nil
}

// reply is the frame that accepts.
func (c *conn) reply(privateData []byte) *mpa.Frame {
	f := &mpa.Frame{
		Reply: true, Markers: c.e.config.Markers, CRC: c.crc(), Revision: c.request.Revision,
		HasEnhanced: c.request.HasEnhanced, PrivateData: privateData,
	}
	if c.request.Revision != mpa.Revision1 && c.request.Reserved&largeRequest != 0 {
		f.Reserved = largeReply
	}
	if !f.HasEnhanced {
		return f
	}
	theirs, ours := &c.request.Enhanced, &f.Enhanced
	ours.IRD, ours.ORD = uint16(c.ird), uint16(c.ord)
	if theirs.ORD == mpa.NoNegotiation {
		ours.IRD = mpa.NoNegotiation
	}
	if theirs.IRD == mpa.NoNegotiation {
		ours.ORD = mpa.NoNegotiation
	}
	if ours.PeerToPeer = theirs.PeerToPeer; ours.PeerToPeer {
		// Any kind will do; one is chosen.
		ours.RDMARead = c.readyReads()
		ours.ZeroLengthSend = theirs.ZeroLengthSend && !theirs.RDMARead && !theirs.RDMAWrite
		ours.RDMAWrite = !ours.RDMARead && !ours.ZeroLengthSend
	}
	return f
}

// readyReads tells whether the ready-to-receive message is to be a READ: then the IRD has room for it.
func (c *conn) readyReads() bool {
	e := &c.request.Enhanced
	return c.request.HasEnhanced && e.PeerToPeer && e.RDMARead && !e.RDMAWrite
}

// crc tells whether CRCs are used: one side's wish is enough.
func (c *conn) crc() bool { return c.request.CRC || !c.e.config.NoCRC }

// Reject implements rdmacm.ProviderConn.
func (c *conn) Reject(privateData []byte) error {
	const op = "reject"
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.qp != nil && !c.left:
		return verbs.Errorf(verbs.ErrInvalid, op, "QP %#x has the connection's stream", c.qp.num)
	case c.state == responded:
		c.giveUp(mpa.ErrLocalCatastrophic)
	default:
		if err := c.expect(op, requested); err != nil {
			return err
		}
		if err := c.refuse(privateData); err != nil {
			return err
		}
		c.answered()
	}
	c.state = over
	return nil
}

// refuse sends the reply that rejects, and closes the stream behind it.
func (c *conn) refuse(privateData []byte) error {
	f := c.reply(privateData)
	f.Rejected, f.Reserved = true, 0
	if err := writeFrame(c.stream, f); err != nil {
		if !errors.Is(err, verbs.ErrInvalid) {
			c.stream.Abort()
		}
		return err
	}
	_ = c.stream.Close()
	return nil
}
