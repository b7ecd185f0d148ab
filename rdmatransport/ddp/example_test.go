package ddp_test

import (
	"fmt"

	"github.com/softrnic/softrnic/rdmatransport/ddp"
)

// A tagged message of 3,000 bytes, cut into segments for a MULPDU of 1,400.
func ExampleSegment() {
	const size, mulpdu = 3000, 1400
	for off, last := uint32(0), false; !last; {
		var n int
		n, last = ddp.Segment(size, off, ddp.TaggedLen, mulpdu)
		h := ddp.Tagged{Last: last, STag: 0xabcd, TO: 0x1000 + uint64(off)}
		b := make([]byte, ddp.TaggedLen+n)
		h.Encode(b)
		fmt.Printf("% x and %d bytes\n", b[:ddp.TaggedLen], n)
		off += uint32(n)
	}
	// Output:
	// 81 00 00 00 ab cd 00 00 00 00 00 00 10 00 and 1386 bytes
	// 81 00 00 00 ab cd 00 00 00 00 00 00 15 6a and 1386 bytes
	// c1 00 00 00 ab cd 00 00 00 00 00 00 1a d4 and 228 bytes
}

// A receiver checks which of the two headers a segment has, and parses it.
func ExampleParseUntagged() {
	sent := ddp.Untagged{Last: true, QN: 0, MSN: 1}
	b := append(make([]byte, ddp.UntaggedLen), "hello"...)
	sent.Encode(b)
	if ddp.IsTagged(b) {
		return
	}
	h, payload, err := ddp.ParseUntagged(b)
	fmt.Printf("queue %d, message %d from %d: %q, last %t, %v\n", h.QN, h.MSN, h.MO, payload, h.Last, err)
	// Output:
	// queue 0, message 1 from 0: "hello", last true, <nil>
}
