package trace

import (
	"bytes"
	"encoding/binary"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/softrnic/softrnic/link/checksum"
	"github.com/softrnic/softrnic/rdmatransport/wire"
)

// joined returns packets of the same size, except for the last, as one superframe.
func joined(packets []record) record {
	const headers = 14 + 20 + 8
	first := packets[0]
	b := bytes.Clone(first.data)
	for _, p := range packets[1:] {
		b = append(b, p.data[headers:]...)
	}
	binary.BigEndian.PutUint16(b[14+2:], uint16(len(b)-14))
	binary.BigEndian.PutUint16(b[14+20+4:], uint16(len(b)-14-20))
	checksum.PutIPv4(b[14:34])
	first.data = b
	first.info.CaptureLength, first.info.Length = len(b), len(b)
	return first
}

// TestSuperframe: each packet of a superframe is analysed, and a damaged one is found.
func TestSuperframe(t *testing.T) {
	c := &rc{t: t}
	for i := range uint32(3) {
		c.request(0, 5+i, []wire.Opcode{wire.RCSendFirst, wire.RCSendMiddle, wire.RCSendLast}[i], []int{1024, 1024, 100}[i])
	}
	for i := range uint32(4) {
		c.request(time.Microsecond, 8+i, wire.RCSendOnly, 20)
	}
	c.answer(10*time.Microsecond, 11, wire.AckUnlimited, 5)
	packets := []record{joined(c.packets[:3]), joined(c.packets[3:7]), c.packets[7]}
	a, out := traced(t, new(Command), packets)
	if a.counts.Wrong+a.counts.Doubtful != 0 || a.counts.RoCE != 8 || a.counts.Superframes != 2 || strings.Count(out, " PSN ") != 8 {
		t.Errorf("%+v\n%s", a.counts, out)
	}
	damaged := slices.Clone(packets)
	damaged[0].data = bytes.Clone(packets[0].data)
	damaged[0].data[14+20+8+1040+500] ^= 1 // of the second packet
	if a, out = traced(t, new(Command), damaged); a.counts.Wrong == 0 || !strings.Contains(out, "WRONG packet 1: the ICRC is wrong") {
		t.Errorf("damaged: %+v\n%s", a.counts, out)
	}
}

// TestReordered: reordered packets are reported, and are wrong only with --in-order.
func TestReordered(t *testing.T) {
	const us = time.Microsecond
	for name, packets := range map[string]func(c *rc){
		"requests of RC": func(c *rc) {
			c.request(0, 5, wire.RCSendOnly, 8)
			c.request(us, 7, wire.RCSendOnly, 8)
			c.request(us, 6, wire.RCSendOnly, 8)
			c.answer(10*us, 7, wire.AckUnlimited, 3)
		},
		"requests of UC": func(c *rc) {
			c.request(0, 5, wire.UCSendOnly, 8)
			c.request(us, 7, wire.UCSendOnly, 8)
			c.request(us, 6, wire.UCSendOnly, 8)
		},
		"acknowledgements": func(c *rc) {
			c.request(0, 5, wire.RCSendOnly, 8)
			c.request(us, 6, wire.RCSendOnly, 8)
			c.answer(10*us, 6, wire.AckUnlimited, 2)
			c.answer(us, 5, wire.AckUnlimited, 1)
		},
	} {
		c := &rc{t: t}
		packets(c)
		a, out := traced(t, new(Command), c.packets)
		if a.counts.Wrong+a.counts.Doubtful != 0 || a.counts.Reordered != 1 || !strings.Contains(out, "NOTE packet") ||
			!strings.Contains(out, "reordered: ") {
			t.Errorf("%s: %+v\n%s", name, a.counts, out)
		}
		if a, out = traced(t, &Command{Order: true}, c.packets); a.counts.Wrong != 1 {
			t.Errorf("%s, --in-order: %+v\n%s", name, a.counts, out)
		}
	}
}

// TestCutSuperframe: the complete packets of a truncated superframe are analysed, and it is not
// taken for a single packet.
func TestCutSuperframe(t *testing.T) {
	c := &rc{t: t}
	for i := range uint32(5) {
		c.request(0, 5+i, []wire.Opcode{wire.RCSendFirst, wire.RCSendMiddle, wire.RCSendMiddle, wire.RCSendMiddle, wire.RCSendLast}[i],
			1024)
	}
	c.answer(10*time.Microsecond, 9, wire.AckUnlimited, 1)
	c.request(time.Microsecond, 10, wire.RCSendOnly, 1024)
	c.answer(10*time.Microsecond, 10, wire.AckUnlimited, 2)
	for _, test := range []struct{ captured, packets int }{
		{5000, 4}, {2 * 1100, 2}, {1100, 1}, {128, 0},
	} {
		packets := []record{joined(c.packets[:5]), c.packets[5], c.packets[6], c.packets[7]}
		packets[0].data = packets[0].data[:test.captured]
		packets[0].info.CaptureLength = test.captured
		a, out := traced(t, new(Command), packets)
		if a.counts.Wrong != 0 || a.counts.Superframes != 1 || a.counts.Cut != 1 || strings.Count(out, "RC SEND") != test.packets+1 ||
			!strings.Contains(out, "1 frames had several RoCE packets, of which 1 were cut") {
			t.Errorf("%d bytes: %+v\n%s", test.captured, a.counts, out)
		}
	}
	// A truncated single packet is not taken for a superframe.
	for _, captured := range []int{80, 500, 1000} {
		packets := slices.Clone(c.packets)
		for i := range packets {
			n := min(captured, len(packets[i].data))
			packets[i].data, packets[i].info.CaptureLength = packets[i].data[:n], n
		}
		if a, out := traced(t, new(Command), packets); a.counts.Wrong+a.counts.Doubtful+a.counts.Superframes != 0 ||
			strings.Count(out, "RC SEND") != 6 {
			t.Errorf("cut at %d: %+v\n%s", captured, a.counts, out)
		}
	}
}

// TestRxeFlush: a FLUSH with the ICRC of Linux's rxe is no error, alone or in a superframe. A note
// names it, once for each connection.
func TestRxeFlush(t *testing.T) {
	const headers = 14 + 20 + 8
	c := &rc{t: t}
	flush := func(after time.Duration, psn uint32) {
		c.send(0, after, &wire.Packet{BTH: wire.BTH{Opcode: wire.RCFlush, PSN: psn, AckReq: true}, FETH: wire.FETH{Placement: wire.FlushGlobal},
			RETH: wire.RETH{Length: 64}})
		b := c.packets[len(c.packets)-1].data
		header, pkt := b[14:headers], b[headers:]
		wire.PutSum(pkt, wire.RxeFlushICRC(header, pkt[:len(pkt)-wire.ICRCLen]))
	}
	flush(0, 5)
	flush(time.Millisecond, 6)
	flush(0, 7)
	c.request(0, 8, wire.RCSendOnly, 0)
	packets := []record{c.packets[0], joined(c.packets[1:])}
	a, out := traced(t, new(Command), packets)
	if a.counts.Wrong+a.counts.Doubtful != 0 || a.counts.RoCE != 4 ||
		strings.Count(out, "NOTE packet 1: the FLUSH has the ICRC of Linux's rxe") != 1 ||
		strings.Count(out, "NOTE") != 1 {
		t.Errorf("%+v\n%s", a.counts, out)
	}
	damaged := packets[0]
	damaged.data = bytes.Clone(damaged.data)
	damaged.data[headers+20] ^= 1
	if a, out = traced(t, new(Command), []record{damaged}); a.counts.Wrong != 1 ||
		!strings.Contains(out, "WRONG packet 1: the ICRC is wrong") {
		t.Errorf("damaged: %+v\n%s", a.counts, out)
	}
}
