package iwarp

import (
	"github.com/softrnic/softrnic/cmd/softrnic/internal/conform/control"
	"github.com/softrnic/softrnic/rdmatransport/mpa"
	"github.com/softrnic/softrnic/rdmatransport/rdmap"
)

// refusesReply returns a case in which an invalid reply makes the initiator close the connection.
func refusesReply(id, statement, source string, change func([]byte) []byte) entry {
	return entry{id, statement, source, func(t *tester) {
		c := t.replied(func(s *settings) { s.raw = change })
		c.closed()
	}}
}

// negotiating skips a case unless the target's request is enhanced.
func (c *conn) negotiating() *frame {
	f := c.readFrame()
	if f.value("S") == 0 {
		c.t.Skipf("the target's requests are not enhanced")
	}
	return f
}

// peerToPeer skips a case unless the target asks for peer-to-peer mode.
func (c *conn) peerToPeer() {
	if c.negotiating().value("A") == 0 {
		c.t.Skipf("the target asks for client-server mode")
	}
}

// sendsRTR returns a case in which the target's first FPDU is an RTR of a kind. check makes further
// checks of it.
func sendsRTR(id, statement string, kind func(*settings), flag string, check func(*conn, *message)) entry {
	return entry{id, statement, "RFC 6581 §9.2", func(t *tester) {
		c := t.dialling(kind)
		c.peerToPeer()
		if c.frame.value(flag) == 0 {
			t.Skipf("the target does not offer this kind of RTR")
		}
		c.sendFrame()
		c.begin()
		m := c.nextAny()
		m.framed("place", m.first)
		check(c, m)
	}}
}

// Set-up with the target as the initiator.
var initiator = []entry{
	{"INIT-KEY", "An initiator's frame begins with the key of a request.", "RFC 5044 §7.1.1", func(t *tester) {
		t.dialling().readFrame().key(requestKey)
	}},
	{"INIT-R", "R of a request is zero.", "RFC 5044 §7.1.1", func(t *tester) {
		t.dialling().readFrame().field("R", 0)
	}},
	{"INIT-RESERVED", "The reserved bits of a request are zero.", "RFC 5044 §7.1.1, RFC 6581 §6", func(t *tester) {
		t.dialling().readFrame().field("MPA's reserved bits", 0)
	}},
	{"INIT-REVISION", "An enhanced request is of revision 2.", "RFC 6581 §6", on((*tester).dialling, func(c *conn) {
		c.negotiating().field("revision", 2)
	})},
	{"INIT-PRIVATE", "A request has the private data that the initiator's ULP gives.", "RFC 5044 §7.1.1", func(t *tester) {
		t.dialling(func(s *settings) { s.Data = []byte("hello") }).readFrame().carries([]byte("hello"))
	}},
	{"INIT-IRD", "An enhanced request has the initiator's IRD.", "RFC 6581 §9.1", on((*tester).dialling, func(c *conn) {
		c.negotiating().field("IRD", 3)
	}, func(s *settings) { s.ReadsIn, s.ReadsOut = 3, 5 })},
	{"INIT-ORD", "An enhanced request has the initiator's ORD.", "RFC 6581 §9.1", on((*tester).dialling, func(c *conn) {
		c.negotiating().field("ORD", 5)
	}, func(s *settings) { s.ReadsIn, s.ReadsOut = 3, 5 })},
	{"INIT-RTR-OFFERED", "A request for peer-to-peer mode offers at least one kind of RTR.", "RFC 6581 §9.2", func(t *tester) {
		c := t.dialling()
		c.peerToPeer()
		f := c.frame
		is(t, "that there is a kind of RTR", f.value("B")+f.value("RTR by WRITE")+f.value("RTR by READ") > 0, true)
	}},
	{"INIT-WAITS", "An initiator sends nothing after its request before it has the reply.", "RFC 5044 §7.1.2", func(t *tester) {
		c := t.dialling()
		c.readFrame()
		c.quiet()
	}},
	{"INIT-ESTABLISHED", "A reply that accepts establishes the connection.", "RFC 5044 §7.1.2", on((*tester).replied, func(c *conn) {
		c.Event("ESTABLISHED")
	})},
	{"INIT-REPLY-PRIVATE", "The initiator's ULP is given the reply's private data.", "RFC 5044 §7.1.2", on((*tester).replied, func(c *conn) {
		is(c.t, "the private data", string(c.event("ESTABLISHED").Data), "welcome")
	}, func(s *settings) { s.frame.PrivateData = []byte("welcome") })},
	{"INIT-REPLY-RESERVED", "The reserved bits of a reply are not checked.", "RFC 5044 §7.1.1, RFC 6581 §6", func(t *tester) {
		c := t.replied(func(s *settings) { s.raw = reserved })
		c.Event("ESTABLISHED")
	}},
	{"INIT-REPLY-IRD", "The initiator's ULP is given the responder's IRD.", "RFC 6581 §9.1", func(t *tester) {
		c := t.negotiated(enhance(func(e *mpa.Enhanced) { e.IRD = 3 }))
		is(t, "initiator_depth", c.event("ESTABLISHED").ReadsOut, 3)
	}},
	{"INIT-REPLY-ORD", "The initiator's ULP is given the responder's ORD.", "RFC 6581 §9.1", func(t *tester) {
		c := t.negotiated(enhance(func(e *mpa.Enhanced) { e.ORD = 3 }))
		is(t, "responder_resources", c.event("ESTABLISHED").ReadsIn, 3)
	}},
	{"INIT-REJECTED", "The initiator's ULP gets an event when the responder has rejected.", "RFC 5044 §7.1.1", func(t *tester) {
		c := t.replied(func(s *settings) { s.frame.Rejected = true })
		c.Event("REJECTED")
	}},
	{"INIT-REJECTED-PRIVATE", "The initiator's ULP is given the private data of a reply that rejects.", "RFC 5044 §7.1.1", func(t *tester) {
		c := t.replied(func(s *settings) { s.frame.Rejected, s.frame.PrivateData = true, []byte("no") })
		is(t, "the private data", string(c.event("REJECTED").Data), "no")
	}},
	{"INIT-REJECTED-CLOSE", "An initiator that is rejected closes the connection and sends nothing.", "RFC 5044 §7.1.2", func(t *tester) {
		c := t.replied(func(s *settings) { s.frame.Rejected = true })
		c.closed()
	}},
	refusesReply("INIT-REPLY-KEY", "A reply with a wrong key makes the initiator close the connection.", "RFC 5044 §7.1.2, §8",
		func(b []byte) []byte { return edit(b, 0, 'N') }),
	refusesReply("INIT-REPLY-REQUEST", "A request instead of a reply makes the initiator close the connection.", "RFC 5044 §7.1.2, §8",
		func(b []byte) []byte { return append([]byte(requestKey), b[16:]...) }),
	refusesReply("INIT-REPLY-REVISION", "A reply of an unknown revision makes the initiator close the connection.", "RFC 5044 §7.1.1",
		func(b []byte) []byte { return edit(b, 17, 9) }),
	refusesReply("INIT-REPLY-SHORT", "An enhanced reply with less than 4 bytes of private data makes the initiator close the connection.",
		"RFC 6581 §6, RFC 5044 §8", func(b []byte) []byte { return private(b, 3) }),
	{"INIT-REPLY-CUT", "The end of the stream within a reply fails the connection.", "RFC 5044 §7.1.2, §8", func(t *tester) {
		c := t.dialling()
		c.readFrame()
		c.sendRaw([]byte(replyKey)[:12])
		_ = c.s.CloseWrite()
		c.closed()
	}},
	{"INIT-IRD-INSUFFICIENT", "An initiator that cannot have an IRD as large as the responder's ORD terminates with MPA's code 6.",
		"RFC 6581 §9.1",
		func(t *tester) {
			c := t.negotiated(enhance(func(e *mpa.Enhanced) { e.ORD = mpa.MaxReadDepth }))
			c.begin()
			c.next().terminate(rdmap.Cause{Layer: rdmap.LayerLLP, Type: mpa.ErrorType, Code: uint8(mpa.CodeInsufficientIRD)}, nil)
		}},
	{"INIT-RTR-NONE", "An initiator that finds no kind of RTR in the reply terminates with MPA's code 7.", "RFC 6581 §9.2",
		on((*tester).dialling, func(c *conn) {
			c.peerToPeer()
			c.sendFrame()
			c.begin()
			c.next().terminate(rdmap.Cause{Layer: rdmap.LayerLLP, Type: mpa.ErrorType, Code: uint8(mpa.CodeNoMatchingRTR)}, nil)
		}, peerToPeer(false, false, false))},
	sendsRTR("INIT-RTR-WRITE", "Where the reply asks for a WRITE as RTR, the initiator's first FPDU is a WRITE of no bytes.",
		peerToPeer(true, false, false),
		"RTR by WRITE", func(c *conn, m *message) { m.field("T", 1).is(opWrite).carries(nil) }),
	sendsRTR("INIT-RTR-READ", "Where the reply asks for a READ as RTR, the initiator's first FPDU is a READ of no bytes.",
		peerToPeer(false, true, false),
		"RTR by READ", func(c *conn, m *message) { m.field("T", 0).is(opReadRequest).field("READ size", 0) }),
	sendsRTR("INIT-RTR-EMPTY", "Where the reply asks for a SEND as RTR, the initiator's first FPDU has no ULPDU.",
		peerToPeer(false, false, true),
		"B", func(c *conn, m *message) { m.framed("emptiness", len(m.ulpdu) == 0) }),
	{"INIT-RTR-HIDDEN", "The RTR completes no request of the initiator's ULP.", "RFC 6581 §5", on((*tester).dialling, func(c *conn) {
		c.peerToPeer()
		c.sendFrame()
		c.event("ESTABLISHED")
		c.begin()
		m := c.next().is(opReadRequest)
		c.unanswered(c.respond(m, nil))
		c.None()
	}, peerToPeer(false, true, false))},
	{"INIT-SENDS-FIRST", "An initiator whose reply is in client-server mode sends as soon as its ULP posts something.",
		"RFC 5044 §7.1.2, RFC 6581 §4", on((*tester).initiated, func(c *conn) {
			c.request(8, control.Send{Opcode: "SEND"}, opSend)
		})},
	{"INIT-ORD-KEPT", "An initiator has no more READs outstanding than the reply's IRD.", "RFC 6581 §9.1", func(t *tester) {
		c := t.negotiated(enhance(func(e *mpa.Enhanced) { e.IRD = 1 }))
		c.event("ESTABLISHED")
		c.begin()
		c.post(8, control.Send{Opcode: "RDMA_READ", RKey: ourTag})
		m := c.request(8, control.Send{Opcode: "RDMA_READ", RKey: ourTag}, opReadRequest)
		c.quiet()
		c.ask(c.respond(m, make([]byte, 8))).is(opReadRequest)
	}},
	{"INIT-IRD-ANY", "A reply with an IRD of 0x3fff leaves the initiator's ORD as it is.", "RFC 6581 §9.1", func(t *tester) {
		c := t.negotiated(enhance(func(e *mpa.Enhanced) { e.IRD = mpa.NoNegotiation }), func(s *settings) { s.ReadsOut = 2 })
		c.event("ESTABLISHED")
		c.begin()
		for range 3 {
			c.post(8, control.Send{Opcode: "RDMA_READ", RKey: ourTag})
		}
		c.next().is(opReadRequest)
		c.next().is(opReadRequest)
		c.quiet()
	}},
}
