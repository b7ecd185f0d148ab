package iwarp

import (
	"github.com/softrnic/softrnic/cmd/softrnic/internal/conform/control"
	"github.com/softrnic/softrnic/rdmatransport/ddp"
	"github.com/softrnic/softrnic/rdmatransport/rdmap"
)

// theirTO is the remote address of the target's requests, at the tester.
const theirTO = 0x1122334455667788

// posts returns a case in which the target posts a request of n bytes, and check checks its first
// segment.
func posts(id, statement, source string, n int, s control.Send, check func(c *conn, m *message)) entry {
	s.RemoteAddr, s.RKey = theirTO, ourTag
	return entry{id, statement, source, func(t *tester) {
		c := t.initiated()
		c.Put(0, pattern(n, 7))
		c.post(n, s)
		check(c, c.next())
	}}
}

// segments returns a case in which the target posts a request of several segments. check is called
// with each. at is the number of bytes before the segment, left the number after it.
func segments(id, statement, source string, s control.Send, check func(m *message, at, left int)) entry {
	s.RemoteAddr, s.RKey = theirTO, ourTag
	return entry{id, statement, source, func(t *tester) {
		c := t.initiated()
		c.Put(0, pattern(long, 7))
		c.post(long, s)
		for at := 0; at < long; {
			m := c.next()
			n := len(m.payload())
			if n == 0 {
				t.Failf("a segment of %d bytes of which %d have come has no payload", long, at)
			}
			check(m, at, long-at-n)
			at += n
		}
	}}
}

// last returns the L bit of a segment with left bytes after it.
func last(left int) uint64 {
	if left == 0 {
		return 1
	}
	return 0
}

// badResponse returns a case in which a wrong response to the target's READ of 8 bytes ends the
// connection with a Terminate.
func badResponse(id, statement string, cause rdmap.Cause, response func(c *conn, m *message) []byte) entry {
	return entry{id, statement, "RFC 5041 §7.1, RFC 5040 §5.2.2", func(t *tester) {
		c := t.initiated()
		c.post(8, control.Send{Opcode: "RDMA_READ", RemoteAddr: theirTO, RKey: ourTag})
		bad := response(c, c.next().is(opReadRequest))
		c.ask(bad).terminate(cause, bad)
		c.Intact()
	}}
}

var (
	aSend  = control.Send{Opcode: "SEND"}
	aWrite = control.Send{Opcode: "RDMA_WRITE"}
	aRead  = control.Send{Opcode: "RDMA_READ"}
	anImm  = control.Send{Opcode: "RDMA_WRITE_WITH_IMM", Imm: 0x12345678}
	anAdd  = control.Send{Opcode: "FETCH_ADD", CompareAdd: 7}
	aSwap  = control.Send{Opcode: "CMP_SWAP", CompareAdd: 7, Swap: 9}
)

// Requests of the target, and its handling of responses.
var requester = []entry{
	posts("REQ-SEND", "A SEND is an untagged message of queue 0.", "RFC 5040 §5.3", 8, aSend,
		func(_ *conn, m *message) { m.field("T", 0).is(opSend).field("QN", 0) }),
	posts("REQ-SEND-DATA", "A SEND has the data of its buffer.", "RFC 5040 §5.3", 21, aSend,
		func(_ *conn, m *message) { m.is(opSend).carries(pattern(21, 7)) }),
	posts("REQ-SEND-MSN", "The first message of a queue has MSN 1.", "RFC 5041 §4.3", 8, aSend,
		func(_ *conn, m *message) { m.is(opSend).field("MSN", 1) }),
	posts("REQ-SEND-MSN-NEXT", "Each further message of a queue has the next MSN.", "RFC 5041 §4.3", 8, aSend, func(c *conn, m *message) {
		c.request(8, aSend, opSend).field("MSN", 2)
	}),
	posts("REQ-SEND-ZERO", "A SEND of no bytes is one segment without payload.", "RFC 5040 §5.3", 0, aSend,
		func(_ *conn, m *message) { m.is(opSend).field("L", 1).carries(nil) }),
	posts("REQ-SEND-SE", "A SEND with solicited event has its opcode.", "RFC 5040 §4.1", 8, control.Send{Opcode: "SEND", Solicited: true},
		func(_ *conn, m *message) { m.is(opSendSE) }),
	posts("REQ-SEND-INVALIDATE", "A SEND with invalidate has the STag that the ULP names.", "RFC 5040 §4.1, §5.3", 8,
		control.Send{Opcode: "SEND_WITH_INV", Invalidate: 0xabcdef01},
		func(_ *conn, m *message) { m.is(opSendInvalidate).field("STag to invalidate", 0xabcdef01) }),
	posts("REQ-SEND-NO-STAG", "The STag to invalidate of a SEND without invalidate is zero.", "RFC 5040 §4.1", 8, aSend,
		func(_ *conn, m *message) { m.is(opSend).field("STag to invalidate", 0) }),
	segments("REQ-SEND-MO", "Each segment of a SEND has the offset at which it begins.", "RFC 5041 §4.3, §5.2", aSend,
		func(m *message, at, _ int) { m.is(opSend).field("MO", uint64(at)) }),
	segments("REQ-SEND-LAST", "L is set in the last segment of a SEND only.", "RFC 5041 §4.1, §4.3", aSend,
		func(m *message, _, left int) { m.is(opSend).field("L", last(left)) }),
	segments("REQ-SEND-SAME-MSN", "All segments of a message have its MSN.", "RFC 5041 §4.3", aSend,
		func(m *message, _, _ int) { m.is(opSend).field("MSN", 1) }),
	segments("REQ-SEND-SEGMENT-QN", "All segments of a message are of its queue.", "RFC 5041 §4.3", aSend,
		func(m *message, _, _ int) { m.is(opSend).field("QN", 0) }),
	segments("REQ-SEND-PARTS", "The segments of a SEND have its data in order.", "RFC 5041 §5.2", aSend,
		func(m *message, at, left int) { m.is(opSend).carries(pattern(long, 7)[at : long-left]) }),
	{"REQ-SEND-COMPLETES", "A SEND completes.", "RFC 5040 §5.5", on((*tester).initiated, func(c *conn) {
		c.request(8, aSend, opSend)
		c.Completes("SUCCESS")
	})},
	posts("REQ-WRITE", "A WRITE is a tagged message.", "RFC 5040 §5.1", 8, aWrite,
		func(_ *conn, m *message) { m.field("T", 1).is(opWrite) }),
	posts("REQ-WRITE-STAG", "A WRITE has the STag that the ULP names.", "RFC 5040 §5.1", 8, aWrite,
		func(_ *conn, m *message) { m.is(opWrite).field("STag", ourTag) }),
	posts("REQ-WRITE-TO", "The first segment of a WRITE has the TO that the ULP names.", "RFC 5040 §5.1", 8, aWrite,
		func(_ *conn, m *message) { m.is(opWrite).field("TO", theirTO) }),
	posts("REQ-WRITE-DATA", "A WRITE has the data of its buffer.", "RFC 5040 §5.1", 21, aWrite,
		func(_ *conn, m *message) { m.is(opWrite).carries(pattern(21, 7)) }),
	segments("REQ-WRITE-SEGMENT-TO", "Each segment of a WRITE has the TO at which it begins.", "RFC 5041 §5.2", aWrite,
		func(m *message, at, _ int) { m.is(opWrite).field("TO", theirTO+uint64(at)) }),
	segments("REQ-WRITE-SEGMENT-STAG", "All segments of a WRITE have its STag.", "RFC 5041 §5.2", aWrite,
		func(m *message, _, _ int) { m.is(opWrite).field("STag", ourTag) }),
	segments("REQ-WRITE-LAST", "L is set in the last segment of a WRITE only.", "RFC 5041 §4.1, §4.2", aWrite,
		func(m *message, _, left int) { m.is(opWrite).field("L", last(left)) }),
	posts("REQ-RESERVED-UNTAGGED", "The reserved bits of an untagged header are zero.", "RFC 5041 §4.3", 8, aSend,
		func(_ *conn, m *message) { m.is(opSend).field("DDP's reserved bits", 0) }),
	posts("REQ-RESERVED-TAGGED", "The reserved bits of a tagged header are zero.", "RFC 5041 §4.2", 8, aWrite,
		func(_ *conn, m *message) { m.is(opWrite).field("DDP's reserved bits", 0) }),
	posts("REQ-RESERVED-RDMAP", "The reserved bits of RDMAP's control field are zero.", "RFC 5040 §4.1", 8, aSend,
		func(_ *conn, m *message) { m.is(opSend).field("RDMAP's reserved bits", 0) }),
	posts("REQ-VERSION-DDP", "The DDP version is 1.", "RFC 5041 §4.2, §4.3", 8, aSend,
		func(_ *conn, m *message) { m.is(opSend).field("DDP version", 1) }),
	posts("REQ-VERSION-RDMAP", "The RDMAP version is 1.", "RFC 5040 §4.1", 8, aSend,
		func(_ *conn, m *message) { m.is(opSend).field("RDMAP version", 1) }),

	posts("REQ-READ", "A READ request is an untagged message of queue 1.", "RFC 5040 §5.2.1", 8, aRead,
		func(_ *conn, m *message) { m.field("T", 0).is(opReadRequest).field("QN", 1) }),
	posts("REQ-READ-MSN", "READ requests count from MSN 1 on, and SENDs do not count with them.", "RFC 5041 §4.3, RFC 5040 §5.2.1", 8,
		aSend, func(c *conn, m *message) {
			c.request(8, aRead, opReadRequest).field("MSN", 1)
		}),
	posts("REQ-READ-ONE", "A READ request is one segment at offset 0.", "RFC 5040 §5.2.1", 8, aRead,
		func(_ *conn, m *message) { m.is(opReadRequest).field("MO", 0).field("L", 1) }),
	posts("REQ-READ-SIZE", "A READ request has the number of bytes that the ULP asks for.", "RFC 5040 §4.4", 300, aRead,
		func(_ *conn, m *message) { m.is(opReadRequest).field("READ size", 300) }),
	posts("REQ-READ-SOURCE", "A READ request has the source STag and TO that the ULP names.", "RFC 5040 §4.4", 8, aRead,
		func(_ *conn, m *message) {
			m.is(opReadRequest).field("source STag", ourTag).field("source TO", theirTO)
		}),
	posts("REQ-READ-PLACED", "The response of a READ is placed in the buffer of the READ.", "RFC 5040 §5.2.2", 100, aRead,
		func(c *conn, m *message) {
			c.delivers(c.respond(m, pattern(100, 3)))
			c.Holds(0, pattern(100, 3))
		}),
	posts("REQ-READ-SEGMENTS", "The segments of a READ response are reassembled.", "RFC 5040 §5.2.2, RFC 5041 §5.1", 100, aRead,
		func(c *conn, m *message) {
			first := c.respond(m, pattern(100, 3)[:60])
			first[0] &^= 0x40
			c.delivers(first, tagged(rdmap.ReadResponse, uint32(m.value("sink STag")), m.value("sink TO")+60, pattern(100, 3)[60:]))
			c.Holds(0, pattern(100, 3))
		}),
	posts("REQ-READ-WAITS", "A READ does not complete before its response.", "RFC 5040 §5.5", 100, aRead, func(c *conn, m *message) {
		c.silent()
		c.None()
	}),
	posts("REQ-READ-LATER", "A request posted after a READ is sent before the READ's response has come.", "RFC 5040 §5.5", 8, aRead,
		func(c *conn, m *message) {
			c.request(8, aSend, opSend)
		}),
	posts("REQ-COMPLETION-ORDER", "A request posted after a READ does not complete before the READ.", "RFC 5040 §5.5", 8, aRead,
		func(c *conn, m *message) {
			c.request(8, aSend, opSend)
			c.silent()
			c.None()
		}),
	posts("REQ-FENCE", "A request with a fence is not sent before the READs before it have their responses.", suiteObserved, 8, aRead,
		func(c *conn, m *message) {
			c.post(8, control.Send{Opcode: "SEND", Fence: true})
			c.silent()
			c.ask(c.respond(m, pattern(8, 3))).is(opSend)
		}),
	posts("REQ-READ-ZERO", "A READ of no bytes completes with the response of no bytes.", "RFC 5040 §5.2.1", 0, aRead,
		func(c *conn, m *message) {
			m.is(opReadRequest).field("READ size", 0)
			c.delivers(c.respond(m, nil))
		}),
	badResponse("REQ-RESPONSE-STAG", "A READ response with another STag than the sink's is answered with a Terminate, invalid STag.",
		taggedCause(0),
		func(_ *conn, m *message) []byte {
			return tagged(rdmap.ReadResponse, ^uint32(m.value("sink STag")), m.value("sink TO"), pattern(8, 3))
		}),
	badResponse("REQ-RESPONSE-LONG", "A READ response longer than the sink is answered with a Terminate, base or bounds violation.",
		taggedCause(1),
		func(c *conn, m *message) []byte { return c.respond(m, pattern(9, 3)) }),
	badResponse("REQ-RESPONSE-TO", "A READ response beyond the sink is answered with a Terminate, base or bounds violation.",
		taggedCause(1),
		func(_ *conn, m *message) []byte {
			return tagged(rdmap.ReadResponse, uint32(m.value("sink STag")), m.value("sink TO")+1<<40, pattern(8, 3))
		}),
	{"REQ-TERMINATED", "A READ that the peer terminates with a remote protection error completes with REM_ACCESS_ERR.",
		"RFC 5040 §4.8, §5.4", on((*tester).initiated, func(c *conn) {
			m := c.request(8, aRead, opReadRequest)
			h := rdmap.BoundsViolation.Quote(m.ulpdu)
			b := make([]byte, h.Len())
			h.Encode(b)
			c.send(c.message(rdmap.Terminate, b))
			c.Completes("REM_ACCESS_ERR")
		})},
	{"REQ-LOST", "A READ whose connection ends before the response completes with WR_FLUSH_ERR.", suiteObserved, func(t *tester) {
		c := t.initiated()
		c.request(8, aRead, opReadRequest)
		c.s.Abort()
		c.Completes("WR_FLUSH_ERR")
	}},

	posts("REQ-ORDER", "Messages are sent in the order in which they were posted.", "RFC 5040 §5.5", 8, aWrite, func(c *conn, m *message) {
		m.is(opWrite)
		c.post(8, aSend)
		c.request(8, aRead, opSend)
		c.next().is(opReadRequest)
	}),
	posts("REQ-IMM", "A WRITE with immediate data is a WRITE and a message of immediate data.", "RFC 7306 §6.1", 8, anImm,
		func(c *conn, m *message) {
			m.is(opWrite)
			c.next().field("T", 0).is(opImmediate)
		}),
	posts("REQ-IMM-QUEUE", "Immediate data are on queue 0.", "RFC 7306 §6.3", 8, anImm,
		func(c *conn, m *message) { c.next().is(opImmediate).field("QN", 0) }),
	posts("REQ-IMM-MSN", "Immediate data count with the SENDs.", "RFC 7306 §6.3, RFC 5041 §4.3", 8, anImm, func(c *conn, m *message) {
		c.request(8, aSend, opImmediate).field("MSN", 1)
		c.next().is(opSend).field("MSN", 2)
	}),
	posts("REQ-IMM-DATA", "Immediate data are 8 bytes, in network byte order.", "RFC 7306 §6.2", 8, anImm, func(c *conn, m *message) {
		c.next().is(opImmediate).field("immediate data", 0x12345678).carries([]byte{0, 0, 0, 0, 0x12, 0x34, 0x56, 0x78})
	}),
	posts("REQ-IMM-SE", "Immediate data with solicited event have their opcode.", "RFC 7306 §4.1", 8,
		control.Send{Opcode: "RDMA_WRITE_WITH_IMM", Solicited: true},
		func(c *conn, m *message) { c.next().is(opImmediateSE) }),

	posts("REQ-ATOMIC", "An atomic request is an untagged message of queue 1.", "RFC 7306 §5.2, §5.2.1", 8, anAdd,
		func(_ *conn, m *message) { m.field("T", 0).is(opAtomicRequest).field("QN", 1) }),
	posts("REQ-ATOMIC-MSN", "Atomic requests count with the READ requests.", "RFC 7306 §5.2.1, RFC 5041 §4.3", 8, aRead,
		func(c *conn, m *message) {
			m.is(opReadRequest)
			c.request(8, control.Send{Opcode: "FETCH_ADD", RemoteAddr: theirTO, RKey: ourTag}, opAtomicRequest).field("MSN", 2)
		}),
	posts("REQ-ATOMIC-TARGET", "An atomic request has the STag and TO that the ULP names.", "RFC 7306 §5.2.1", 8, anAdd,
		func(_ *conn, m *message) {
			m.is(opAtomicRequest).field("atomic STag", ourTag).field("atomic TO", theirTO)
		}),
	posts("REQ-ATOMIC-RESERVED", "The reserved bits of an atomic request are zero.", "RFC 7306 §5.2.1", 8, anAdd,
		func(_ *conn, m *message) { m.is(opAtomicRequest).field("atomic reserved bits", 0) }),
	posts("REQ-ATOMIC-ADD", "A FetchAdd has its code, and the data to add with no mask.", "RFC 7306 §5.1.1, §5.2.1", 8, anAdd,
		func(_ *conn, m *message) {
			m.is(opAtomicRequest).field("atomic opcode", uint64(rdmap.FetchAdd)).field("add or swap data", 7).field("add or swap mask", 0)
		}),
	posts("REQ-ATOMIC-SWAP", "A CmpSwap has its code, and data and masks for all of the word.", "RFC 7306 §5.1.2, §5.2.1", 8, aSwap,
		func(_ *conn, m *message) {
			m.is(opAtomicRequest).field("atomic opcode", uint64(rdmap.CmpSwap)).field("add or swap data", 9).field("add or swap mask", all)
			m.field("compare data", 7).field("compare mask", all)
		}),
	posts("REQ-ATOMIC-PLACED", "The value of an atomic response is placed in the buffer of the atomic.", "RFC 7306 §5.2.2", 8, anAdd,
		func(c *conn, m *message) {
			c.delivers(c.original(uint32(m.value("request identifier")), 0x1234))
			c.Holds(0, word(0x1234))
		}),
	posts("REQ-ATOMIC-WAITS", "An atomic does not complete before its response.", "RFC 7306 §5.4", 8, anAdd, func(c *conn, m *message) {
		c.silent()
		c.None()
	}),
	posts("REQ-ATOMIC-IDENTIFIER", "An atomic response with another identifier than the request's ends the connection with a Terminate.",
		"RFC 7306 §5.2.2", 8, anAdd,
		func(c *conn, m *message) {
			c.ask(c.original(^uint32(m.value("request identifier")), 1)).is(opTerminate)
		}),
}

// original returns an atomic response.
func (c *conn) original(id uint32, value uint64) []byte {
	b := make([]byte, rdmap.AtomicResponseLen)
	(&rdmap.AtomicResponseHeader{ID: id, Original: value}).Encode(b)
	return untagged(ddp.Untagged{Last: true, QN: 3, MSN: 1}, rdmap.AtomicResponse, b)
}
