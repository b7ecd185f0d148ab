package iwarp

import (
	"github.com/softrnic/softrnic/cmd/softrnic/internal/conform/control"
	"github.com/softrnic/softrnic/rdmatransport/mpa"
)

// setUp skips a case if the target's frame shows another set-up.
func (c *conn) setUp(field string, want uint64, otherwise string) {
	if c.frame.value(field) != want {
		c.t.Skipf("the target %s: set it up otherwise", otherwise)
	}
}

// withoutCRC makes the tester not require CRCs.
func withoutCRC(s *settings) { s.frame.CRC = false }

// marked returns a connection on which the tester sends markers, as the target requests.
func marked(t *tester) *conn {
	c := t.accepted()
	c.setUp("M", 1, "asks for no markers")
	c.send(c.write(0, nil))
	return c
}

// setUps are the cases of targets that do not require CRCs, request markers, or send requests of
// revision 1 or for client-server mode.
var setUps = []entry{
	{"FPDU-CRC-NONE", "Where neither side needs CRCs, a responder accepts an FPDU with any CRC field.",
		"RFC 5044 §4.1, §4.4, §7.1.1", onRC(func(c *conn) {
			c.setUp("C", 0, "needs CRCs")
			c.unansweredFrame(framing{ulpdu: c.write(here, pattern(8, 1)), crc: 0x5a})
			c.Holds(here, pattern(8, 1))
		}, withoutCRC)},
	{"FPDU-CRC-NONE-INITIATOR", "Where neither side needs CRCs, an initiator accepts an FPDU with any CRC field.",
		"RFC 5044 §4.1, §4.4, §7.1.1", on((*tester).dialling, func(c *conn) {
			c.readFrame()
			c.setUp("C", 0, "needs CRCs")
			if c.frame.value("S") == 0 {
				plain(&c.set)
			}
			c.sendFrame()
			c.event("ESTABLISHED")
			c.begin()
			c.post(8, control.Send{Opcode: "SEND"}) // the initiator sends first
			c.next().is(opSend)
			c.unansweredFrame(framing{ulpdu: c.write(here, pattern(8, 1)), zeroCRC: true})
			c.Holds(here, pattern(8, 1))
		}, withoutCRC)},
	{"MARKER-RECEIVED", "A receiver that has asked for markers removes them from the data.", "RFC 5044 §4.2, §4.3", func(t *tester) {
		c := marked(t)
		c.unanswered(c.write(0, pattern(2000, 1)))
		c.Holds(0, pattern(2000, 1))
	}},
	{"MARKER-RESERVED", "The reserved bits of a marker are not checked.", "RFC 5044 §4.2", func(t *tester) {
		c := marked(t)
		c.unansweredFrame(framing{ulpdu: c.write(0, pattern(2000, 1)), reserve: 0xffff})
		c.Holds(0, pattern(2000, 1))
	}},
	{"MARKER-POINTER", "A receiver treats the two low bits of FPDUPTR as zero.", "RFC 5044 §4.2, §4.3", func(t *tester) {
		c := marked(t)
		c.unansweredFrame(framing{ulpdu: c.write(0, pattern(2000, 1)), pointer: 3})
		c.Holds(0, pattern(2000, 1))
	}},
	{"INIT-PLAIN", "A request of revision 1 has S clear.", "RFC 6581 §10, RFC 5044 §7.1.1", on((*tester).dialling, func(c *conn) {
		c.readFrame()
		c.setUp("revision", 1, "sends requests of revision 2")
		c.frame.field("S", 0)
	})},
	{"INIT-CLIENT-RTR", "B, C and D of a request for client-server mode are clear.", "RFC 6581 §9.2", on((*tester).dialling, func(c *conn) {
		c.negotiating()
		c.setUp("A", 0, "asks for peer-to-peer mode")
		c.frame.field("B", 0).field("RTR by WRITE", 0).field("RTR by READ", 0)
	})},
	{"INIT-ORD-ANY", "A reply with an ORD of 0x3fff leaves the initiator's IRD as it is.", "RFC 6581 §9.1", func(t *tester) {
		c := t.negotiated(enhance(func(e *mpa.Enhanced) { e.ORD = mpa.NoNegotiation }), func(s *settings) { s.ReadsIn = 2 })
		c.event("ESTABLISHED")
		c.begin()
		c.request(8, control.Send{Opcode: "SEND"}, opSend)
		c.ask(c.readRequest(0, 4), c.readRequest(0, 4)).is(opReadResponse)
		c.next().is(opReadResponse)
	}},
}
