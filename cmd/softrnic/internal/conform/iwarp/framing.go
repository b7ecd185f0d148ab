package iwarp

import (
	"github.com/softrnic/softrnic/cmd/softrnic/internal/conform/control"
	"github.com/softrnic/softrnic/rdmatransport/mpa"
	"github.com/softrnic/softrnic/rdmatransport/rdmap"
)

// wrongCRC is the cause of a Terminate for a wrong CRC.
var wrongCRC = rdmap.Cause{Layer: rdmap.LayerLLP, Type: mpa.ErrorType, Code: uint8(mpa.CodeCRC)}

// long is the length of a READ whose response takes several FPDUs, with several markers each.
const long = 8000

// readAll makes the target send a READ response, and calls each with its FPDUs.
func (c *conn) readAll(each func(m *message)) {
	c.Put(0, pattern(long, 5))
	c.send(c.readRequest(0, long))
	for n := 0; n < long; {
		m := c.next().is(opReadResponse)
		each(m)
		if len(m.payload()) == 0 {
			c.t.Failf("a segment of the response has no payload, and it is not complete")
		}
		n += len(m.payload())
	}
}

// FPDUs: length, pad, CRC and markers, in both directions.
var framingCases = []entry{
	{"FPDU-CRC-SENT", "An FPDU has the CRC32C of all that is before it.", "RFC 5044 §4.4", on((*tester).initiated, func(c *conn) {
		c.request(100, control.Send{Opcode: "SEND"}, opSend).crcRight()
	})},
	{"FPDU-CRC-PAD", "The CRC covers the pad.", "RFC 5044 §4.4", on((*tester).initiated, func(c *conn) {
		m := c.request(1, control.Send{Opcode: "SEND"}, opSend)
		m.framed("pad", len(m.pad) == 3)
		m.crcRight()
	})},
	{"FPDU-CRC-EITHER", "FPDUs have CRCs if one side only has asked for them.", "RFC 5044 §7.1.1", onRC(func(c *conn) {
		if c.frame.value("C") == 0 {
			c.t.Skipf("the target does not ask for CRCs by itself")
		}
		c.ask(c.readRequest(0, 4)).is(opReadResponse).crcRight()
	}, func(s *settings) { s.frame.CRC = false })},
	{"FPDU-CRC-WRONG", "An FPDU with a wrong CRC is answered with a Terminate, MPA's code 2.", "RFC 5044 §8, RFC 5040 §4.8",
		onRC(func(c *conn) {
			c.sendRaw(c.out.encode(framing{ulpdu: c.write(0, pattern(8, 1)), crc: 1}))
			c.next().terminate(wrongCRC, nil)
			c.closed()
		})},
	{"FPDU-CRC-ABSENT", "Where CRCs are agreed, an FPDU whose CRC field is zero has a wrong CRC.", "RFC 5044 §4.4", onRC(func(c *conn) {
		c.sendRaw(c.out.encode(framing{ulpdu: c.write(0, pattern(8, 1)), zeroCRC: true}))
		c.next().terminate(wrongCRC, nil)
	})},
	{"FPDU-CRC-NOTHING", "No data of an FPDU with a wrong CRC is placed.", "RFC 5044 §8", onRC(func(c *conn) {
		c.sendRaw(c.out.encode(framing{ulpdu: c.write(here, pattern(8, 1)), crc: 1}))
		c.closedAfter(wrongCRC)
		c.Holds(here, make([]byte, 8))
	})},
	{"FPDU-CRC-AFTER", "No data after an FPDU with a wrong CRC is delivered.", "RFC 5044 §8", onRC(func(c *conn) {
		c.sendRaw(append(c.out.encode(framing{ulpdu: c.write(0, pattern(8, 1)), crc: 1}),
			c.out.encode(framing{ulpdu: c.write(here, pattern(8, 1))})...))
		c.closedAfter(wrongCRC)
		c.Holds(here, make([]byte, 8))
	})},
	{"FPDU-CRC-LENGTH", "The CRC covers the length field.", "RFC 5044 §4.4", onRC(func(c *conn) {
		c.sendRaw(c.out.encode(framing{ulpdu: c.write(here, pattern(8, 1)), length: 14 + 8 - 2, crc: 0x5a}))
		c.closedAfter(wrongCRC)
		c.Holds(here, make([]byte, 8))
	})},
	{"FPDU-PAD-SENT", "The pad of an FPDU is zero.", "RFC 5044 §4.1", on((*tester).initiated, func(c *conn) {
		c.request(1, control.Send{Opcode: "SEND"}, opSend).padZero()
	})},
	{"FPDU-PAD-ANY", "The pad of an FPDU is not checked.", "RFC 5044 §4.1", onRC(func(c *conn) {
		c.unansweredFrame(framing{ulpdu: c.write(here, pattern(1, 1)), pad: 0xff})
		c.Holds(here, pattern(1, 1))
	})},
	{"FPDU-PIECES", "An FPDU in several TCP segments is reassembled.", "RFC 5044 §A.4, §4.5", onRC(func(c *conn) {
		b := c.out.encode(framing{ulpdu: c.write(here, pattern(100, 1))})
		c.sendRaw(b[:1])
		c.quiet()
		c.sendRaw(b[1:50])
		c.quiet()
		c.sendRaw(b[50:])
		c.silent()
		c.Holds(here, pattern(100, 1))
	})},
	{"FPDU-PACKED", "All FPDUs of one TCP segment are accepted.", "RFC 5044 §5.1", onRC(func(c *conn) {
		var all []byte
		for i := range 5 {
			all = append(all, c.out.encode(framing{ulpdu: c.write(here+8*i, pattern(8, byte(i)))})...)
		}
		c.sendRaw(all)
		c.silent()
		for i := range 5 {
			c.Holds(here+8*i, pattern(8, byte(i)))
		}
	})},
	{"FPDU-LONG", "An FPDU longer than a TCP segment is accepted.", "RFC 5044 §4.5, §5.1", onRC(func(c *conn) {
		c.unanswered(c.write(0, pattern(12000, 1)))
		c.Holds(0, pattern(12000, 1))
	})},
	{"FPDU-MULPDU", "No FPDU is longer than a TCP segment.", "RFC 5044 §4.5, §5.1", onRC(func(c *conn) {
		c.readAll(func(m *message) { m.framed("size", m.size <= c.t.MSS) })
	})},
	{"FPDU-MULPDU-LEAST", "All segments of a long message except the last have at least 128 bytes, the smallest MULPDU.",
		"RFC 5044 §3", onRC(func(c *conn) {
			c.readAll(func(m *message) {
				is(c.t, "that the ULPDU is long", len(m.ulpdu) >= 128 || m.value("L") == 1, true)
			})
		})},
	{"FPDU-UNMARKED", "FPDUs have no markers if their receiver has not asked for them.", "RFC 5044 §4.3, §7.1.1", onRC(func(c *conn) {
		var got []byte
		c.readAll(func(m *message) { got = append(got, m.crcRight().payload()...) })
		is(c.t, "that the data are right", string(got) == string(pattern(long, 5)), true)
	})},
	{"MARKER-SENT", "A responder whose initiator asks for markers sends one at each 512 bytes of the stream, which points to its FPDU.",
		"RFC 5044 §4.2, §4.3",
		func(t *tester) { t.rc(markers).readAll(func(m *message) { m.markersRight() }) }},
	{"MARKER-CRC", "The CRC covers the markers in its FPDU.", "RFC 5044 §4.4", func(t *tester) {
		t.rc(markers).readAll(func(m *message) { m.crcRight() })
	}},
	{"MARKER-MULPDU", "Including its markers, no FPDU is longer than a TCP segment.", "RFC 5044 §4.5", onRC(func(c *conn) {
		c.readAll(func(m *message) { m.framed("size", m.size <= c.t.MSS) })
	}, markers)},
	{"MARKER-INITIATOR", "An initiator whose responder asks for markers sends them.", "RFC 5044 §7.1.1", func(t *tester) {
		c := t.initiated(markers)
		c.post(2000, control.Send{Opcode: "SEND"})
		for {
			if m := c.next().is(opSend).markersRight(); m.value("L") == 1 {
				break
			}
		}
	}},
	{"MARKER-FIRST", "The first marker is in front of the first FPDU: the frames of the start-up do not count.", "RFC 5044 §4.3",
		on((*tester).initiated, func(c *conn) {
			c.request(8, control.Send{Opcode: "SEND"}, opSend).framed("markers", c.pos > 0).markersRight()
		}, markers)},
	{"MARKER-DATA", "Markers are not part of the data.", "RFC 5044 §4.2", onRC(func(c *conn) {
		var got []byte
		c.readAll(func(m *message) { got = append(got, m.payload()...) })
		is(c.t, "that the data are right", string(got) == string(pattern(long, 5)), true)
	}, markers)},
	{"MARKER-REQUEST", "A responder asked for markers accepts the connection: a peer's request for markers must be met.",
		"RFC 5044 §7.1.1", func(t *tester) {
			t.accepted(markers).frame.field("R", 0)
		}},
}

// closedAfter waits for a Terminate and then the end of the stream.
func (c *conn) closedAfter(cause rdmap.Cause) {
	c.next().terminate(cause, nil)
	c.closed()
}

// The end of connections.
var closing = []entry{
	{"CLOSE-FIN", "When the peer's stream ends between FPDUs, the target closes its own without a Terminate.",
		"RFC 5040 §6.2, RFC 5044 §7.2", onRC(func(c *conn) {
			_ = c.s.CloseWrite()
			c.closed()
		})},
	{"CLOSE-EVENT", "The ULP gets an event when the peer has closed the connection.", "RFC 5040 §6.2, RFC 5041 §3", func(t *tester) {
		c := t.initiated()
		_ = c.s.CloseWrite()
		c.Event("DISCONNECTED")
	}},
	{"CLOSE-FLUSH", "The receives of a connection that the peer has closed complete with WR_FLUSH_ERR.", suiteObserved, onRC(func(c *conn) {
		_ = c.s.CloseWrite()
		c.Completes("WR_FLUSH_ERR")
	}, receives(1))},
	{"CLOSE-RESET", "A reset connection is ended, and the ULP gets an event.", "RFC 5040 §7, RFC 5044 §8", func(t *tester) {
		c := t.initiated()
		c.s.Abort()
		c.Event("DISCONNECTED")
	}},
	{"CLOSE-CUT", "No data of an FPDU that the end of the stream truncates is placed.", "RFC 5044 §8", onRC(func(c *conn) {
		b := c.out.encode(framing{ulpdu: c.write(here, pattern(100, 1))})
		c.sendRaw(b[:len(b)-4])
		_ = c.s.CloseWrite()
		c.closed()
		c.Holds(here, make([]byte, 100))
	})},
	{"CLOSE-ULP", "When the ULP ends the connection, its side of the stream is closed without a Terminate.", "RFC 5040 §6.2.1",
		onRC(func(c *conn) {
			c.silent()
			c.Do(control.Request{Op: control.Disconnect})
			c.closed()
		})},
	{"CLOSE-ULP-AFTER", "Requests that the ULP posts before it ends the connection are sent before the end of the stream.", "RFC 5040 §6.2.1",
		on((*tester).initiated, func(c *conn) {
			c.post(8, control.Send{Opcode: "SEND"})
			c.Do(control.Request{Op: control.Disconnect})
			c.next().is(opSend)
			c.closed()
		})},
	{"CLOSE-STATE", "A queue pair whose connection has ended is in the error state.", suiteObserved, on((*tester).initiated, func(c *conn) {
		_ = c.s.CloseWrite()
		c.event("DISCONNECTED")
		c.State("ERR")
	})},
}
