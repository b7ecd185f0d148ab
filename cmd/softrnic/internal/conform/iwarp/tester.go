// Package iwarp has the conformance cases of iWARP: MPA (RFC 5044, RFC 6581), DDP (RFC 5041), RDMAP
// (RFC 5040, RFC 7306).
package iwarp

import (
	"context"
	"errors"
	"io"
	"net/netip"
	"time"

	"github.com/softrnic/softrnic/cmd/softrnic/internal/conform/control"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/conform/suite"
	"github.com/softrnic/softrnic/rdmatransport/ddp"
	"github.com/softrnic/softrnic/rdmatransport/mpa"
	"github.com/softrnic/softrnic/rdmatransport/rdmap"
	"github.com/softrnic/softrnic/stack"
)

// Env is the target and the network to it.
type Env struct {
	Network      stack.Network // whose TCP the tester uses
	Addr, Target netip.Addr
	MSS          int // the tester's MSS, which bounds the target's segments
	Control      *control.Client
	Wait         time.Duration // for packets that must come
	Quiet        time.Duration // for packets that must not come
}

// Default parameters of the cases' connections.
const (
	memory = 16 << 10 // bytes of a QP's region
	depth  = 4        // READs and atomics outstanding, in either direction
	ourTag = 0x00dead01
	here   = 8192 // target offset of refused requests
)

// tester is a running case.
type tester struct {
	*suite.T
	*Env
	replies int // frames and FPDUs received from the target
}

// settings are the parameters of a connection.
type settings struct {
	control.Create
	control.CM           // of the target
	frame      mpa.Frame // of the tester: its request or reply
	raw        func(frame []byte) []byte
	receives   int // number of receives of 1024 bytes that the target posts before it connects
}

// conn is a connection to a QP of the target.
type conn struct {
	reader
	suite.Queue
	t         *tester
	addr      uint64
	rkey      uint32
	out       direction
	msn       [4]uint32            // the next MSN of each queue
	frame     *frame               // the target's
	completed []control.Completion // polled and not yet checked
	begun     bool                 // start-up is over: FPDUs follow
	sent      bool                 // the tester has sent FPDUs
	set       settings
}

// qp creates a QP with all rights and no connection.
func (t *tester) qp(s settings) *conn {
	c := &conn{t: t, set: s, msn: [4]uint32{1, 1, 1, 1},
		Queue: suite.Queue{T: t.T, Control: t.Control, Wait: func() time.Duration { return t.Wait }}}
	made := c.Do(control.Request{Op: control.CreateQP, Create: &s.Create})
	c.Handle, c.addr, c.rkey = made.QP, made.RemoteAddr, made.RKey
	t.Cleanup(func() {
		// The case is over. If nothing was sent, a message is: a responder may send, and for some
		// connection managers the connection is established, only after the initiator's first FPDU
		// (RFC 5044 §7.1). Not every target copes with the end of a connection that is only half there,
		// and no case is about that.
		quiet := c.begun && !c.sent && !c.set.frame.Reply
		if quiet {
			c.send(c.write(0, nil))
		} else if c.s != nil {
			c.s.Abort()
		}
		_, _ = t.Control.Do(&control.Request{Op: control.DestroyQP, QP: c.Handle})
		if quiet {
			c.s.Abort()
		}
	})
	return c
}

// with returns the default settings, changed by change.
func with(reply bool, change []func(*settings)) settings {
	s := settings{
		Create: control.Create{Type: "RC", Transport: "iwarp", OwnPD: true, Memory: memory,
			QPAccess: suite.AllRights(), MRAccess: suite.AllRights()},
		CM:    control.CM{ReadsIn: depth, ReadsOut: depth},
		frame: mpa.Frame{Reply: reply, CRC: true, Revision: 2, HasEnhanced: true, Enhanced: mpa.Enhanced{IRD: depth, ORD: depth}},
	}
	for _, f := range change {
		f(&s)
	}
	return s
}

// Prove makes the target listen with a QP, as most cases do. An error is the target's reason why it
// cannot.
func (e *Env) Prove() error {
	s := with(false, nil)
	made, err := e.Control.Do(&control.Request{Op: control.CreateQP, Create: &s.Create})
	if err != nil {
		return err
	}
	_, err = e.Control.Do(&control.Request{Op: control.Listen, QP: made.QP, CM: e.anyPort()})
	_, errDestroy := e.Control.Do(&control.Request{Op: control.DestroyQP, QP: made.QP})
	return errors.Join(err, errDestroy)
}

// anyPort is the address on which the target listens.
func (e *Env) anyPort() *control.CM {
	return &control.CM{Addr: netip.AddrPortFrom(e.Target, 0).String()}
}

// called returns a listening QP with a stream on which nothing was sent.
func (t *tester) called(change ...func(*settings)) *conn {
	c := t.qp(with(false, change))
	port := c.Do(control.Request{Op: control.Listen, CM: t.anyPort()}).Port
	s, err := t.Network.DialStream(t.context(), netip.AddrPort{}, netip.AddrPortFrom(t.Target, port))
	if err != nil {
		t.Failf("TCP port %d of the target, where it listens: %v", port, err)
	}
	c.s = s
	return c
}

// asked is called after the tester has sent its request.
func (t *tester) asked(change ...func(*settings)) *conn {
	c := t.called(change...)
	c.sendFrame()
	return c
}

// accepted returns a connection that the tester has initiated and the target has accepted. The
// target may not send yet.
func (t *tester) accepted(change ...func(*settings)) *conn {
	c := t.requested(change...)
	c.accept()
	c.readFrame()
	c.begin()
	return c
}

// rc returns a connection that the tester has initiated and on which both sides may send.
func (t *tester) rc(change ...func(*settings)) *conn {
	c := t.accepted(change...)
	c.send(c.write(0, nil)) // the initiator sends first (RFC 5044 §7.1.2)
	return c
}

// on returns a case that begins with a connection, which connect returns.
func on(connect func(*tester, ...func(*settings)) *conn, run func(*conn), change ...func(*settings)) func(*tester) {
	return func(t *tester) { run(connect(t, change...)) }
}

// onRC returns a case that begins with the connection of rc.
func onRC(run func(*conn), change ...func(*settings)) func(*tester) {
	return on((*tester).rc, run, change...)
}

// requested returns a connection for which the target's program has a request.
func (t *tester) requested(change ...func(*settings)) *conn {
	c := t.asked(change...)
	c.event("CONNECT_REQUEST")
	return c
}

// accept posts the receives and makes the target accept the request.
func (c *conn) accept() {
	c.receives()
	cm := c.set.CM
	c.Do(control.Request{Op: control.Accept, CM: &cm})
}

func (c *conn) receives() {
	for i := range c.set.receives {
		c.Recv(uint64(i), i*1024, 1024)
	}
}

// dialling returns a connection that the target initiates, before its request is read.
func (t *tester) dialling(change ...func(*settings)) *conn {
	c := t.qp(with(true, change))
	c.redial()
	return c
}

// redial makes the target dial the tester.
func (c *conn) redial() {
	t := c.t
	l, err := t.Network.ListenStream(netip.AddrPortFrom(t.Addr, 0))
	if err != nil {
		t.Failf("cannot listen: %v", err)
	}
	defer l.Close()
	cm := c.set.CM
	cm.Addr = l.Addr().String()
	c.Do(control.Request{Op: control.DialTester, CM: &cm})
	late := time.AfterFunc(t.Wait, func() { _ = l.Close() })
	defer late.Stop()
	s, err := l.Accept()
	if err != nil {
		t.Failf("the target opens no TCP connection within %v", t.Wait)
	}
	c.s = s.(stack.Stream)
}

// replied returns a connection that the target has requested, and the tester has replied to.
func (t *tester) replied(change ...func(*settings)) *conn {
	c := t.dialling(change...)
	c.readFrame()
	c.sendFrame()
	return c
}

// negotiated is replied, and skips the case if the target's request is not enhanced.
func (t *tester) negotiated(change ...func(*settings)) *conn {
	c := t.dialling(change...)
	c.negotiating()
	c.sendFrame()
	return c
}

// initiated returns a connection that the target has initiated and the tester has accepted.
func (t *tester) initiated(change ...func(*settings)) *conn {
	c := t.replied(change...)
	c.event("ESTABLISHED")
	c.receives()
	c.begin()
	return c
}

// begin ends the start-up. FPDUs follow.
func (c *conn) begin() {
	c.begun = true
	c.out.markers = c.frame.raw[16]&0x80 != 0
	c.markers = c.set.frame.Markers
}

// event waits for an event of rdma_cm that the case needs but does not check.
func (c *conn) event(want string) control.Reply {
	r := c.NextEvent(c.t.Wait)
	if r.Event != want {
		c.t.Failf("the target has the event %q, want %s", r.Event, want)
	}
	return r
}

// sendFrame sends the tester's request or reply.
func (c *conn) sendFrame() {
	b := make([]byte, c.set.frame.Len())
	if _, err := c.set.frame.Encode(b); err != nil {
		c.t.Failf("%v", err)
	}
	if c.set.raw != nil {
		b = c.set.raw(b)
	}
	c.sendRaw(b)
}

func (c *conn) sendRaw(b []byte) {
	if err := c.s.SetWriteDeadline(time.Now().Add(c.t.Wait)); err == nil {
		_, _ = c.s.Write(b) // if the target has closed the stream, a later read fails
	}
}

// send sends ULPDUs, each in an FPDU.
func (c *conn) send(ulpdus ...[]byte) {
	c.sent = true
	for _, u := range ulpdus {
		c.sendRaw(c.out.encode(framing{ulpdu: u}))
	}
}

// ask sends ULPDUs, and waits for the next message.
func (c *conn) ask(ulpdus ...[]byte) *message {
	c.send(ulpdus...)
	return c.next()
}

// unanswered sends ULPDUs, and fails if there is an answer.
func (c *conn) unanswered(ulpdus ...[]byte) {
	c.send(ulpdus...)
	c.silent()
}

// unansweredFrame is unanswered for an FPDU with unusual framing.
func (c *conn) unansweredFrame(f framing) {
	c.sendRaw(c.out.encode(f))
	c.silent()
}

// delivers sends ULPDUs that complete a receive.
func (c *conn) delivers(ulpdus ...[]byte) control.Completion {
	c.send(ulpdus...)
	return c.Completes("SUCCESS")
}

// arrived counts a received message, and alters or drops it for a mutation.
func (t *tester) arrived(alter func(field string)) (dropped bool) {
	t.replies++
	m := t.Mutate
	if m == nil || m.Reply != t.replies {
		return false
	}
	if !m.Drop {
		alter(m.Field)
		return false
	}
	env := *t.Env
	env.Wait = max(env.Quiet, 10*time.Millisecond) // a dropped message is not retransmitted
	t.Env = &env
	return true
}

// next returns the next FPDU. It skips WRITEs of zero bytes, which a peer may send at any time.
func (c *conn) next() *message { return c.await(false) }

// nextAny returns the next FPDU, which may be a WRITE of zero bytes.
func (c *conn) nextAny() *message { return c.await(true) }

func (c *conn) await(idle bool) *message {
	t := c.t
	for {
		f, err := c.reader.next(t.Wait)
		switch {
		case errors.Is(err, io.EOF):
			t.Failf("the target has closed the stream, want a message")
		case err != nil:
			t.Failf("no message within %v: %v", t.Wait, err)
		}
		m := &message{fpdu: f, t: t}
		if m.idle() && !idle {
			continue
		}
		if t.arrived(m.alter) {
			continue
		}
		m.number = t.replies
		m.parse()
		return m
	}
}

// readFrame reads the target's request or reply.
func (c *conn) readFrame() *frame {
	t := c.t
	for {
		b, err := c.reader.frame(t.Wait)
		switch {
		case errors.Is(err, io.EOF):
			t.Failf("the target has closed the stream, want its MPA frame")
		case err != nil:
			t.Failf("no MPA frame within %v: %v", t.Wait, err)
		}
		c.frame = &frame{t: t, raw: b}
		if t.arrived(c.frame.alter) {
			continue
		}
		c.frame.number = t.replies
		return c.frame
	}
}

// more returns nil if a message other than a WRITE of zero bytes is received in time, and else
// io.EOF or errLate.
func (c *conn) more(wait time.Duration) error {
	for {
		if err := c.wait(wait); err != nil || !c.begun {
			return err
		}
		f, err := c.reader.next(c.t.Wait)
		if err != nil {
			return nil
		}
		if m := (&message{fpdu: f}); !m.idle() {
			return nil
		}
	}
}

// forge adds a message that the target has not sent.
func (c *conn) forge() {
	d := c.direction
	c.pending = d.encode(framing{ulpdu: untagged(ddp.Untagged{Last: true, MSN: 77}, rdmap.Send, nil)})
}

// closed checks that the stream ends without a further message.
func (c *conn) closed() {
	if c.t.Check(0, "the end of the stream") {
		c.forge()
	}
	switch c.more(c.t.Wait) {
	case nil:
		c.t.Failf("the target sends more, want the end of the stream")
	case errLate:
		c.t.Failf("the target has not closed the stream within %v", c.t.Wait)
	}
}

// silent checks that the target sends nothing before its answer to a READ that is sent now.
func (c *conn) silent() {
	if c.t.Check(0, "silence") {
		c.forge()
	}
	c.send(c.readRequest(0, 4))
	c.next().is(opReadResponse).field("STag", ourTag)
}

// quiet checks that nothing is received for a while.
func (c *conn) quiet() {
	if c.t.Check(0, "silence") {
		c.forge()
	}
	switch c.more(max(c.t.Quiet, time.Millisecond)) {
	case nil:
		c.t.Failf("the target sends something")
	case io.EOF:
		c.t.Failf("the target has closed the stream")
	}
}

// is compares a value that the target reports through its control connection.
func is[V comparable](t *tester, what string, got, want V) { suite.Is(t.T, what, got, want) }

// post makes the target post a request of length bytes from the region's first byte on.
func (c *conn) post(length int, s control.Send) {
	c.Do(control.Request{Op: control.PostSend, Length: length, Send: &s})
}

// request is post, and returns the next message, which must have an opcode.
func (c *conn) request(length int, s control.Send, opcode uint64) *message {
	c.post(length, s)
	return c.next().is(opcode)
}

// pattern returns n bytes that depend on seed.
var pattern, word = suite.Pattern, suite.Word

// context returns a context that ends after the wait time or with the case.
func (t *tester) context() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), t.Wait)
	t.Cleanup(cancel)
	return ctx
}
