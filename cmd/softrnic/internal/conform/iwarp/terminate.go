package iwarp

import (
	"bytes"

	"github.com/softrnic/softrnic/cmd/softrnic/internal/conform/suite"
	"github.com/softrnic/softrnic/rdmatransport/ddp"
	"github.com/softrnic/softrnic/rdmatransport/rdmap"
)

const suiteObserved = suite.Observed

// Values of the bits M, D and R.
const (
	quotesNothing = 0
	quotesDDP     = 6
	quotesREAD    = 7
)

// terminate checks that the message is a Terminate with a cause. It quotes the faulty segment as
// RFC 5040 §4.8 and §7.1 specify, and not at all for errors of the layer below.
func (m *message) terminate(c rdmap.Cause, bad []byte) {
	m.is(opTerminate).field("layer", uint64(c.Layer)).field("error type", uint64(c.Type)).field("error code", uint64(c.Code))
	m.quotes(c, bad)
}

// quotes compares the quoted segment of a Terminate.
func (m *message) quotes(c rdmap.Cause, bad []byte) {
	if bad == nil {
		m.field("M, D, R", quotesNothing)
		return
	}
	headers := bad[:ddp.HeaderLen(bad)]
	if c.Layer == rdmap.LayerRDMA && c.Type == rdmap.TypeRemoteProtection && uint64(bad[1]&0x0f) == opReadRequest {
		headers = bad
		m.field("M, D, R", quotesREAD)
	} else {
		m.field("M, D, R", quotesDDP)
	}
	m.field("DDP segment length", uint64(len(bad)))
	m.t.Check(m.number, "quoted headers")
	if got := m.ulpdu[min(24, len(m.ulpdu)):]; !bytes.Equal(got, headers) {
		m.t.Failf("the Terminate quotes % x, want % x", got, headers)
	}
}

// refused returns a case in which a segment ends the connection with a Terminate and changes no
// memory. A receive is posted.
func refused(id, statement, source string, cause rdmap.Cause, segment func(*conn) []byte, change ...func(*settings)) entry {
	return entry{id, statement, source, func(t *tester) {
		c := t.rc(append([]func(*settings){receives(1)}, change...)...)
		c.Put(here, pattern(64, 0x77))
		bad := segment(c)
		c.ask(bad).terminate(cause, bad)
		c.closed()
		c.Holds(here, pattern(64, 0x77))
		c.Intact()
	}}
}

// terminated returns a case in which the target sends a Terminate. check is called with the
// connection and the Terminate.
func terminated(id, statement, source string, check func(c *conn, m *message)) entry {
	return entry{id, statement, source, func(t *tester) {
		c := t.rc(receives(1))
		c.send(tagged(rdmap.Write, ^c.rkey, c.addr, []byte{1}))
		check(c, c.next().is(opTerminate))
	}}
}

// aTerminate returns a Terminate of the tester for a catastrophic error of the stream.
func (c *conn) aTerminate() []byte {
	b := make([]byte, rdmap.TerminateLen)
	(&rdmap.TerminateHeader{Cause: rdmap.StreamCatastrophic}).Encode(b)
	return c.message(rdmap.Terminate, b)
}

// Terminate messages, sent and received.
var terminates = []entry{
	terminated("TERM-QUEUE", "A Terminate is an untagged message of queue 2.", "RFC 5040 §5.4",
		func(_ *conn, m *message) { m.field("T", 0).field("QN", 2) }),
	terminated("TERM-MSN", "A Terminate has MSN 1.", "RFC 5040 §5.4, RFC 5041 §4.3", func(_ *conn, m *message) { m.field("MSN", 1) }),
	terminated("TERM-ONE", "A Terminate is one segment at offset 0.", "RFC 5040 §5.4",
		func(_ *conn, m *message) { m.field("MO", 0).field("L", 1) }),
	terminated("TERM-RESERVED", "The reserved bits of a Terminate are zero.", "RFC 5040 §4.8",
		func(_ *conn, m *message) { m.field("Terminate's reserved bits", 0) }),
	terminated("TERM-INVALIDATE", "The STag to invalidate of a Terminate is zero.", "RFC 5040 §4.1",
		func(_ *conn, m *message) { m.field("STag to invalidate", 0) }),
	terminated("TERM-LAST", "Nothing is sent after a Terminate, and the stream is closed.", "RFC 5040 §5.4, §6.2",
		func(c *conn, _ *message) { c.closed() }),
	terminated("TERM-EVENT", "The ULP of the sender of a Terminate gets an event that the connection has ended.", "RFC 5040 §7.1",
		func(c *conn, _ *message) {
			c.s.Abort()
			c.event("ESTABLISHED")
			c.Event("DISCONNECTED")
		}),
	terminated("TERM-STATE", "A queue pair that has sent a Terminate is in the error state.", suiteObserved,
		func(c *conn, _ *message) { c.State("ERR") }),
	terminated("TERM-FLUSH", "The receives of a queue pair that has sent a Terminate complete with WR_FLUSH_ERR.", suiteObserved,
		func(c *conn, _ *message) { c.Completes("WR_FLUSH_ERR") }),
	{"TERM-FIRST", "A Terminate reports the first of several errors.", "RFC 5040 §7.1", onRC(func(c *conn) {
		bad := c.write(memory, pattern(8, 1))
		c.sendRaw(append(c.out.encode(framing{ulpdu: bad}), c.out.encode(framing{ulpdu: tagged(rdmap.Write, ^c.rkey, 0, []byte{1})})...))
		c.next().terminate(taggedCause(1), bad)
		c.closed()
	})},
	{"TERM-RECEIVED", "A Terminate is not answered: the stream is closed.", "RFC 5040 §5.4, §6.2", onRC(func(c *conn) {
		c.send(c.aTerminate())
		c.closed()
	})},
	{"TERM-RECEIVED-EVENT", "The ULP gets an event when the peer has terminated the connection.", "RFC 5040 §5.4", func(t *tester) {
		c := t.initiated()
		c.send(c.aTerminate())
		c.closed()
		c.s.Abort()
		c.Event("DISCONNECTED")
	}},
	{"TERM-RECEIVED-FLUSH", "The receives of a connection that the peer has terminated complete with WR_FLUSH_ERR.", suiteObserved,
		onRC(func(c *conn) {
			c.send(c.aTerminate())
			c.Completes("WR_FLUSH_ERR")
		}, receives(1))},
	{"TERM-RECEIVED-HIDDEN", "A Terminate takes no receive request.", "RFC 5040 §5.4", onRC(func(c *conn) {
		c.send(c.aTerminate())
		c.closed()
		c.None()
	})},
}
