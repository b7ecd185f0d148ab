package iwarp

import (
	"github.com/softrnic/softrnic/cmd/softrnic/internal/conform/control"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/conform/suite"
	"github.com/softrnic/softrnic/rdmatransport/ddp"
	"github.com/softrnic/softrnic/rdmatransport/rdmap"
)

// taggedCause and untaggedCause return DDP's error types with a code (RFC 5041 §7.2).
func taggedCause(code uint8) rdmap.Cause {
	return rdmap.Cause{Layer: rdmap.LayerDDP, Type: uint8(ddp.TaggedError), Code: code}
}

func untaggedCause(code uint8) rdmap.Cause {
	return rdmap.Cause{Layer: rdmap.LayerDDP, Type: uint8(ddp.UntaggedError), Code: code}
}

const (
	untaggedClause = "RFC 5041 §7.1, §7.2"
	taggedClause   = "RFC 5041 §7.1, §7.2"
)

// part returns a segment of the current SEND.
func (c *conn) part(mo uint32, last bool, data []byte) []byte {
	return untagged(ddp.Untagged{Last: last, MSN: c.msn[0], MO: mo}, rdmap.Send, data)
}

// refusedLater is refused with correct segments before the bad one.
func refusedLater(id, statement, source string, cause rdmap.Cause, segments func(*conn) (before [][]byte, bad []byte)) entry {
	return entry{id, statement, source, func(t *tester) {
		c := t.rc(receives(1))
		before, bad := segments(c)
		c.send(before...)
		c.ask(bad).terminate(cause, bad)
		c.closed()
		c.Intact()
	}}
}

// without removes a right from the region or from the queue pair.
func without(right string, ofQP bool) func(*settings) {
	return func(s *settings) { suite.Deny(&s.Create, right, ofQP) }
}

// elsewhere returns a region of another protection domain.
func (c *conn) elsewhere() *conn { return c.t.qp(with(false, nil)) }

// Segments that the target receives.
var ddpCases = []entry{
	{"DDP-SEGMENTS", "The segments of an untagged message are placed at their offsets in one buffer.", "RFC 5041 §5.3, §5.4",
		func(t *tester) {
			c, data := t.rc(receives(1)), pattern(300, 1)
			c.delivers(c.part(0, false, data[:100]), c.part(100, false, data[100:250]), c.part(250, true, data[250:]))
			c.Holds(0, data)
		}},
	{"DDP-LENGTH", "The length of an untagged message is the end of its last segment.", "RFC 5041 §5.4", func(t *tester) {
		c, data := t.rc(receives(1)), pattern(300, 1)
		c.send(c.part(0, false, data[:100]), c.part(100, true, data[100:]))
		is(t, "the completion's length", c.Completion().ByteLen, 300)
	}},
	{"DDP-UNDELIVERED", "An untagged message whose last segment has not come is not delivered.", "RFC 5041 §5.4", onRC(func(c *conn) {
		c.unanswered(c.part(0, false, pattern(100, 1)))
		c.None()
	}, receives(1))},
	{"DDP-REST", "A message shorter than its buffer leaves the rest of the buffer unchanged.", "RFC 5041 §5.3", onRC(func(c *conn) {
		c.Put(0, pattern(1024, 0x77))
		c.delivers(c.sendMessage(pattern(10, 1)))
		c.Holds(10, pattern(1024, 0x77)[10:])
	}, receives(1))},
	{"DDP-FULL", "A message as long as its buffer is placed.", "RFC 5041 §5.3, §7.1", onRC(func(c *conn) {
		c.delivers(c.sendMessage(pattern(1024, 1)))
		c.Holds(0, pattern(1024, 1))
	}, receives(1))},
	{"DDP-BUFFERS", "Messages take the buffers of their queue in the order in which these were posted.", "RFC 5041 §5.3", onRC(func(c *conn) {
		c.send(c.sendMessage(pattern(10, 1)))
		is(c.t, "the first completion's number", c.Completion().WRID, 0)
		c.send(c.sendMessage(pattern(10, 2)))
		is(c.t, "the second completion's number", c.Completion().WRID, 1)
		c.Holds(1024, pattern(10, 2))
	}, receives(2))},
	{"DDP-QUEUES", "Each queue counts its messages by itself.", "RFC 5041 §4.3, §5.3", onRC(func(c *conn) {
		c.delivers(c.sendMessage(nil))
		c.send(c.sendMessage(nil), c.readRequest(0, 4)) // MSN 2 of queue 0, MSN 1 of queue 1
		c.next().is(opReadResponse)
		c.Completes("SUCCESS")
	}, receives(2))},
	{"DDP-TAGGED-SEGMENTS", "Each segment of a tagged message is placed at its own STag and TO.", "RFC 5041 §5.1, §5.2",
		func(t *tester) {
			c, data := t.rc(), pattern(200, 1)
			first := c.write(here, data[:100])
			first[0] &^= 0x40
			c.unanswered(first, c.write(here+100, data[100:]))
			c.Holds(here, data)
		}},
	{"DDP-TAGGED-UNORDERED", "The segments of a tagged message may name addresses in any order.", "RFC 5041 §5.1", func(t *tester) {
		c, data := t.rc(), pattern(200, 1)
		first := c.write(here+100, data[100:])
		first[0] &^= 0x40
		c.unanswered(first, c.write(here, data[:100]))
		c.Holds(here, data)
	}},
	{"DDP-TAGGED-ZERO", "STag and TO of a tagged segment without payload are not checked.", "RFC 5041 §5.2, §7.1", onRC(func(c *conn) {
		c.unanswered(tagged(rdmap.Write, ^c.rkey, ^uint64(0), nil))
		c.State("RTS")
	})},
	{"DDP-TAGGED-END", "A tagged segment that ends where its buffer ends is placed.", "RFC 5041 §7.1", onRC(func(c *conn) {
		c.unanswered(c.write(memory-8, pattern(8, 1)))
		c.Holds(memory-8, pattern(8, 1))
		c.Intact()
	})},
	{"DDP-RESERVED-TAGGED", "The reserved bits of a tagged header are not checked.", "RFC 5041 §4.1, §4.2", onRC(func(c *conn) {
		b := c.write(here, pattern(8, 1))
		c.unanswered(edit(b, 0, b[0]|0x3c))
		c.Holds(here, pattern(8, 1))
	})},
	{"DDP-RESERVED-UNTAGGED", "The reserved bits of an untagged header are not checked.", "RFC 5041 §4.1, §4.3", onRC(func(c *conn) {
		b := c.sendMessage(pattern(8, 1))
		c.delivers(edit(b, 0, b[0]|0x3c))
	}, receives(1))},
	{"DDP-AFTER-ERROR", "No data after a segment with an error is delivered.", "RFC 5041 §7, RFC 5040 §7.1", onRC(func(c *conn) {
		c.Put(here, pattern(8, 0x77))
		bad := tagged(rdmap.Write, ^c.rkey, c.addr, pattern(8, 1))
		c.sendRaw(append(c.out.encode(framing{ulpdu: bad}), c.out.encode(framing{ulpdu: c.write(here, pattern(8, 1))})...))
		c.next().terminate(taggedCause(0), bad)
		c.closed()
		c.Holds(here, pattern(8, 0x77))
	})},
	{"DDP-BEFORE-ERROR", "Messages before a segment with an error are delivered.", "RFC 5041 §7", onRC(func(c *conn) {
		bad := tagged(rdmap.Write, ^c.rkey, c.addr, pattern(8, 1))
		c.ask(c.sendMessage(pattern(8, 2)), bad).terminate(taggedCause(0), bad)
		c.Completes("SUCCESS")
	}, receives(1))},

	refused("DDP-QN", "A segment for a queue that does not exist is answered with a Terminate, invalid QN.", untaggedClause,
		untaggedCause(1),
		func(c *conn) []byte { return untagged(ddp.Untagged{Last: true, QN: 17, MSN: 1}, rdmap.Send, nil) }),
	{"DDP-NO-BUFFER", "A message for which no buffer is posted is answered with a Terminate, no buffer available.", untaggedClause,
		onRC(func(c *conn) {
			bad := c.sendMessage(pattern(8, 1))
			c.ask(bad).terminate(untaggedCause(2), bad)
			c.closed()
			c.Intact()
		})},
	refused("DDP-MSN-FIRST", "The first message of a queue has MSN 1: MSN 0 is answered with a Terminate, MSN range is not valid.",
		"RFC 5041 §4.3, §7.2",
		untaggedCause(3), func(c *conn) []byte { return untagged(ddp.Untagged{Last: true}, rdmap.Send, pattern(8, 1)) }),
	refusedLater("DDP-MSN-AGAIN", "A message with an earlier MSN is answered with a Terminate, MSN range is not valid.",
		untaggedClause, untaggedCause(3),
		func(c *conn) ([][]byte, []byte) {
			b := c.sendMessage(pattern(8, 1))
			return [][]byte{b}, b
		}),
	refused("DDP-MSN-FAR", "A message whose MSN is beyond all buffers is answered with a Terminate, MSN range is not valid.",
		untaggedClause,
		untaggedCause(3), func(c *conn) []byte {
			return untagged(ddp.Untagged{Last: true, MSN: 1 << 30}, rdmap.Send, pattern(8, 1))
		}),
	refused("DDP-MO-FIRST", "A message whose first segment has another offset than 0 is answered with a Terminate, invalid MO.",
		"RFC 5041 §7.1, §7.2, RFC 5044 §3",
		untaggedCause(4), func(c *conn) []byte { return c.part(8, true, pattern(8, 1)) }),
	refusedLater("DDP-MO-GAP", "A segment that skips a part of its message is answered with a Terminate, invalid MO.",
		"RFC 5041 §7.1, §7.2, RFC 5044 §3",
		untaggedCause(4), func(c *conn) ([][]byte, []byte) {
			return [][]byte{c.part(0, false, pattern(8, 1))}, c.part(16, true, pattern(8, 1))
		}),
	refusedLater("DDP-MO-BACK", "A duplicate segment is answered with a Terminate, invalid MO.",
		"RFC 5041 §7.1, §7.2, RFC 5044 §3", untaggedCause(4),
		func(c *conn) ([][]byte, []byte) {
			return [][]byte{c.part(0, false, pattern(8, 1))}, c.part(0, true, pattern(8, 1))
		}),
	refused("DDP-TOO-LONG", "A message of one segment that is longer than its buffer is answered with a Terminate, DDP message too long.",
		untaggedClause,
		untaggedCause(5), func(c *conn) []byte { return c.sendMessage(pattern(1025, 1)) }),
	refusedLater("DDP-TOO-LONG-LATER", "A later segment that ends beyond its buffer is answered with a Terminate, DDP message too long.",
		untaggedClause,
		untaggedCause(5), func(c *conn) ([][]byte, []byte) {
			return [][]byte{c.part(0, false, pattern(1000, 1))}, c.part(1000, true, pattern(25, 1))
		}),
	refused("DDP-VERSION-UNTAGGED", "An untagged segment of another DDP version is answered with a Terminate, invalid DDP version.",
		untaggedClause, untaggedCause(6),
		func(c *conn) []byte {
			b := c.sendMessage(nil)
			return edit(b, 0, b[0]&^3|2)
		}),
	refused("DDP-VERSION-TAGGED", "A tagged segment of another DDP version is answered with a Terminate, invalid DDP version.",
		taggedClause, taggedCause(4),
		func(c *conn) []byte {
			b := c.write(here, pattern(8, 1))
			return edit(b, 0, b[0]&^3|2)
		}),
	refused("DDP-STAG", "A tagged segment with an STag that does not exist is answered with a Terminate, invalid STag.", taggedClause,
		taggedCause(0),
		func(c *conn) []byte { return tagged(rdmap.Write, ^c.rkey, c.addr+here, pattern(8, 1)) }),
	refused("DDP-STAG-PD",
		"A tagged segment with an STag of another protection domain is answered with a Terminate, STag not associated with the stream.",
		taggedClause, taggedCause(2), func(c *conn) []byte {
			other := c.elsewhere()
			return tagged(rdmap.Write, other.rkey, other.addr, pattern(8, 1))
		}),
	refused("DDP-BOUNDS-END", "A tagged segment that ends beyond its buffer is answered with a Terminate, base or bounds violation.",
		taggedClause, taggedCause(1),
		func(c *conn) []byte { return c.write(memory-7, pattern(8, 1)) }),
	refused("DDP-BOUNDS-START", "A tagged segment that begins before its buffer is answered with a Terminate, base or bounds violation.",
		taggedClause, taggedCause(1),
		func(c *conn) []byte { return c.write(-1, pattern(8, 1)) }),
	refused("DDP-WRAP", "A tagged segment that ends beyond 2^64 is answered with a Terminate, TO wrap.", taggedClause, taggedCause(3),
		func(c *conn) []byte { return tagged(rdmap.Write, c.rkey, 1<<64-4, pattern(8, 1)) }),
	{"DDP-RIGHT", "A WRITE to a region without the right to remote writes changes nothing and ends the connection.",
		"RFC 5040 §8.1.1, RFC 5041 §7.1",
		onRC(func(c *conn) {
			c.ask(c.write(here, pattern(8, 1))).is(opTerminate)
			c.closed()
			c.Holds(here, make([]byte, 8))
		}, without("remote_write", false), without("remote_atomic", false))},
	{"DDP-RIGHT-QP", "A WRITE to a queue pair that does not allow them changes nothing and ends the connection.", suiteObserved,
		onRC(func(c *conn) {
			c.ask(c.write(here, pattern(8, 1))).is(opTerminate)
			c.closed()
			c.Holds(here, make([]byte, 8))
		}, without("remote_write", true))},
	{"DDP-SHORT", "A ULPDU that ends within its DDP header ends the connection.", suiteObserved, onRC(func(c *conn) {
		c.ask(c.write(here, nil)[:9]).is(opTerminate)
		c.closed()
	})},
	{"DDP-LATER-BOUNDS", "If a later segment of a tagged message is out of bounds, the segments before it are placed.",
		"RFC 5041 §5.1, §7.1", onRC(func(c *conn) {
			first := c.write(memory-8, pattern(8, 1))
			first[0] &^= 0x40
			bad := c.write(memory, pattern(8, 1))
			c.ask(first, bad).terminate(taggedCause(1), bad)
			c.Holds(memory-8, pattern(8, 1))
			c.Intact()
		})},
	{"DDP-FLUSH", "A message too long completes its receive with LOC_LEN_ERR.", suiteObserved, onRC(func(c *conn) {
		c.send(c.sendMessage(pattern(1025, 1)))
		c.Completes("LOC_LEN_ERR")
	}, receives(1))},
	{"DDP-EMPTY-QUEUE", "A message in several segments takes its buffer with the first of them.", "RFC 5041 §5.3", onRC(func(c *conn) {
		bad := c.part(0, false, pattern(8, 1))
		c.ask(bad).terminate(untaggedCause(2), bad)
	})},
	{"DDP-SEND-REPLIES", "The target sends its own messages while a message of the peer is incomplete.", "RFC 5041 §5.3", onRC(func(c *conn) {
		c.send(c.part(0, false, pattern(100, 1)))
		c.request(8, control.Send{Opcode: "SEND"}, opSend)
	}, receives(1))},
}
