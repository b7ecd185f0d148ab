package iwarp

import (
	"encoding/binary"

	"github.com/softrnic/softrnic/rdmatransport/ddp"
	"github.com/softrnic/softrnic/rdmatransport/rdmap"
)

const opcodeClause = "RFC 5040 §4.1, §7.2"

// delivered returns a case in which a message of queue 0 is delivered to the ULP.
func delivered(id, statement, source string, op rdmap.Opcode) entry {
	return entry{id, statement, source, func(t *tester) {
		c := t.rc(receives(1))
		c.delivers(c.message(op, pattern(20, 1)))
		c.Holds(0, pattern(20, 1))
	}}
}

// invalidating returns a SEND that invalidates an STag.
func (c *conn) invalidating(op rdmap.Opcode, stag uint32, data []byte) []byte {
	b := c.message(op, data)
	binary.BigEndian.PutUint32(b[2:], stag)
	return b
}

// Messages that the target receives.
var rdmapCases = []entry{
	delivered("RDMAP-SEND", "A SEND is placed in the first buffer of queue 0 and delivered.", "RFC 5040 §5.3", rdmap.Send),
	delivered("RDMAP-SEND-SE", "A SEND with solicited event is delivered.", "RFC 5040 §5.3", rdmap.SendSE),
	{"RDMAP-SEND-ZERO", "A SEND of no bytes takes a buffer and is delivered.", "RFC 5040 §5.3", onRC(func(c *conn) {
		c.send(c.sendMessage(nil))
		is(c.t, "the completion's length", c.Completes("SUCCESS").ByteLen, 0)
	}, receives(1))},
	{"RDMAP-SEND-OPCODE", "A SEND is delivered as one, without immediate data.", "RFC 5040 §5.3", onRC(func(c *conn) {
		c.send(c.sendMessage(nil))
		wc := c.Completion()
		is(c.t, "the completion's opcode", wc.Opcode, "RECV")
		is(c.t, "that there are immediate data", wc.WithImm, false)
	}, receives(1))},
	{"RDMAP-SEND-ORDER", "SENDs are delivered in the order in which they were sent.", "RFC 5040 §5.3, §5.5", onRC(func(c *conn) {
		c.unanswered(c.sendMessage(pattern(1, 1)), c.sendMessage(pattern(2, 1)), c.sendMessage(pattern(3, 1)))
		for n := range 3 {
			c.holdsCompletion(n, n+1)
		}
	}, receives(3))},
	{"RDMAP-INVALIDATE-IGNORED", "The STag to invalidate of a SEND without invalidate is ignored.", "RFC 5040 §4.1", onRC(func(c *conn) {
		c.delivers(c.invalidating(rdmap.Send, c.rkey, nil))
		c.unanswered(c.write(here, pattern(8, 1)))
		c.Holds(here, pattern(8, 1))
	}, receives(1))},
	{"RDMAP-INVALIDATE", "A SEND with invalidate tells the ULP which STag it has invalidated.", "RFC 5040 §5.3", onRC(func(c *conn) {
		wc := c.delivers(c.invalidating(rdmap.SendInvalidate, c.rkey, nil))
		is(c.t, "the key", wc.Inv, c.rkey)
	}, receives(1))},
	{"RDMAP-INVALIDATE-SE", "A SEND with invalidate and solicited event invalidates.", "RFC 5040 §5.3", onRC(func(c *conn) {
		c.send(c.invalidating(rdmap.SendSEInvalidate, c.rkey, nil))
		is(c.t, "that a key is invalidated", c.Completes("SUCCESS").WithInv, true)
	}, receives(1))},
	{"RDMAP-INVALIDATE-PLACED", "A SEND with invalidate is placed as one without.", "RFC 5040 §5.3", onRC(func(c *conn) {
		c.send(c.invalidating(rdmap.SendInvalidate, c.rkey, pattern(20, 1)))
		is(c.t, "the completion's length", c.Completes("SUCCESS").ByteLen, 20)
	}, receives(1))},
	{"RDMAP-INVALIDATED", "An invalidated STag is invalid for the peer.", "RFC 5040 §5.3, §8.1.1", onRC(func(c *conn) {
		c.delivers(c.invalidating(rdmap.SendInvalidate, c.rkey, nil))
		bad := c.write(0, pattern(8, 1))
		c.ask(bad).terminate(taggedCause(0), bad)
	}, receives(1))},
	refused("RDMAP-INVALIDATE-STAG",
		"A SEND with invalidate of an STag that does not exist is answered with a Terminate, STag cannot be invalidated.",
		"RFC 5040 §5.3, §7.2, §4.8", rdmap.CannotInvalidate,
		func(c *conn) []byte { return c.invalidating(rdmap.SendInvalidate, ^c.rkey, nil) }),
	refused("RDMAP-INVALIDATE-PD",
		"A SEND with invalidate of an STag of another protection domain is answered with a Terminate, STag cannot be invalidated.",
		"RFC 5040 §7.2, §8.1.1", rdmap.CannotInvalidate, func(c *conn) []byte {
			return c.invalidating(rdmap.SendInvalidate,
				c.elsewhere().rkey, nil)
		}),
	{"RDMAP-WRITE", "A WRITE is placed.", "RFC 5040 §5.1", onRC(func(c *conn) {
		c.unanswered(c.write(here, pattern(100, 1)))
		c.Holds(here, pattern(100, 1))
	})},
	{"RDMAP-WRITE-HIDDEN", "A WRITE is not delivered to the ULP.", "RFC 5040 §5.1", onRC(func(c *conn) {
		c.unanswered(c.write(here, pattern(100, 1)))
		c.None()
	}, receives(1))},
	{"RDMAP-WRITE-EXACT", "A WRITE changes only the bytes of its data.", "RFC 5040 §5.1", onRC(func(c *conn) {
		c.Put(here, pattern(64, 0x77))
		c.unanswered(c.write(here+16, pattern(16, 1)))
		want := pattern(64, 0x77)
		copy(want[16:], pattern(16, 1))
		c.Holds(here, want)
	})},
	{"RDMAP-WRITE-SEND", "When a SEND is delivered, the data of the WRITEs before it are in place.", "RFC 5040 §5.5", onRC(func(c *conn) {
		c.delivers(c.write(here, pattern(5000, 1)), c.sendMessage(nil))
		c.Holds(here, pattern(5000, 1))
	}, receives(1))},
	{"RDMAP-RESERVED", "The reserved bits of RDMAP's control field are not checked.", "RFC 5040 §4.1", onRC(func(c *conn) {
		b := c.write(here, pattern(8, 1))
		c.unanswered(edit(b, 1, b[1]|0x30))
		c.Holds(here, pattern(8, 1))
	})},
	refused("RDMAP-VERSION-UNTAGGED", "An untagged message of another RDMAP version is answered with a Terminate, invalid RDMAP version.",
		"RFC 5040 §4.1, §7.2",
		rdmap.InvalidVersion, func(c *conn) []byte {
			b := c.sendMessage(nil)
			return edit(b, 1, b[1]&0x3f|0x80)
		}),
	refused("RDMAP-VERSION-TAGGED", "A tagged message of another RDMAP version is answered with a Terminate, invalid RDMAP version.",
		"RFC 5040 §4.1, §7.2",
		rdmap.InvalidVersion, func(c *conn) []byte {
			b := c.write(here, pattern(8, 1))
			return edit(b, 1, b[1]&0x3f|0x80)
		}),
	refused("OPCODE-UNTAGGED", "An untagged message with a reserved opcode is answered with a Terminate, unexpected opcode.", opcodeClause,
		rdmap.UnexpectedOpcode, func(c *conn) []byte {
			b := c.sendMessage(nil)
			return edit(b, 1, 0x4f)
		}),
	refused("OPCODE-TAGGED", "A tagged message with a reserved opcode is answered with a Terminate, unexpected opcode.", opcodeClause,
		rdmap.UnexpectedOpcode, func(c *conn) []byte { return edit(c.write(here, pattern(8, 1)), 1, 0x4f) }),
	refused("OPCODE-SEND-TAGGED", "A SEND in a tagged segment is answered with a Terminate, unexpected opcode.", opcodeClause,
		rdmap.UnexpectedOpcode, func(c *conn) []byte { return edit(c.write(here, pattern(8, 1)), 1, rdmap.Send.Control()) }),
	refused("OPCODE-WRITE-UNTAGGED", "A WRITE in an untagged segment is answered with a Terminate, unexpected opcode.", opcodeClause,
		rdmap.UnexpectedOpcode, func(c *conn) []byte { return untagged(ddp.Untagged{Last: true, MSN: 1}, rdmap.Write, pattern(8, 1)) }),
	refused("OPCODE-READ-TAGGED", "A READ request in a tagged segment is answered with a Terminate, unexpected opcode.", opcodeClause,
		rdmap.UnexpectedOpcode, func(c *conn) []byte {
			return tagged(rdmap.ReadRequest, c.rkey, c.addr+here, make([]byte, rdmap.ReadRequestLen))
		}),
	refused("OPCODE-TERMINATE-TAGGED", "A Terminate in a tagged segment is answered with a Terminate, unexpected opcode.", opcodeClause,
		rdmap.UnexpectedOpcode, func(c *conn) []byte { return tagged(rdmap.Terminate, c.rkey, c.addr+here, make([]byte, 4)) }),
	refused("OPCODE-RESPONSE-UNTAGGED", "A READ response in an untagged segment is answered with a Terminate, unexpected opcode.",
		opcodeClause,
		rdmap.UnexpectedOpcode, func(c *conn) []byte {
			return untagged(ddp.Untagged{Last: true, MSN: 1}, rdmap.ReadResponse, pattern(8, 1))
		}),
	refused("OPCODE-SEND-QUEUE1", "A SEND on queue 1 is answered with a Terminate, unexpected opcode.", opcodeClause,
		rdmap.UnexpectedOpcode, func(c *conn) []byte {
			return untagged(ddp.Untagged{Last: true, QN: 1, MSN: 1}, rdmap.Send, pattern(8, 1))
		}),
	refused("OPCODE-SEND-QUEUE2", "A SEND on queue 2 is answered with a Terminate, unexpected opcode.", opcodeClause,
		rdmap.UnexpectedOpcode, func(c *conn) []byte {
			return untagged(ddp.Untagged{Last: true, QN: 2, MSN: 1}, rdmap.Send, pattern(8, 1))
		}),
	refused("OPCODE-READ-QUEUE0", "A READ request on queue 0 is answered with a Terminate, unexpected opcode.", opcodeClause,
		rdmap.UnexpectedOpcode, func(c *conn) []byte {
			return untagged(ddp.Untagged{Last: true, MSN: 1}, rdmap.ReadRequest, make([]byte, rdmap.ReadRequestLen))
		}),
	refused("OPCODE-TERMINATE-QUEUE0", "A Terminate on queue 0 is answered with a Terminate, unexpected opcode.", opcodeClause,
		rdmap.UnexpectedOpcode, func(c *conn) []byte {
			return untagged(ddp.Untagged{Last: true, MSN: 1}, rdmap.Terminate, make([]byte, 4))
		}),
	refused("OPCODE-RESPONSE-NONE", "A READ response to an STag that no READ has named is answered with a Terminate, invalid STag.",
		"RFC 5041 §7.1, RFC 5040 §5.2.2",
		taggedCause(0), func(c *conn) []byte { return tagged(rdmap.ReadResponse, ^c.rkey, c.addr, pattern(8, 1)) }),
}

// holdsCompletion checks the number and length of the next of several completions.
func (c *conn) holdsCompletion(number, length int) {
	if len(c.completed) == 0 {
		c.completed = c.Poll()
	}
	if len(c.completed) == 0 {
		c.t.Failf("completion %d does not come", number)
	}
	wc := c.completed[0]
	c.completed = c.completed[1:]
	is(c.t, "the completion's number", wc.WRID, uint64(number))
	is(c.t, "the completion's length", wc.ByteLen, uint32(length))
}
