package iwarp

// Set-up, accepting side. Until the application has answered a connection request, anybody may have
// sent it. So these connections are bounded in number and in memory, and in time before their
// request has come. (RFC 5044 §7.1.2, RFC 5042 §6.4)

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

// listener accepts connections for one address. At most maxStarting have not sent their request,
// and at most backlog requests wait for the application; each has a receive buffer of setupBuffer
// bytes.
type listener struct {
	e       *Engine
	h       rdmacm.Handler
	tcp     net.Listener
	backlog int
	tos     uint8
	done    chan struct{} // closed when no more are accepted

	mu       sync.Mutex
	closed   bool
	starting list.List          // of stack.Stream, oldest first: their request has not come, or is being rejected for want of room
	waiting  map[*conn]struct{} // requests that the application has not answered

	order order[netip.Addr] // those whose request has not been reported, by where they are from
}

// Listen takes connection requests; see rdmacm.Provider.
func (e *Engine) Listen(attr *rdmacm.ListenAttr, h rdmacm.Handler) (io.Closer, error) {
	if attr.Space != rdmacm.TCP && attr.Space != rdmacm.IB {
		return nil, verbs.Errorf(verbs.ErrNotSupported, "listen", "port space %v over iWARP", attr.Space)
	}
	listen := e.net.ListenStream
	if f, ok := e.net.(stack.FamilyListener); ok && attr.AFOnly {
		listen = f.ListenFamily
	}
	tcp, err := listen(attr.Addr)
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

// Close stops listening. A request that the application has, and has not answered, stays; rdma_cm
// closes the connections of those that it has not delivered.
func (l *listener) Close() error {
	err := l.tcp.Close()
	<-l.done
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	for at := l.starting.Front(); at != nil; at = at.Next() {
		at.Value.(stack.Stream).Abort()
	}
	l.removeIfDone()
	return err
}

// removeIfDone takes the listener off the engine's list if it is closed and none of its requests
// waits. l.mu is held.
func (l *listener) removeIfDone() {
	if l.closed && len(l.waiting) == 0 {
		l.e.mu.Lock()
		delete(l.e.listeners, l)
		l.e.mu.Unlock()
	}
}

// closeAll is Close, and also closes the connections of all requests that are not answered.
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
	for {
		c, err := l.tcp.Accept()
		if err != nil {
			return
		}
		at := l.addStarting(c.(stack.Stream))
		t := l.order.enter(addrPort(c.RemoteAddr()).Addr())
		l.e.work.Go(func() {
			defer t.end()
			l.start(at, t)
		})
	}
}

// addStarting adds a new connection to those whose request has not come. If there are too many, the
// oldest is reset: the request of an honest peer comes within a round trip, so old ones are more
// likely held open to keep others out.
func (l *listener) addStarting(stream stack.Stream) *list.Element {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.starting.Len() >= maxStarting {
		l.starting.Remove(l.starting.Front()).(stack.Stream).Abort()
	}
	return l.starting.PushBack(stream)
}

// start waits for the request of a new connection and reports it, in turn. It then reads the stream
// to its end.
func (l *listener) start(at *list.Element, t *turn[netip.Addr]) {
	stream := at.Value.(stack.Stream)
	stream.SetTOS(l.tos)
	_ = stream.SetDeadline(time.Now().Add(requestTimeout))
	c, request, err := l.readRequest(stream)
	if err != nil || !l.admit(c, at) {
		t.end()
		l.e.Counters.ConnectsRefused.Add(1)
		if err == nil {
			c.rejectFull()
		}
		stream.Abort()
		l.mu.Lock()
		l.starting.Remove(at)
		l.mu.Unlock()
		return
	}
	_ = stream.SetDeadline(time.Time{})
	t.wait(reportWait)
	c.report(request)
	t.end()
	c.park()
}

// readRequest waits for the request of a stream, and returns its connection and the event that
// reports it.
func (l *listener) readRequest(stream stack.Stream) (*conn, *rdmacm.ConnEvent, error) {
	f, err := readFrame(stream, false)
	if err != nil {
		return nil, nil, err
	}
	local, remote := addrPort(stream.LocalAddr()), addrPort(stream.RemoteAddr())
	if !remote.IsValid() {
		return nil, nil, net.ErrClosed // the stream has ended, and has no addresses any more
	}
	route, err := l.e.route(local.Addr(), remote.Addr())
	if err != nil {
		return nil, nil, err
	}
	c := &conn{
		e: l.e, h: l.h, peer: route.Dst, port: route.Port, stream: stream, asked: &request{f, l}, revision: f.Revision, state: requested,
	}
	c.ird, c.ord = MaxReads, MaxReads
	if f.HasEnhanced {
		// The peer's ORD is what bounds our IRD, and its IRD our ORD.
		c.ird, c.ord = depth(f.Enhanced.ORD), depth(f.Enhanced.IRD)
	}
	c.ordLimit = c.ord
	return c, &rdmacm.ConnEvent{
		Type: rdmacm.ConnectRequest, Route: route, LocalPort: local.Port(), RemotePort: remote.Port(),
		Param: rdmacm.ConnParam{
			PrivateData: f.PrivateData, ResponderResources: c.ird, InitiatorDepth: c.ord,
		},
	}, nil
}

// admit adds a request to the backlog; false if that is full.
func (l *listener) admit(c *conn, at *list.Element) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || len(l.waiting) >= l.backlog {
		return false
	}
	l.starting.Remove(at)
	l.waiting[c] = struct{}{}
	return true
}

// rejectFull rejects a request for which the backlog has no room. It lets the peer close first, so
// that TIME-WAIT is not on this side, but waits for that no longer than for a request.
func (c *conn) rejectFull() {
	f := c.reply(nil)
	f.Rejected, f.Reserved = true, 0
	if writeFrame(c.stream, f) == nil {
		_, _ = c.stream.Read(make([]byte, 1))
	}
}

// unparked is called for each call of park, when there is something to read: it reads the stream if
// a QP has it. If none has, the peer has closed the connection behind its request, or broken the
// rule that it may send nothing before the reply (RFC 5044 §7.1.2).
func (c *conn) unparked() {
	defer c.e.work.Done()
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

// abandoned ends a request whose peer has not waited for the answer. c.mu is held.
func (c *conn) abandoned() {
	c.state, c.peerLeft = over, true
	c.leaveBacklog()
	c.emit(&rdmacm.ConnEvent{Type: rdmacm.ConnectError, Status: -int(syscall.ECONNRESET)})
}

// depth is the peer's IRD or ORD, or the device's limit if that is smaller.
func depth(n uint16) uint8 {
	if n == mpa.NoNegotiation {
		return MaxReads
	}
	return uint8(min(n, MaxReads))
}

// addrPort is an address of a stream. It is not valid if the stream has ended.
func addrPort(a net.Addr) netip.AddrPort {
	tcp, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.AddrPort{}
	}
	ap := tcp.AddrPort()
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
}

// leaveBacklog takes the connection's request, which is answered or has ended, out of the backlog.
func (c *conn) leaveBacklog() {
	if c.asked != nil {
		l := c.asked.listener
		l.mu.Lock()
		delete(l.waiting, c)
		l.removeIfDone()
		l.mu.Unlock()
	}
}

// Accept implements rdmacm.ProviderConn. The QP has the stream already, so that it receives what
// the peer sends after the reply.
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
	c.asked, c.state = nil, established
	c.emit(&rdmacm.ConnEvent{Type: rdmacm.Established})
	return nil
}

// reply is the frame that accepts.
func (c *conn) reply(privateData []byte) *mpa.Frame {
	asked := &c.asked.frame
	f := &mpa.Frame{
		Reply: true, Markers: c.e.config.Markers, CRC: c.crc(), Revision: asked.Revision,
		HasEnhanced: asked.HasEnhanced, PrivateData: privateData,
	}
	if c.agreesLarge() {
		f.Reserved = largeReply
	}
	if !f.HasEnhanced {
		return f
	}
	theirs, ours := &asked.Enhanced, &f.Enhanced
	ours.IRD, ours.ORD = uint16(c.ird), uint16(c.ord)
	if theirs.ORD == mpa.NoNegotiation {
		ours.IRD = mpa.NoNegotiation
	}
	if theirs.IRD == mpa.NoNegotiation {
		ours.ORD = mpa.NoNegotiation
	}
	if ours.PeerToPeer = theirs.PeerToPeer; ours.PeerToPeer {
		// The device takes any kind of ready-to-receive message; one has to be chosen.
		ours.RDMARead = c.rtrIsRead()
		ours.ZeroLengthSend = theirs.ZeroLengthSend && !theirs.RDMARead && !theirs.RDMAWrite
		ours.RDMAWrite = !ours.RDMARead && !ours.ZeroLengthSend
	}
	return f
}

// agreesLarge reports whether FPDUs may be longer than a TCP segment, as the peer's request asks.
func (c *conn) agreesLarge() bool {
	f := &c.asked.frame
	return c.e.config.LongFPDUs && f.Revision != mpa.Revision1 && f.Reserved&largeRequest != 0
}

// rtrIsRead reports whether the ready-to-receive message will be a READ, which counts towards the
// IRD.
func (c *conn) rtrIsRead() bool {
	e := &c.asked.frame.Enhanced
	return c.asked.frame.HasEnhanced && e.PeerToPeer && e.RDMARead && !e.RDMAWrite
}

// crc reports whether FPDUs have CRCs: they do if either side wants them.
func (c *conn) crc() bool { return c.asked.frame.CRC || !c.e.config.NoCRC }

// Reject implements rdmacm.ProviderConn.
func (c *conn) Reject(privateData []byte) error {
	const op = "reject"
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.qp != nil && !c.peerLeft:
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

// sendReject sends the reply that rejects, and closes the stream behind it.
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
