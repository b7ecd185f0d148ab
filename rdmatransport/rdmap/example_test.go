package rdmap_test

import (
	"fmt"

	"github.com/softrnic/softrnic/rdmatransport/ddp"
	"github.com/softrnic/softrnic/rdmatransport/rdmap"
)

// A READ request: an untagged message of DDP's queue 1, with RDMAP's header as its payload.
func ExampleReadRequestHeader() {
	h := ddp.Untagged{Last: true, RsvdULP: rdmap.ReadRequest.Control(), QN: rdmap.QueueReadRequest, MSN: 1}
	read := rdmap.ReadRequestHeader{SinkSTag: 1, SinkTO: 0x2000, Size: 4096, SourceSTag: 2, SourceTO: 0x1000}
	b := make([]byte, ddp.UntaggedLen+rdmap.ReadRequestLen)
	h.Encode(b)
	read.Encode(b[ddp.UntaggedLen:])

	got, payload, err := ddp.ParseUntagged(b)
	if err != nil {
		fmt.Println(err)
		return
	}
	op, err := rdmap.ParseControl(got.RsvdULP)
	if err == nil {
		err = op.CheckUntagged(got.QN)
	}
	if err != nil {
		fmt.Println(err)
		return
	}
	r, err := rdmap.ParseReadRequest(payload)
	fmt.Printf("%v: %d bytes from STag %d, TO %#x, to STag %d, TO %#x, %v\n",
		op, r.Size, r.SourceSTag, r.SourceTO, r.SinkSTag, r.SinkTO, err)
	// Output:
	// RDMA Read Request: 4096 bytes from STag 2, TO 0x1000, to STag 1, TO 0x2000, <nil>
}

// A receiver answers a segment for an STag that it does not know with a Terminate, which quotes the
// segment's header. The sender learns what was wrong with which segment.
func ExampleCause_Quote() {
	write := ddp.Tagged{Last: true, RsvdULP: rdmap.Write.Control(), STag: 0xabcd, TO: 0x1000}
	segment := append(make([]byte, ddp.TaggedLen), "hello"...)
	write.Encode(segment)
	cause, _ := rdmap.CauseOf(ddp.ErrInvalidSTag) // the receiver's DDP has found it
	t := cause.Quote(segment)
	b := make([]byte, t.Len())
	t.Encode(b)
	fmt.Printf("% x\n", b)

	got, err := rdmap.ParseTerminate(b)
	if err != nil {
		fmt.Println(err)
		return
	}
	quoted, _, err := ddp.ParseTagged(got.DDPHeader)
	fmt.Printf("%v: %d bytes for STag %#x, TO %#x, %v\n", got.Cause, got.SegmentLen, quoted.STag, quoted.TO, err)
	// Output:
	// 11 00 c0 00 00 13 c1 40 00 00 ab cd 00 00 00 00 00 00 10 00
	// rdmap: DDP tagged buffer error: invalid STag: 19 bytes for STag 0xabcd, TO 0x1000, <nil>
}
