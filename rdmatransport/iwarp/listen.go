package iwarp

// Set-up, accepting side. A new TCP connection is nobody's until its request has come in whole; until then it is
// bounded in number and time. (RFC 5044 §7.1.2, RFC 5042 §6.4)

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/softrnic/softrnic/rdmatransport/iwarp/mpa"
	"github.com/softrnic/softrnic/stack"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// listener takes connections for one address.
type listener struct {
	e       *Engine
	h       rdmacm.Handler
	tcp     net.Listener
	backlog int
	tos     uint8
	done    chan struct{} // closed when no more are accepted

	mu       sync.Mutex
	closed   bool
	starting map[stack.Stream]struct{} // their request has not come
	waiting  map[*conn]struct{}        // the application has not answered
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
	l := &listener{
		e: e, h: h, tcp: tcp, backlog: attr.Backlog, tos: attr.TOS, done: make(chan struct{}),
		starting: map[stack.Stream]struct{}{}, waiting: map[*conn]struct{}{},
	}
	go l.accept()
	return l, nil
}

// Close stops listening; connections that the application has not answered are closed.
func (l *listener) Close() error {
	err := l.tcp.Close()
	<-l.done
	l.mu.Lock()
	l.closed = true
	waiting := l.waiting
	l.waiting = nil
	for s := range l.starting {
		s.Abort()
	}
	l.mu.Unlock()
	for c := range waiting {
		c.Close()
	}
	return err
}

func (l *listener) accept() {
	defer close(l.done)
	for {
		c, err := l.tcp.Accept()
		if err != nil {
			return
		}
		stream := c.(stack.Stream)
		l.mu.Lock()
		full := len(l.starting) >= maxStarting
		if !full {
			l.starting[stream] = struct{}{}
		}
		l.mu.Unlock()
		if full {
			l.e.Counters.ConnectsRefused.Add(1)
			stream.Abort()
			continue
		}
		l.e.work.Go(func() { l.start(stream) })
	}
}

// start reads a connection's request.
func (l *listener) start(stream stack.Stream) {
	stream.SetTOS(l.tos)
	_ = stream.SetDeadline(time.Now().Add(requestTimeout))
	f, err := readFrame(stream, false)
	_ = stream.SetDeadline(time.Time{})
	local, remote := addrPort(stream.LocalAddr()), addrPort(stream.RemoteAddr())
	if err == nil && !remote.IsValid() {
		err = net.ErrClosed // it has no addresses any more
	}
	var route rdmacm.Route
	if err == nil {
		route, err = l.e.route(local.Addr(), remote.Addr())
	}
	c := &conn{e: l.e, h: l.h, listener: l, stream: stream, request: f, route: route, state: requested}
	l.mu.Lock()
	delete(l.starting, stream)
	keep := err == nil && !l.closed && len(l.waiting) < max(l.backlog, 1)
	if keep {
		l.waiting[c] = struct{}{}
	}
	l.mu.Unlock()
	if !keep {
		l.e.Counters.ConnectsRefused.Add(1)
		stream.Abort()
		return
	}
	p := rdmacm.ConnParam{PrivateData: f.PrivateData, ResponderResources: MaxReads, InitiatorDepth: MaxReads}
	c.ird, c.ord = MaxReads, MaxReads
	if f.HasEnhanced {
		// What the peer may send is what we answer, and the other way round.
		c.ird, c.ord = depth(f.Enhanced.ORD), depth(f.Enhanced.IRD)
		p.ResponderResources, p.InitiatorDepth = uint8(c.ird), uint8(c.ord)
	}
	c.ordLimit = c.ord
	c.mu.Lock()
	defer c.mu.Unlock()
	c.emit(&rdmacm.ConnEvent{
		Type: rdmacm.ConnectRequest, Route: route, LocalPort: local.Port(), RemotePort: remote.Port(), Param: p,
	})
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

// answered ends the request's wait for the application.
func (c *conn) answered() {
	if l := c.listener; l != nil {
		l.mu.Lock()
		delete(l.waiting, c)
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
	case c.qp != nil:
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
