package iwarp

import (
	"github.com/softrnic/softrnic/rdmatransport/ddp"
	"github.com/softrnic/softrnic/rdmatransport/rdmap"
)

// source returns a READ of 8 bytes with a source other than the region.
func (c *conn) source(stag uint32, to uint64) []byte {
	return c.read28(rdmap.ReadRequestHeader{SinkSTag: ourTag, Size: 8, SourceSTag: stag, SourceTO: to})
}

const readClause = "RFC 5040 §5.2.1, §7.2, §4.8"

// READs of the tester.
var reads = []entry{
	{"READ-DATA", "A READ response has the data of the source buffer.", "RFC 5040 §5.2.2", onRC(func(c *conn) {
		c.Put(here, pattern(100, 1))
		c.ask(c.readRequest(here, 100)).is(opReadResponse).carries(pattern(100, 1))
	})},
	{"READ-TAGGED", "A READ response is a tagged message.", "RFC 5040 §5.2.2", onRC(func(c *conn) {
		c.ask(c.readRequest(here, 100)).field("T", 1).is(opReadResponse)
	})},
	{"READ-SINK-STAG", "A READ response has the sink STag of the request, as it is.", "RFC 5040 §4.4, §5.2.2", onRC(func(c *conn) {
		c.send(c.read28(rdmap.ReadRequestHeader{SinkSTag: 0x9a8b7c6d, Size: 8, SourceSTag: c.rkey, SourceTO: c.addr}))
		c.next().is(opReadResponse).field("STag", 0x9a8b7c6d)
	})},
	{"READ-SINK-TO", "The first segment of a READ response has the sink TO of the request.", "RFC 5040 §4.4, §5.2.2", onRC(func(c *conn) {
		c.send(c.read28(rdmap.ReadRequestHeader{SinkSTag: ourTag, SinkTO: 0xfedcba9876543210, Size: 8, SourceSTag: c.rkey,
			SourceTO: c.addr}))
		c.next().is(opReadResponse).field("TO", 0xfedcba9876543210)
	})},
	{"READ-SEGMENT-TO", "The TO of each further segment of a READ response is where the one before ends.", "RFC 5041 §5.2",
		func(t *tester) {
			at := uint64(0)
			t.rc().readAll(func(m *message) {
				m.field("TO", at)
				at += uint64(len(m.payload()))
			})
		}},
	{"READ-LAST", "L is set in the last segment of a READ response only.", "RFC 5041 §4.1", func(t *tester) {
		left := uint64(long)
		t.rc().readAll(func(m *message) {
			left -= uint64(len(m.payload()))
			last := uint64(0)
			if left == 0 {
				last = 1
			}
			m.field("L", last)
		})
	}},
	{"READ-ZERO", "A READ of no bytes is answered with a response of one segment without payload.", "RFC 5040 §5.2.1", onRC(func(c *conn) {
		c.ask(c.readRequest(0, 0)).is(opReadResponse).field("L", 1).carries(nil)
	})},
	{"READ-ZERO-SOURCE", "Source STag and TO of a READ of no bytes are not checked.", "RFC 5040 §5.2.1", onRC(func(c *conn) {
		c.ask(c.read28(rdmap.ReadRequestHeader{SinkSTag: ourTag, SourceSTag: ^c.rkey, SourceTO: 3})).is(opReadResponse)
	})},
	{"READ-ORDER", "READs are answered in their order.", "RFC 5040 §5.2.2, §5.5", onRC(func(c *conn) {
		c.send(c.readRequest(0, 5000), c.readRequest(here, 8))
		for {
			if m := c.next().is(opReadResponse); m.value("L") == 1 {
				is(c.t, "that the first READ is answered first", m.value("TO") < 5000, true)
				break
			}
		}
		c.next().is(opReadResponse).field("TO", here)
	})},
	{"READ-WRITTEN", "A READ returns the data that earlier WRITEs have placed.", "RFC 5040 §5.5", onRC(func(c *conn) {
		c.ask(c.write(here, pattern(100, 1)), c.readRequest(here, 100)).is(opReadResponse).carries(pattern(100, 1))
	})},
	{"READ-DEPTH", "As many outstanding READs as the target's IRD are answered.", "RFC 5040 §5.2.2, §6.1", onRC(func(c *conn) {
		var all []byte
		for i := range depth {
			all = append(all, c.out.encode(framing{ulpdu: c.readRequest(8*i, 8)})...)
		}
		c.sendRaw(all)
		for i := range depth {
			c.next().is(opReadResponse).field("TO", uint64(8*i))
		}
	})},
	{"READ-HIDDEN", "A READ takes no receive request, and is not delivered to the ULP.", "RFC 5040 §5.2.1", onRC(func(c *conn) {
		c.silent()
		c.None()
	}, receives(1))},
	{"READ-WHOLE", "A READ of the whole region is answered.", "RFC 5040 §7.2", onRC(func(c *conn) {
		c.send(c.readRequest(0, memory))
		n := 0
		for n < memory {
			n += len(c.next().is(opReadResponse).payload())
		}
		is(c.t, "the number of bytes", n, memory)
	})},
	refused("READ-STAG", "A READ of an STag that does not exist is answered with a Terminate, remote protection error, invalid STag.",
		readClause,
		rdmap.InvalidSTag, func(c *conn) []byte { return c.source(^c.rkey, c.addr) }),
	refused("READ-PD",
		"A READ of an STag of another protection domain is answered with a Terminate, STag not associated with the stream.", readClause,
		rdmap.STagNotAssociated, func(c *conn) []byte {
			other := c.elsewhere()
			return c.source(other.rkey, other.addr)
		}),
	refused("READ-RIGHT", "A READ of a region without the right to remote reads is answered with a Terminate, access rights violation.",
		"RFC 5040 §8.1.1, §4.8",
		rdmap.AccessViolation, func(c *conn) []byte { return c.source(c.rkey, c.addr) }, without("remote_read", false)),
	refused("READ-RIGHT-QP", "A READ to a queue pair that does not allow them is answered with a Terminate, access rights violation.",
		suiteObserved,
		rdmap.AccessViolation, func(c *conn) []byte { return c.source(c.rkey, c.addr) }, without("remote_read", true)),
	refused("READ-BOUNDS-END", "A READ that ends beyond its buffer is answered with a Terminate, base or bounds violation.", readClause,
		rdmap.BoundsViolation, func(c *conn) []byte { return c.source(c.rkey, c.addr+memory-7) }),
	refused("READ-BOUNDS-START", "A READ that begins before its buffer is answered with a Terminate, base or bounds violation.", readClause,
		rdmap.BoundsViolation, func(c *conn) []byte { return c.source(c.rkey, c.addr-1) }),
	refused("READ-WRAP", "A READ that ends beyond 2^64 is answered with a Terminate, TO wrap.", readClause,
		rdmap.TOWrap, func(c *conn) []byte { return c.source(c.rkey, 1<<64-4) }),
	refused("READ-SHORT",
		"A READ request that is shorter than its header is answered with a Terminate, catastrophic error of the stream.", suiteObserved,
		rdmap.StreamCatastrophic, func(c *conn) []byte { return c.message(rdmap.ReadRequest, make([]byte, 27)) }),
	refused("READ-MSN", "A READ request that is not the next one is answered with a Terminate, MSN range is not valid.",
		"RFC 5041 §7.1, §7.2",
		untaggedCause(3), func(c *conn) []byte {
			return untagged(ddp.Untagged{Last: true, QN: 1, MSN: 7}, rdmap.ReadRequest, make([]byte, rdmap.ReadRequestLen))
		}),
}
