package iwarp

import (
	"encoding/binary"
	"strings"

	"github.com/softrnic/softrnic/cmd/softrnic/internal/conform/control"
	"github.com/softrnic/softrnic/rdmatransport/mpa"
)

const (
	requestKey = "MPA ID Req Frame"
	replyKey   = "MPA ID Rep Frame"
)

// malformed returns a case in which an invalid frame ends the connection without an answer.
func malformed(id, statement, source string, change func([]byte) []byte) entry {
	return entry{id, statement, source, func(t *tester) {
		c := t.asked(func(s *settings) { s.raw = change })
		c.closed()
	}}
}

// private returns a frame with n bytes of private data and an unchanged length field.
func private(b []byte, n int) []byte {
	b = append(b[:frameLen:frameLen], make([]byte, n)...)
	binary.BigEndian.PutUint16(b[18:], uint16(n))
	return b
}

// plain makes the tester's frame a frame of revision 1.
func plain(s *settings) { s.frame.Revision, s.frame.HasEnhanced = 1, false }

// markers makes the tester request markers.
func markers(s *settings) { s.frame.Markers = true }

// reserved sets the reserved bits.
func reserved(b []byte) []byte { return edit(b, 16, b[16]|0x0f) }

// Set-up with the target as the responder.
var startup = []entry{
	{"MPA-REPLY-KEY", "A responder's frame begins with the key of a reply.", "RFC 5044 §7.1.1", func(t *tester) {
		t.accepted().frame.key(replyKey)
	}},
	{"MPA-REPLY-LATE", "A responder sends no reply before its ULP has accepted or rejected the connection.", "RFC 5044 §7.1.2",
		on((*tester).requested, func(c *conn) {
			c.quiet()
			c.accept()
			c.readFrame().field("R", 0)
		})},
	{"MPA-REPLY-ACCEPT", "The reply of a responder that accepts has R clear.", "RFC 5044 §7.1.1", func(t *tester) {
		t.accepted().frame.field("R", 0)
	}},
	{"MPA-REPLY-RESERVED", "The reserved bits of a reply are zero.", "RFC 5044 §7.1.1, RFC 6581 §6", func(t *tester) {
		t.accepted().frame.field("MPA's reserved bits", 0)
	}},
	{"MPA-REPLY-RESERVED-SET", "The reserved bits of a reply are zero where those of the request are set.",
		"RFC 5044 §7.1.1, RFC 6581 §6", func(t *tester) {
			t.accepted(func(s *settings) { s.frame.Reserved = 0x0f }).frame.field("MPA's reserved bits", 0)
		}},
	{"MPA-REPLY-REVISION1", "A request of revision 1 is answered with a reply of revision 1.", "RFC 5044 §7.1.1, RFC 6581 §10",
		func(t *tester) {
			t.accepted(plain).frame.field("revision", 1)
		}},
	{"MPA-REPLY-PLAIN", "A request that is not enhanced is answered with a reply that is not enhanced.", "RFC 6581 §10", func(t *tester) {
		t.accepted(plain).frame.field("S", 0)
	}},
	{"MPA-REPLY-PRIVATE", "A reply has the private data that the responder's ULP gives.", "RFC 5044 §7.1.1", func(t *tester) {
		t.accepted(plain, func(s *settings) { s.Data = pattern(100, 3) }).frame.carries(pattern(100, 3))
	}},
	{"MPA-REPLY-PRIVATE-NONE", "PD_Length of a reply is 0 if the ULP has no private data.", "RFC 5044 §7.1.1", func(t *tester) {
		t.accepted(plain).frame.field("PD_Length", 0)
	}},
	{"MPA-REPLY-PRIVATE-MOST", "A reply can have 512 bytes of private data.", "RFC 5044 §7.1.1", on((*tester).requested, func(c *conn) {
		if _, err := c.t.Control.Do(&control.Request{Op: control.Accept, QP: c.Handle, CM: &c.set.CM}); err != nil {
			c.t.Skipf("the target's interface takes less: %v", err)
		}
		c.readFrame().field("PD_Length", 512).carries(pattern(512, 3))
	}, plain, func(s *settings) { s.Data = pattern(512, 3) })},
	{"MPA-REQUEST-PRIVATE", "The responder's ULP is given the request's private data.", "RFC 5044 §7.1.2", on((*tester).asked, func(c *conn) {
		is(c.t, "the private data", string(c.event("CONNECT_REQUEST").Data), "hello")
	}, plain, func(s *settings) { s.frame.PrivateData = []byte("hello") })},
	{"MPA-REQUEST-PRIVATE-MOST", "A request with 512 bytes of private data is accepted.", "RFC 5044 §7.1.1", func(t *tester) {
		c := t.asked(plain, func(s *settings) { s.frame.PrivateData = pattern(512, 3) })
		data := c.event("CONNECT_REQUEST").Data // rdma_cm's C interface has at most 255 bytes
		is(t, "that the private data are the request's", strings.HasPrefix(string(pattern(512, 3)), string(data)), true)
		c.accept()
		c.readFrame().field("R", 0)
	}},
	malformed("MPA-REQUEST-PRIVATE-LONG", "A request whose PD_Length is above 512 makes the responder close the connection.",
		"RFC 5044 §7.1.1, §8",
		func(b []byte) []byte { return private(b, 513) }),
	{"MPA-REQUEST-PIECES", "A request in several TCP segments is accepted.", "RFC 5044 §7.1.2", func(t *tester) {
		c := t.called(plain, func(s *settings) { s.frame.PrivateData = []byte("hello") })
		b := make([]byte, c.set.frame.Len())
		_, _ = c.set.frame.Encode(b)
		c.sendRaw(b[:7])
		c.quiet()
		c.sendRaw(b[7:21])
		c.quiet()
		c.sendRaw(b[21:])
		is(t, "the private data", string(c.event("CONNECT_REQUEST").Data), "hello")
	}},
	malformed("MPA-REQUEST-KEY", "A request with a wrong key makes the responder close the connection.", "RFC 5044 §7.1.2, §8",
		func(b []byte) []byte { return edit(b, 15, 'E') }),
	malformed("MPA-REQUEST-REPLY", "A reply instead of a request makes the responder close the connection.", "RFC 5044 §7.1.2, §8",
		func(b []byte) []byte { return append([]byte(replyKey), b[16:]...) }),
	malformed("MPA-REQUEST-REVISION", "A request of an unknown revision makes the responder close the connection.", "RFC 5044 §7.1.1",
		func(b []byte) []byte { return edit(b, 17, 9) }),
	malformed("MPA-REQUEST-REVISION0",
		"A request of revision 0 makes the responder close the connection: iWARP over TCP begins with revision 1.",
		"RFC 5044 §7.1.1", func(b []byte) []byte { return edit(b, 17, 0) }),
	{"MPA-REQUEST-RESERVED", "The reserved bits of a request are not checked.", "RFC 5044 §7.1.1, RFC 6581 §6", func(t *tester) {
		t.accepted(func(s *settings) { s.raw = reserved }).frame.field("R", 0)
	}},
	{"MPA-REQUEST-R", "R of a request is not checked.", "RFC 5044 §7.1.1", func(t *tester) {
		t.accepted(func(s *settings) { s.frame.Rejected = true }).frame.field("R", 0)
	}},
	{"MPA-REQUEST-S1", "In a request of revision 1 the S bit is reserved: the private data belong to the ULP.",
		"RFC 5044 §7.1.1, RFC 6581 §6",
		on((*tester).asked, func(c *conn) {
			is(c.t, "the private data", string(c.event("CONNECT_REQUEST").Data), "hello")
		}, plain, func(s *settings) { s.frame.Reserved, s.frame.PrivateData = 0x10, []byte("hello") })},
	{"MPA-REQUEST-CUT", "The end of the stream within a request makes the responder close the connection.", "RFC 5044 §7.1.2",
		on((*tester).called, func(c *conn) {
			c.sendRaw([]byte(requestKey)[:12])
			_ = c.s.CloseWrite()
			c.closed()
		})},
	{"MPA-REQUEST-EARLY", "An initiator that sends an FPDU before it has the reply loses the connection.", "RFC 5044 §7.1.2",
		on((*tester).requested, func(c *conn) {
			c.send(c.write(0, []byte("early")))
			c.closed()
			c.Holds(0, make([]byte, 5))
		})},
	{"MPA-RESPONDER-WAITS", "A responder sends no FPDU before it has received one.", "RFC 5044 §7.1.2", on((*tester).accepted, func(c *conn) {
		c.post(8, control.Send{Opcode: "SEND"})
		c.quiet()
		c.ask(c.write(0, nil)).is(opSend)
	}, plain)},
	{"MPA-REJECT", "The reply of a responder whose ULP rejects the connection has R set.", "RFC 5044 §7.1.1", func(t *tester) {
		c := t.requested()
		c.Do(control.Request{Op: control.Reject})
		c.readFrame().field("R", 1)
	}},
	{"MPA-REJECT-PRIVATE", "A reply that rejects has the private data of the responder's ULP.", "RFC 5044 §7.1.1", func(t *tester) {
		c := t.requested(plain)
		c.Do(control.Request{Op: control.Reject, CM: &control.CM{Data: []byte("no")}})
		c.readFrame().field("R", 1).carries([]byte("no"))
	}},
	{"MPA-REJECT-CLOSE", "A responder that has rejected closes the connection.", "RFC 5044 §7.1.2", on((*tester).requested, func(c *conn) {
		c.Do(control.Request{Op: control.Reject})
		c.readFrame().field("R", 1)
		c.closed()
	})},
}

// enhance changes the tester's enhanced data.
func enhance(f func(*mpa.Enhanced)) func(*settings) {
	return func(s *settings) { f(&s.frame.Enhanced) }
}

// peerToPeer requests peer-to-peer mode with kinds of ready-to-receive messages.
func peerToPeer(write, read, empty bool) func(*settings) {
	return enhance(func(e *mpa.Enhanced) {
		e.PeerToPeer, e.RDMAWrite, e.RDMARead, e.ZeroLengthSend = true, write, read, empty
	})
}

// opens returns a case in which a ready-to-receive message permits the target to send.
func opens(id, statement string, mode func(*settings), rtr func(*conn)) entry {
	return entry{id, statement, "RFC 6581 §5, §9.2", func(t *tester) {
		c := t.accepted(mode)
		c.post(8, control.Send{Opcode: "SEND"})
		c.quiet()
		rtr(c)
		c.next().is(opSend)
	}}
}

// Enhanced set-up with the target as the responder.
var enhanced = []entry{
	{"ENH-REVISION", "An enhanced request is answered with a reply of revision 2.", "RFC 6581 §6", func(t *tester) {
		t.accepted().frame.field("revision", 2)
	}},
	{"ENH-REPLY", "An enhanced request is answered with an enhanced reply.", "RFC 6581 §10", func(t *tester) {
		t.accepted().frame.field("S", 1)
	}},
	malformed("ENH-SHORT", "An enhanced request with less than 4 bytes of private data makes the responder close the connection.",
		"RFC 6581 §6, RFC 5044 §8",
		func(b []byte) []byte { return private(b, 3) }),
	{"ENH-LENGTH", "PD_Length of an enhanced reply counts the enhanced data too.", "RFC 6581 §9", func(t *tester) {
		t.accepted(func(s *settings) { s.Data = []byte("hello") }).frame.field("PD_Length", 9)
	}},
	{"ENH-PRIVATE-REPLY", "The private data of an enhanced reply follow the enhanced data.", "RFC 6581 §9", func(t *tester) {
		t.accepted(func(s *settings) { s.Data = []byte("hello") }).frame.carries([]byte("hello"))
	}},
	{"ENH-PRIVATE-REQUEST", "The responder's ULP is given the private data of an enhanced request without the enhanced data.",
		"RFC 6581 §9", on((*tester).asked, func(c *conn) {
			is(c.t, "the private data", string(c.event("CONNECT_REQUEST").Data), "hello")
		}, func(s *settings) { s.frame.PrivateData = []byte("hello") })},
	{"ENH-ULP-IRD", "The responder's ULP is given the initiator's IRD.", "RFC 6581 §9.1", func(t *tester) {
		c := t.asked(enhance(func(e *mpa.Enhanced) { e.IRD, e.ORD = 3, 5 }))
		is(t, "initiator_depth", c.event("CONNECT_REQUEST").ReadsOut, 3)
	}},
	{"ENH-ULP-ORD", "The responder's ULP is given the initiator's ORD.", "RFC 6581 §9.1", func(t *tester) {
		c := t.asked(enhance(func(e *mpa.Enhanced) { e.IRD, e.ORD = 3, 5 }))
		is(t, "responder_resources", c.event("CONNECT_REQUEST").ReadsIn, 5)
	}},
	{"ENH-IRD", "A reply has the responder's IRD.", "RFC 6581 §9.1", func(t *tester) {
		t.accepted(func(s *settings) { s.ReadsIn = 2 }).frame.field("IRD", 2)
	}},
	{"ENH-ORD", "A reply has the responder's ORD.", "RFC 6581 §9.1", func(t *tester) {
		t.accepted(func(s *settings) { s.ReadsOut = 2 }).frame.field("ORD", 2)
	}},
	{"ENH-ORD-MOST", "A responder's ORD is no more than the initiator's IRD.", "RFC 6581 §9.1", func(t *tester) {
		t.accepted(enhance(func(e *mpa.Enhanced) { e.IRD = 1 }), func(s *settings) { s.ReadsOut = 1 }).frame.field("ORD", 1)
	}},
	{"ENH-ORD-KEPT", "A responder has no more READs outstanding than its ORD.", "RFC 6581 §9.1, RFC 5040 §6.1", func(t *tester) {
		c := t.rc(enhance(func(e *mpa.Enhanced) { e.IRD = 1 }), func(s *settings) { s.ReadsOut = 1 })
		c.post(8, control.Send{Opcode: "RDMA_READ", RKey: ourTag})
		m := c.request(8, control.Send{Opcode: "RDMA_READ", RKey: ourTag}, opReadRequest)
		c.quiet()
		c.ask(c.respond(m, make([]byte, 8))).is(opReadRequest)
	}},
	{"ENH-ORD-ANY", "The IRD of the reply to an ORD of 0x3fff is 0x3fff.", "RFC 6581 §9.1", func(t *tester) {
		t.accepted(enhance(func(e *mpa.Enhanced) { e.ORD = mpa.NoNegotiation })).frame.field("IRD", mpa.NoNegotiation)
	}},
	{"ENH-IRD-ANY", "The ORD of the reply to an IRD of 0x3fff is 0x3fff.", "RFC 6581 §9.1", func(t *tester) {
		t.accepted(enhance(func(e *mpa.Enhanced) { e.IRD = mpa.NoNegotiation })).frame.field("ORD", mpa.NoNegotiation)
	}},
	{"ENH-A", "A request for peer-to-peer mode is answered with A set.", "RFC 6581 §9.2", func(t *tester) {
		t.accepted(peerToPeer(true, true, true)).frame.field("A", 1)
	}},
	{"ENH-CLIENT", "A request in client-server mode is answered with A clear.", "RFC 6581 §9.2", func(t *tester) {
		t.accepted().frame.field("A", 0)
	}},
	{"ENH-CLIENT-RTR", "In client-server mode B, C and D of the reply are clear.", "RFC 6581 §9.2", func(t *tester) {
		t.accepted().frame.field("B", 0).field("RTR by WRITE", 0).field("RTR by READ", 0)
	}},
	{"ENH-CLIENT-RTR-IGNORED", "In client-server mode B, C and D of the request are ignored.", "RFC 6581 §9.2", func(t *tester) {
		f := t.accepted(enhance(func(e *mpa.Enhanced) { e.ZeroLengthSend, e.RDMAWrite, e.RDMARead = true, true, true })).frame
		f.field("R", 0).field("B", 0).field("RTR by WRITE", 0).field("RTR by READ", 0)
	}},
	{"ENH-RTR-SOME", "A reply in peer-to-peer mode offers a kind of RTR that the request has offered.", "RFC 6581 §9.2", func(t *tester) {
		f := t.accepted(peerToPeer(true, true, true)).frame
		is(t, "that there is a kind of RTR", f.value("B")+f.value("RTR by WRITE")+f.value("RTR by READ") > 0, true)
	}},
	{"ENH-RTR-NONE", "A reply to a request for peer-to-peer mode without a kind of RTR offers one that the responder has.",
		"RFC 6581 §9.2", func(t *tester) {
			f := t.accepted(peerToPeer(false, false, false)).frame
			is(t, "that there is a kind of RTR", f.value("B")+f.value("RTR by WRITE")+f.value("RTR by READ") > 0, true)
		}},
	{"ENH-RTR-WAITS", "In peer-to-peer mode a responder sends no FPDU before the RTR.", "RFC 6581 §5", on((*tester).accepted, func(c *conn) {
		c.post(8, control.Send{Opcode: "SEND"})
		c.quiet()
	}, peerToPeer(true, true, true))},
	opens("ENH-RTR-WRITE", "A WRITE of no bytes as RTR lets the responder send.", peerToPeer(true, false, false), func(c *conn) {
		c.frame.field("RTR by WRITE", 1)
		c.send(tagged(0, 0, 0, nil))
	}),
	{"ENH-RTR-READ", "A READ of no bytes as RTR is answered, and lets the responder send.", "RFC 6581 §5, §9.2", func(t *tester) {
		c := t.accepted(peerToPeer(false, true, false))
		c.frame.field("RTR by READ", 1)
		c.ask(c.readRequest(0, 0)).is(opReadResponse).carries(nil)
		c.request(8, control.Send{Opcode: "SEND"}, opSend)
	}},
	opens("ENH-RTR-EMPTY", "An FPDU without a ULPDU as RTR lets the responder send.", peerToPeer(false, false, true), func(c *conn) {
		c.frame.field("B", 1)
		c.send(nil)
	}),
	{"ENH-RTR-HIDDEN", "An FPDU without a ULPDU as RTR takes no receive request.", "RFC 6581 §5", on((*tester).accepted, func(c *conn) {
		c.frame.field("B", 1)
		c.unanswered(nil)
		c.None()
	}, peerToPeer(false, false, true), receives(1))},
}

// receives makes the target post n receives of 1024 bytes, from the region's first byte on.
func receives(n int) func(*settings) { return func(s *settings) { s.receives = n } }
