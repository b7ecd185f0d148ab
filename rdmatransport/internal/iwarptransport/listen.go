package iwarptransport

// Set-up, responder. A connection request may come from an attacker. Until the application has
// answered it, its connection is therefore limited: in number, in memory, and in the time until the
// request arrives (RFC 5044 §7.1.2, RFC 5042 §6.4).

import (
	"context"
	"errors"
	"io"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/softrnic/softrnic/rdmatransport/mpa"
	"github.com/softrnic/softrnic/stack"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/admission"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// listener accepts connections for one address. At most maxStarting connections have not sent their
// request: those that gate displaces are reset. At most backlog requests wait for the application.
// Each has a receive buffer of setupBuffer bytes.
type listener struct {
	e       *Engine
	h       rdmacm.Handler
	tcp     net.Listener
	backlog int
	tos     uint8
	done    chan struct{} // closed when the listener is closed
	gate    *admission.Gate[netip.Addr]
	ctx     context.Context // of those that wait for a place; ends with Close
	cancel  context.CancelFunc

	mu       sync.Mutex
	closed   bool
	starting map[stack.Stream]struct{} // their request has not arrived, or is rejected without a report
	waiting  map[*conn]struct{}        // requests not yet answered by the application

	sequencer sequencer[netip.Addr] // requests that are not reported yet, by source address
}

// Listen accepts connection requests; see rdmacm.Provider.
func (e *Engine) Listen(attr *rdmacm.ListenAttr, h rdmacm.Handler) (io.Closer, error) {
	if attr.PortSpace != rdmacm.TCP && attr.PortSpace != rdmacm.IB {
		return nil, verbs.Errorf(verbs.ErrNotSupported, "listen", "port space %v over iWARP", attr.PortSpace)
	}
	listen := e.net.ListenStream
	if f, ok := e.net.(stack.FamilyListener); ok && attr.Addr.Addr().IsValid() {
		listen = f.ListenFamily
	}
	tcp, err := listen(attr.Addr)
	if err != nil {
		return nil, err
	}
	tcp.SetReadBuffer(setupBuffer)
	l := &listener{
		e: e, h: h, tcp: tcp, backlog: max(attr.Backlog, 1), tos: attr.TOS, done: make(chan struct{}),
		starting: map[stack.Stream]struct{}{}, waiting: map[*conn]struct{}{}, gate: admission.New[netip.Addr](maxStarting),
	}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	e.mu.Lock()
	e.listeners[l] = struct{}{}
	e.mu.Unlock()
	go l.accept()
	return l, nil
}

// Close stops listening. Requests that were delivered to the application can still be answered.
// rdma_cm closes the connections of those that it has not delivered.
func (l *listener) Close() error {
	err := l.tcp.Close()
	l.cancel()
	<-l.done
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	for stream := range l.starting {
		stream.Abort()
	}
	l.removeIfDone()
	return err
}

// removeIfDone removes the listener from the engine if it is closed and has no unanswered requests.
// l.mu is held.
func (l *listener) removeIfDone() {
	if l.closed && len(l.waiting) == 0 {
		l.e.mu.Lock()
		delete(l.e.listeners, l)
		l.e.mu.Unlock()
	}
}

// closeAll is Close, and also closes the connections of all unanswered requests.
func (l *listener) closeAll() {
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
	defer l.cancel() // requests that wait for places
	for {
		c, err := l.tcp.Accept()
		if err != nil {
			return
		}
		stream := c.(stack.Stream)
		place := l.enter(stream)
		if place == nil {
			stream.Abort()
			continue
		}
		t := l.sequencer.enter(addrPort(c.RemoteAddr()).Addr())
		l.e.work.Go(func() {
			defer t.done()
			l.start(stream, place, t)
		})
	}
}

// enter adds a new connection to those without a request, or returns nil. If there are too many,
// the oldest ends: the request of a real peer arrives within a round trip, so the oldest are most
// likely an attack. All that access control does not allow count as one peer.
func (l *listener) enter(stream stack.Stream) *admission.Place[netip.Addr] {
	peer := addrPort(stream.RemoteAddr()).Addr()
	if !l.e.access.Allows(peer) {
		peer = netip.Addr{}
	}
	place, err := l.gate.Enter(peer, stream.Abort)
	if err != nil {
		l.e.Counters.ConnectsRefused.Add(1)
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.starting[stream] = struct{}{}
	return place
}

// started undoes enter.
func (l *listener) started(stream stack.Stream, place *admission.Place[netip.Addr]) {
	l.mu.Lock()
	delete(l.starting, stream)
	l.mu.Unlock()
	place.Leave()
}

// start waits for the request of a new connection and reports requests in order. It then reads the
// stream to its end.
func (l *listener) start(stream stack.Stream, place *admission.Place[netip.Addr], t *ticket[netip.Addr]) {
	stream.SetTOS(l.tos)
	c, request, err := l.readRequest(stream, place)
	if err != nil || !l.e.access.Admits(c.peer) || !l.admit(c) {
		t.done()
		l.e.Counters.ConnectsRefused.Add(1)
		if err == nil {
			c.rejectUnreported()
		}
		stream.Abort()
		l.started(stream, place)
		return
	}
	l.started(stream, place)
	_ = stream.SetDeadline(time.Time{})
	t.wait(l.e.timers.Clock(), reportWait)
	c.report(request)
	t.done()
	c.waitReadable()
}

// readRequest waits for the place and then for the request of a stream, and returns its connection
// and the event that reports it.
func (l *listener) readRequest(stream stack.Stream, place *admission.Place[netip.Addr]) (*conn, *rdmacm.ConnEvent, error) {
	clock := l.e.timers.Clock()
	waiting, cancel := clock.WithTimeout(l.ctx, requestTimeout)
	err := place.Wait(waiting)
	cancel()
	if err != nil {
		return nil, nil, err
	}
	_ = stream.SetDeadline(clock.Now().Add(requestTimeout))
	f, err := readFrame(stream, false)
	if err != nil {
		return nil, nil, err
	}
	local, remote := addrPort(stream.LocalAddr()), addrPort(stream.RemoteAddr())
	if !remote.IsValid() {
		return nil, nil, net.ErrClosed // the stream has ended, and no longer has addresses
	}
	route, err := l.e.route(local.Addr(), remote.Addr())
	if err != nil {
		return nil, nil, err
	}
	c := &conn{
		e: l.e, h: l.h, peer: route.Dst, port: route.PortNum, stream: stream, request: &request{f, l}, revision: f.Revision, state: requested,
	}
	c.ird, c.ord = MaxReads, MaxReads
	if f.HasEnhanced {
		// The peer's ORD limits the local IRD, and its IRD the local ORD.
		c.ird, c.ord = depth(f.Enhanced.ORD), depth(f.Enhanced.IRD)
	}
	c.ordLimit = c.ord
	return c, &rdmacm.ConnEvent{
		Type: rdmacm.ConnectRequest, Route: route, LocalPort: local.Port(), PeerPort: remote.Port(),
		Param: rdmacm.ConnParam{
			PrivateData: f.PrivateData, ResponderResources: c.ird, InitiatorDepth: c.ord,
		},
	}, nil
}

// admit adds a request to the backlog. It returns false if that is full.
func (l *listener) admit(c *conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || len(l.waiting) >= l.backlog {
		return false
	}
	l.waiting[c] = struct{}{}
	return true
}

// rejectUnreported rejects a request because the backlog is full, or access control does not allow
// the peer. It lets the peer close first, so that
// TIME-WAIT is not on this side. It waits for that as long as for a request.
func (c *conn) rejectUnreported() {
	f := c.reply(nil)
	f.Rejected, f.Reserved = true, 0
	if writeFrame(c.stream, f) == nil {
		_, _ = c.stream.Read(make([]byte, 1))
	}
}

// readReady is called after each waitReadable. It reads the stream if a QP has it. Otherwise the
// peer has closed the connection after its request, or has violated RFC 5044 §7.1.2: it must not
// send before the reply.
func (c *conn) readReady() {
	defer c.e.work.Done()
	c.mu.Lock()
	q := c.qp
	lost := q == nil && c.state == requested
	if lost {
		c.onPeerClosed()
	}
	c.mu.Unlock()
	switch {
	case q != nil:
		q.read(c)
	case lost:
		c.stream.Abort()
	}
}

// onPeerClosed ends a request whose peer has closed the connection before the answer. c.mu is held.
func (c *conn) onPeerClosed() {
	c.state, c.peerClosed = over, true
	c.leaveBacklog()
	c.emit(&rdmacm.ConnEvent{Type: rdmacm.ConnectError, Status: -int(syscall.ECONNRESET)})
}

// depth returns the peer's IRD or ORD, limited to the device's.
func depth(n uint16) uint8 {
	if n == mpa.NoNegotiation {
		return MaxReads
	}
	return uint8(min(n, MaxReads))
}

// addrPort returns an address of a stream. It is invalid if the stream has ended.
func addrPort(a net.Addr) netip.AddrPort {
	tcp, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.AddrPort{}
	}
	ap := tcp.AddrPort()
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
}

// leaveBacklog removes the connection's request from the backlog when it is answered or has ended.
func (c *conn) leaveBacklog() {
	if c.request != nil {
		l := c.request.listener
		l.mu.Lock()
		delete(l.waiting, c)
		l.removeIfDone()
		l.mu.Unlock()
	}
}

// Accept implements rdmacm.ProviderConn. The QP already has the stream, and receives the peer's
// data after the reply.
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
	c.leaveBacklog()
	c.request, c.state = nil, established
	c.emit(&rdmacm.ConnEvent{Type: rdmacm.Established})
	return nil
}

// reply returns the reply frame that accepts the request.
func (c *conn) reply(privateData []byte) *mpa.Frame {
	request := &c.request.frame
	f := &mpa.Frame{
		Reply: true, Markers: c.e.config.Markers, CRC: c.crc(), Revision: request.Revision,
		HasEnhanced: request.HasEnhanced, PrivateData: privateData,
	}
	if c.agreesLongFPDUs() {
		f.Reserved = longFPDUReply
	}
	if !f.HasEnhanced {
		return f
	}
	theirs, ours := &request.Enhanced, &f.Enhanced
	ours.IRD, ours.ORD = uint16(c.ird), uint16(c.ord)
	if theirs.ORD == mpa.NoNegotiation {
		ours.IRD = mpa.NoNegotiation
	}
	if theirs.IRD == mpa.NoNegotiation {
		ours.ORD = mpa.NoNegotiation
	}
	if ours.PeerToPeer = theirs.PeerToPeer; ours.PeerToPeer {
		// The device supports every kind of ready-to-receive message. The reply must choose one.
		ours.RDMARead = c.rtrIsRead()
		ours.ZeroLengthSend = theirs.ZeroLengthSend && !theirs.RDMARead && !theirs.RDMAWrite
		ours.RDMAWrite = !ours.RDMARead && !ours.ZeroLengthSend
	}
	return f
}

// Reject implements rdmacm.ProviderConn.
func (c *conn) Reject(privateData []byte) error {
	const op = "reject"
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.qp != nil && !c.peerClosed:
		return verbs.Errorf(verbs.ErrInvalid, op, "QP %#x has the connection's stream", c.qp.num)
	case c.state == responded:
		c.terminateSetup(mpa.ErrLocalCatastrophic)
	default:
		if err := c.expect(op, requested); err != nil {
			return err
		}
		if err := c.sendReject(privateData); err != nil {
			return err
		}
		c.leaveBacklog()
	}
	c.state = over
	return nil
}

// sendReject sends the reply that rejects the request, and closes the stream.
func (c *conn) sendReject(privateData []byte) error {
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
