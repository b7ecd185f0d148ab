package iwarp

import (
	"github.com/softrnic/softrnic/rdmatransport/ddp"
	"github.com/softrnic/softrnic/rdmatransport/rdmap"
)

// atomic returns an atomic request on the word at off of the region.
func (c *conn) atomic(off int, h rdmap.AtomicRequestHeader) []byte {
	h.STag, h.TO = c.rkey, c.addr+uint64(off)
	return c.atomicAt(h)
}

func (c *conn) atomicAt(h rdmap.AtomicRequestHeader) []byte {
	b := make([]byte, rdmap.AtomicRequestLen)
	h.Encode(b)
	return c.message(rdmap.AtomicRequest, b)
}

// operation returns a case in which an atomic changes the word from old to want.
func operation(id, statement, source string, old uint64, h rdmap.AtomicRequestHeader, want uint64) entry {
	return entry{id, statement, source, func(t *tester) {
		c := t.rc()
		c.Put(here, word(old))
		c.ask(c.atomic(here, h)).is(opAtomicResponse).field("original value", old)
		c.Holds(here, word(want))
	}}
}

const atomicClause = "RFC 7306 §8.2, RFC 5040 §4.8"

// Atomics and immediate data of the tester.
var atomics = []entry{
	operation("ATOMIC-ADD", "FetchAdd adds to the word, and returns its original value.", "RFC 7306 §5.1.1", 5,
		rdmap.AtomicRequestHeader{Data: 7}, 12),
	operation("ATOMIC-ADD-CARRY", "FetchAdd drops the carry out of the highest bit.", "RFC 7306 §5.1.1", 1<<64-1,
		rdmap.AtomicRequestHeader{Data: 2}, 1),
	operation("ATOMIC-ADD-MASK", "A bit in the mask of FetchAdd ends a field: the carry out of it is dropped.", "RFC 7306 §5.1.1",
		0x00000001_ffffffff,
		rdmap.AtomicRequestHeader{Data: 0x00000001_00000001, Mask: 1 << 31}, 0x00000002_00000000),
	operation("ATOMIC-SWAP", "CmpSwap stores its data if the word is equal to the compare data.", "RFC 7306 §5.1.2", 5,
		rdmap.AtomicRequestHeader{Code: rdmap.CmpSwap, Data: 9, Mask: all, CompareData: 5, CompareMask: all}, 9),
	operation("ATOMIC-SWAP-DIFFERENT", "CmpSwap leaves the word unchanged if it is not equal to the compare data.", "RFC 7306 §5.1.2", 5,
		rdmap.AtomicRequestHeader{Code: rdmap.CmpSwap, Data: 9, Mask: all, CompareData: 6, CompareMask: all}, 5),
	operation("ATOMIC-SWAP-COMPARE-MASK", "CmpSwap compares only the bits that are set in the compare mask.", "RFC 7306 §5.1.2", 0x1205,
		rdmap.AtomicRequestHeader{Code: rdmap.CmpSwap, Data: 9, Mask: all, CompareData: 0x3405, CompareMask: 0xff}, 9),
	operation("ATOMIC-SWAP-MASK", "CmpSwap stores only the bits that are set in the swap mask.", "RFC 7306 §5.1.2", 0x1205,
		rdmap.AtomicRequestHeader{Code: rdmap.CmpSwap, Data: 0x3409, Mask: 0xff, CompareData: 0x1205, CompareMask: all}, 0x1209),
	operation("ATOMIC-SWAP-ALWAYS", "CmpSwap with a compare mask of 0 is an unconditional swap.", "RFC 7306 §5.1.2", 5,
		rdmap.AtomicRequestHeader{Code: rdmap.CmpSwap, Data: 9, Mask: all, CompareData: 77}, 9),
	operation("ATOMIC-RESERVED", "The reserved bits of an atomic request are not checked.", "RFC 7306 §5.2.1", 5,
		rdmap.AtomicRequestHeader{Reserved: 1<<28 - 1, Data: 7}, 12),
	{"ATOMIC-QUEUE", "An atomic response is an untagged message of queue 3.", "RFC 7306 §5.2, §5.2.2", onRC(func(c *conn) {
		c.ask(c.atomic(here, rdmap.AtomicRequestHeader{Data: 1})).field("T", 0).is(opAtomicResponse).field("QN", 3)
	})},
	{"ATOMIC-HIDDEN", "An atomic takes no receive request, and is not delivered to the ULP.", "RFC 7306 §5.2.1", onRC(func(c *conn) {
		c.ask(c.atomic(here, rdmap.AtomicRequestHeader{Data: 1})).is(opAtomicResponse)
		c.None()
	}, receives(1))},
	{"ATOMIC-MSN", "Atomic responses count from MSN 1 on.", "RFC 7306 §5.2.2, RFC 5041 §4.3", onRC(func(c *conn) {
		c.send(c.atomic(here, rdmap.AtomicRequestHeader{Data: 1}), c.atomic(here, rdmap.AtomicRequestHeader{Data: 1}))
		c.next().is(opAtomicResponse).field("MSN", 1)
		c.next().is(opAtomicResponse).field("MSN", 2)
	})},
	{"ATOMIC-ONE", "An atomic response is one segment at offset 0.", "RFC 7306 §5.2.2, RFC 5041 §4.3", onRC(func(c *conn) {
		c.ask(c.atomic(here, rdmap.AtomicRequestHeader{Data: 1})).is(opAtomicResponse).field("MO", 0).field("L", 1)
	})},
	{"ATOMIC-IDENTIFIER", "An atomic response has the identifier of its request.", "RFC 7306 §5.2.2", onRC(func(c *conn) {
		c.ask(c.atomic(here, rdmap.AtomicRequestHeader{ID: 0xcafe0123})).is(opAtomicResponse).field("response identifier", 0xcafe0123)
	})},
	{"ATOMIC-LENGTH", "An atomic response has a message of 12 bytes.", "RFC 7306 §5.2.2", onRC(func(c *conn) {
		c.ask(c.atomic(here, rdmap.AtomicRequestHeader{ID: 1})).is(opAtomicResponse).carries(append([]byte{0, 0, 0, 1}, make([]byte, 8)...))
	})},
	{"ATOMIC-ORDER", "READs and atomics are answered in the order in which they were sent.", "RFC 7306 §5.2.2, §5.4", onRC(func(c *conn) {
		c.ask(c.readRequest(0, 8), c.atomic(here, rdmap.AtomicRequestHeader{Data: 1}), c.readRequest(here, 8)).is(opReadResponse)
		c.next().is(opAtomicResponse)
		c.next().is(opReadResponse).carries(word(1))
	})},
	refused("ATOMIC-ALIGN", "A FetchAdd on a word that is not aligned is answered with a Terminate, catastrophic error of the stream.",
		"RFC 7306 §5.1.1, §8.2",
		rdmap.StreamCatastrophic, func(c *conn) []byte { return c.atomic(here+4, rdmap.AtomicRequestHeader{Data: 1}) }),
	refused("ATOMIC-ALIGN-SWAP",
		"A CmpSwap on a word that is not aligned is answered with a Terminate, catastrophic error of the stream.", "RFC 7306 §5.1.2, §8.2",
		rdmap.StreamCatastrophic, func(c *conn) []byte {
			return c.atomic(here+4, rdmap.AtomicRequestHeader{Code: rdmap.CmpSwap, Data: 1, Mask: all})
		}),
	refused("ATOMIC-CODE", "An atomic with a reserved operation is answered with a Terminate, unexpected opcode.", "RFC 7306 §5.2.1, §8.2",
		rdmap.UnexpectedOpcode, func(c *conn) []byte { return c.atomic(here, rdmap.AtomicRequestHeader{Code: 1}) }),
	refused("ATOMIC-STAG", "An atomic on an STag that does not exist is answered with a Terminate, invalid STag.", atomicClause,
		rdmap.InvalidSTag, func(c *conn) []byte { return c.atomicAt(rdmap.AtomicRequestHeader{STag: ^c.rkey, TO: c.addr + here}) }),
	refused("ATOMIC-PD",
		"An atomic on an STag of another protection domain is answered with a Terminate, STag not associated with the stream.",
		atomicClause,
		rdmap.STagNotAssociated, func(c *conn) []byte {
			other := c.elsewhere()
			return c.atomicAt(rdmap.AtomicRequestHeader{STag: other.rkey, TO: other.addr})
		}),
	refused("ATOMIC-RIGHT",
		"An atomic on a region without the right to remote atomics is answered with a Terminate, access rights violation.", atomicClause,
		rdmap.AccessViolation, func(c *conn) []byte { return c.atomic(here, rdmap.AtomicRequestHeader{Data: 1}) },
		without("remote_atomic", false)),
	refused("ATOMIC-RIGHT-QP",
		"An atomic to a queue pair that does not allow them is answered with a Terminate, access rights violation.", suiteObserved,
		rdmap.AccessViolation, func(c *conn) []byte { return c.atomic(here, rdmap.AtomicRequestHeader{Data: 1}) },
		without("remote_atomic", true)),
	refused("ATOMIC-BOUNDS", "An atomic beyond its buffer is answered with a Terminate, base or bounds violation.", atomicClause,
		rdmap.BoundsViolation, func(c *conn) []byte { return c.atomic(memory, rdmap.AtomicRequestHeader{Data: 1}) }),
	refused("ATOMIC-SHORT",
		"An atomic request that is shorter than its header is answered with a Terminate, catastrophic error of the stream.", suiteObserved,
		rdmap.StreamCatastrophic, func(c *conn) []byte { return c.message(rdmap.AtomicRequest, make([]byte, 51)) }),
	refused("ATOMIC-QUEUE0", "An atomic request on queue 0 is answered with a Terminate, unexpected opcode.", "RFC 7306 §4.1, §5.2, §8.2",
		rdmap.UnexpectedOpcode, func(c *conn) []byte {
			return untagged(ddp.Untagged{Last: true, MSN: 1}, rdmap.AtomicRequest, make([]byte, rdmap.AtomicRequestLen))
		}),

	{"IMM-VALUE", "Immediate data complete a receive with their value.", "RFC 7306 §6.3", onRC(func(c *conn) {
		wc := c.delivers(c.message(rdmap.ImmediateData, []byte{0, 0, 0, 0, 0x12, 0x34, 0x56, 0x78}))
		is(c.t, "the immediate data", wc.Imm, 0x12345678)
	}, receives(1))},
	{"IMM-SE", "Immediate data with solicited event complete a receive.", "RFC 7306 §6.3", onRC(func(c *conn) {
		c.send(c.message(rdmap.ImmediateDataSE, make([]byte, 8)))
		is(c.t, "that there are immediate data", c.Completes("SUCCESS").WithImm, true)
	}, receives(1))},
	{"IMM-WRITE", "When immediate data are delivered, the data of the WRITE before them are in place.", "RFC 7306 §6.1, RFC 5040 §5.5",
		onRC(func(c *conn) {
			c.delivers(c.write(here, pattern(100, 1)), c.message(rdmap.ImmediateData, make([]byte, 8)))
			c.Holds(here, pattern(100, 1))
		}, receives(1))},
	{"IMM-BUFFER", "Immediate data change nothing in the buffer of the receive that they complete.", suiteObserved, onRC(func(c *conn) {
		c.Put(0, pattern(64, 0x77))
		c.delivers(c.message(rdmap.ImmediateData, pattern(8, 1)))
		c.Holds(0, pattern(64, 0x77))
	}, receives(1))},
	{"IMM-ORDER", "Immediate data and SENDs are delivered in the order in which they were sent.", "RFC 7306 §6.3", onRC(func(c *conn) {
		c.send(c.message(rdmap.ImmediateData, make([]byte, 8)))
		is(c.t, "that the first has immediate data", c.Completion().WithImm, true)
		c.send(c.sendMessage(pattern(3, 1)))
		is(c.t, "that the second has immediate data", c.Completion().WithImm, false)
	}, receives(2))},
	{"IMM-NO-BUFFER", "Immediate data for which no receive is posted are answered with a Terminate, no buffer available.",
		"RFC 7306 §6.3, RFC 5041 §7.1", onRC(func(c *conn) {
			bad := c.message(rdmap.ImmediateData, make([]byte, 8))
			c.ask(bad).terminate(untaggedCause(2), bad)
		})},
	{"IMM-LENGTH", "Immediate data that are not 8 bytes end the connection with a Terminate.", "RFC 7306 §6.3", onRC(func(c *conn) {
		c.ask(c.message(rdmap.ImmediateData, make([]byte, 7))).is(opTerminate)
		c.closed()
	}, receives(1))},
	refused("IMM-QUEUE1", "Immediate data on queue 1 are answered with a Terminate, unexpected opcode.", "RFC 7306 §4.1, §6.3, §8.2",
		rdmap.UnexpectedOpcode, func(c *conn) []byte {
			return untagged(ddp.Untagged{Last: true, QN: 1, MSN: 1}, rdmap.ImmediateData, make([]byte, 8))
		}),
}
