package rocetransport_test

// Selective repeat, from the peer's side.

import (
	"bytes"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/softrnic/softrnic/rdmatransport/internal/rocetransport/receive"
	"github.com/softrnic/softrnic/rdmatransport/internal/rocetransport/send"
	"github.com/softrnic/softrnic/rdmatransport/internal/sacktest"
	"github.com/softrnic/softrnic/rdmatransport/wire"
	"github.com/softrnic/softrnic/verbs"
)

// rigs are the tests' devices by QP number.
var rigs sync.Map

// marked returns marked packets; requests are marked as the newest.
func marked(pkts ...wire.Packet) []wire.Packet {
	for i := range pkts {
		p := &pkts[i]
		r, _ := rigs.Load(p.DestQP)
		p.Reserved7 = r.(*rig).mark(p).Newest()
	}
	return pkts
}

// again returns requests marked as retransmissions, with later ones sent before.
func again(pkts ...wire.Packet) []wire.Packet {
	for i := range marked(pkts...) {
		pkts[i].Reserved7 = wire.Mark(pkts[i].Reserved7).Again()
	}
	return pkts
}

// mark returns the mark of the peer's packets.
func (r *rig) mark(p *wire.Packet) wire.Mark {
	switch {
	case r.c.goBackN:
		return 0
	case p.Opcode.Info().Response():
		return wire.MarkOf(r.qp.Num(), peerQPN, r.c.sqPSN)
	}
	return wire.MarkOf(peerQPN, r.qp.Num(), r.c.rqPSN)
}

// relay converts a packet that from has sent into one that to receives.
func (from *rig) relay(to *rig, p *wire.Packet) {
	theirs := from.mine(from.qp.Num(), p)
	p.DestQP = to.qp.Num()
	switch p.Reserved7 {
	case 0:
	case theirs.Newest():
		p.Reserved7 = to.mark(p).Newest()
	case theirs.Again():
		p.Reserved7 = to.mark(p).Again()
	default:
		from.t.Fatalf("%v is marked %#x, by a QP whose mark is %#x", p.Opcode, p.Reserved7, theirs)
	}
	if to.c.goBackN { // it does not know its peer's mark
		p.Reserved7 = 0
	}
}

// mine returns the mark of an engine's QP.
func (r *rig) mine(qpn uint32, p *wire.Packet) wire.Mark {
	switch {
	case r.c.goBackN:
		return 0
	case p.Opcode.Info().Response():
		return wire.MarkOf(peerQPN, qpn, r.c.rqPSN)
	}
	return wire.MarkOf(qpn, peerQPN, r.c.sqPSN)
}

// sack returns a selective acknowledgement of the peer: psn is missing, and packets at the given
// distances are kept.
func (r *rig) sack(psn int, there ...uint32) wire.Packet {
	p := marked(r.nak(wire.NakPSNSeq, psn))[0]
	p.Payload = sacktest.Of(there...)
	return p
}

// nothing returns a request of the peer without effect.
func (r *rig) nothing(psn int) wire.Packet {
	return r.req(wire.RCWriteOnly, psn, nil, reth(0, 0, 0), ackReq)
}

// lossy delivers PSN psn only as a retransmission, after a later packet. From then on, packets
// after a gap are kept.
func (r *rig) lossy(psn int) {
	r.t.Helper()
	r.give(marked(r.nothing(psn + 1))...)
	if sent := r.take(); len(sent) != 1 || len(sent[0].Payload) != 0 || sent[0].AETH.Syndrome != wire.NakPSNSeq {
		r.t.Fatalf("the first loss is answered by %v", sent)
	}
	r.give(again(r.nothing(psn))...)
	r.give(marked(r.nothing(psn + 1))...)
	if n := len(r.take()); n != 2 {
		r.t.Fatalf("%d answers, want 2", n)
	}
}

// TestKeepsPacketsBehindGap checks that packets after a gap are kept, and executed once and in
// order when the gap is filled.
func TestKeepsPacketsBehindGap(t *testing.T) {
	bubble(t, config{rqPSN: 0xfffffc}, func(r *rig) {
		r.lossy(0)
		data := fill(3*1024, 1)
		want := bytes.Clone(r.buf)
		write := marked(
			r.req(wire.RCWriteFirst, 2, data[:1024], r.at(0, 3*1024)), r.req(wire.RCWriteMiddle, 3, data[1024:2048]),
			r.req(wire.RCWriteLast, 4, data[2048:], ackReq), r.req(wire.RCWriteOnly, 5, data[:8], r.at(4096, 8), ackReq))
		r.give(write[0], write[2])
		sent := r.expect("nak60 3 msn 2")
		if got := sacktest.Distances(sent[0].Payload); !slices.Equal(got, []uint32{1}) {
			t.Errorf("it reports %v", got)
		}
		r.give(write[3], write[3])
		for _, p := range r.take() {
			if got := sacktest.Distances(p.Payload); !slices.Equal(got, []uint32{1, 2}) {
				t.Errorf("it reports %v", got)
			}
		}
		if copy(want, data[:1024]); !bytes.Equal(r.buf, want) {
			t.Error("a packet is placed out of order")
		}
		r.give(again(write[1])...)
		r.expect("ack 5 msn 4")
		if n := r.counter("out_of_seq_request"); n != 2 {
			t.Errorf("%d gaps are counted", n)
		}
		copy(want, data)
		if copy(want[4096:], data[:8]); !bytes.Equal(r.buf, want) {
			t.Error("the data are wrong")
		}
	})
	// A request in error ends the connection; packets kept after it have no effect.
	bubble(t, config{}, func(r *rig) {
		r.lossy(0)
		want := bytes.Clone(r.buf)
		r.give(marked(r.req(wire.RCWriteOnly, 3, fill(8, 1), r.at(0, 8), ackReq))...)
		r.take()
		r.give(again(r.req(wire.RCWriteOnly, 2, fill(8, 1), reth(r.mr.Addr(), r.mr.RKey()+1, 8)))...)
		r.expect("nak62 2 msn 2")
		if !bytes.Equal(r.buf, want) {
			t.Error("memory has changed")
		}
	})
	// Nothing is kept of a peer that does not mark its packets, beyond the span, or before a loss.
	bubble(t, config{}, func(r *rig) {
		early := r.req(wire.RCWriteOnly, 1, fill(8, 1), r.at(0, 8), ackReq)
		r.give(early)
		if p := r.expect("nak60 0 msn 0")[0]; len(p.Payload) != 0 {
			t.Errorf("a peer without the mark is sent %x", p.Payload)
		}
		r.give(r.nothing(0), r.nothing(1), r.nothing(3), r.nothing(2), r.nothing(4))
		r.expect("ack 0 msn 1", "ack 1 msn 2", "nak60 2 msn 2", "ack 2 msn 3", "nak60 3 msn 3")
	})
	bubble(t, config{}, func(r *rig) {
		r.lossy(0)
		r.give(marked(r.nothing(2 + int(receive.Span(send.DefaultWindow, 1024))))...)
		if p := r.expect("nak60 2 msn 2")[0]; len(p.Payload) != 0 {
			t.Errorf("the kept packets are %x", p.Payload)
		}
	})
	run(t, "the first loss", config{}, func(t *testing.T, r *rig) {
		r.lossy(0)
		sleep(2 * time.Second) // the first loss again
		r.lossy(2)
		r.give(marked(r.nothing(5))...)
		if p := r.expect("nak60 4 msn 4")[0]; len(p.Payload) == 0 {
			t.Error("nothing is kept after the second")
		}
	})
}

// TestMarks: the mark shows whether later packets were sent before.
func TestMarks(t *testing.T) {
	bubble(t, config{sqPSN: first, retry: 7, timeout: 14, size: 1 << 20}, func(r *rig) {
		check := func(want ...string) {
			t.Helper()
			var got []string
			for _, p := range r.take() {
				mark := "other"
				switch m := r.mine(r.qp.Num(), &p); p.Reserved7 {
				case m.Newest():
					mark = "newest"
				case m.Again():
					mark = "again"
				}
				got = append(got, fmt.Sprint(wire.PSNDiff(p.PSN, first), " ", mark))
			}
			if !slices.Equal(got, want) {
				t.Fatalf("sent %q, want %q", got, want)
			}
		}
		r.post(r.wr(1, verbs.RDMAWrite, 2*1024), r.wr(2, verbs.RDMARead, 2*1024), r.wr(3, verbs.AtomicFetchAndAdd, 8),
			r.wr(4, verbs.RDMARead, 3*1024))
		check("0 newest", "1 newest", "2 newest", "4 newest", "5 newest")
		r.give(marked(r.nak(wire.NakPSNSeq, 0))...)
		check("0 again", "1 again", "2 again", "4 again", "5 newest")
		r.post(r.wr(5, verbs.Send, 8))
		check("8 newest")
		r.give(r.sack(0, 1, 2, 4, 5, 8))
		check("0 again")
		r.give(marked(r.ack(1), r.data(wire.RCReadResponseFirst, 2, fill(1024, 1)), r.data(wire.RCReadResponseLast, 3, fill(1024, 1)),
			r.atomicAck(4, 1))...)
		sleep(100 * time.Millisecond)
		r.take()
		r.give(marked(r.data(wire.RCReadResponseFirst, 5, fill(1024, 1)), r.data(wire.RCReadResponseMiddle, 6, fill(1024, 1)),
			r.data(wire.RCReadResponseLast, 7, fill(1024, 1)))...)
		sleep(100 * time.Millisecond)
		for _, p := range r.take() {
			if p.PSN != wire.PSNAdd(first, 8) || p.Reserved7 != r.mine(r.qp.Num(), &p).Newest() {
				t.Errorf("sent %+v", p.BTH)
			}
		}
		r.give(r.req(wire.RCReadRequest, 0, nil, r.at(0, 2048)), r.req(wire.RCReadRequest, 0, nil, r.at(0, 2048)))
		for _, p := range r.take() {
			if p.Reserved7 != r.mine(r.qp.Num(), &p).Newest() {
				t.Errorf("answered with %+v", p.BTH)
			}
		}
	})
	run(t, "none", config{goBackN: true, sqPSN: first, retry: 7}, func(t *testing.T, r *rig) {
		r.post(r.wr(1, verbs.RDMAWrite, 2*1024))
		r.give(r.nak(wire.NakPSNSeq, 0), r.nothing(0))
		for _, p := range r.take() {
			if p.Reserved7 != 0 {
				t.Errorf("sent %+v", p.BTH)
			}
		}
	})
}

// TestRetransmitsOnlyMissing: only missing packets are retransmitted, and again without a timeout
// if the retransmission was lost.
func TestRetransmitsOnlyMissing(t *testing.T) {
	bubble(t, config{sqPSN: first, retry: 1, timeout: 14}, func(r *rig) {
		r.post(r.wr(1, verbs.RDMAWrite, 9*1024), r.wr(2, verbs.Send, 8))
		r.take()
		r.give(r.sack(2, 1)) // one later packet may only have overtaken it
		r.expect()
		r.give(r.sack(2, 1, 2, 4))
		r.expect("WRITE Middle 2 len 1024 ackreq")
		r.give(r.sack(2, 1, 2, 4), r.sack(2, 1)) // nothing new
		r.expect()
		// SEND 9 has arrived, the last one except the retransmission.
		r.give(r.sack(2, 1, 2, 4, 5, 6, 7))
		r.expect("WRITE Middle 5 len 1024 ackreq")
		// The second retransmission has arrived, not the first.
		r.give(r.sack(2, 1, 2, 3, 4, 5, 6, 7))
		r.expect("WRITE Middle 2 len 1024 ackreq")
		r.give(marked(r.ack(9))...)
		r.completions(r.scq, "1 SUCCESS RDMA_WRITE 0", "2 SUCCESS SEND 0")
		sleep(time.Second)
		r.expect()
	})
	run(t, "XRC", config{service: verbs.XRCSend, sqPSN: first, retry: 1, timeout: 14}, func(t *testing.T, r *rig) {
		r.post(r.wr(1, verbs.RDMAWrite, 8*1024))
		r.take()
		r.give(r.sack(2, 1, 2, 3))
		if got := r.take(); len(got) != 1 || got[0].PSN != wire.PSNAdd(first, 2) {
			t.Errorf("retransmitted: %v, want packet 2", got)
		}
		r.give(marked(r.ack(7))...)
		r.completions(r.scq, "1 SUCCESS RDMA_WRITE 0")
	})
	run(t, "READ", config{sqPSN: first, retry: 1}, func(t *testing.T, r *rig) {
		data := fill(8<<10, 3)
		at := func(i int) wire.Packet {
			return marked(r.data(wire.RCReadResponseMiddle, i, data[i<<10:(i+1)<<10]))[0]
		}
		r.post(r.wr(1, verbs.RDMARead, 8<<10))
		r.take()
		r.give(at(0), at(3))
		r.expect()
		r.give(at(4))
		r.expect("READ Request 1 at 1024+1024 ackreq")
		r.give(at(5))
		r.expect("READ Request 2 at 2048+1024 ackreq")
		r.give(at(7)) // the end
		r.expect("READ Request 6 at 6144+1024 ackreq")
		r.give(at(1), at(2), at(2))
		r.completions(r.scq)
		r.give(at(6))
		r.completions(r.scq, "1 SUCCESS RDMA_READ 8192")
		if !bytes.Equal(r.buf[:8<<10], data) {
			t.Error("the data are wrong")
		}
	})
	run(t, "the end of a READ", config{sqPSN: first, retry: 1}, func(t *testing.T, r *rig) {
		data := fill(1<<10, 3)
		at := func(i int) wire.Packet { return marked(r.data(wire.RCReadResponseMiddle, i, data))[0] }
		r.post(r.wr(1, verbs.RDMARead, 2<<10), r.wr(2, verbs.RDMARead, 2<<10), r.wr(3, verbs.RDMARead, 2<<10))
		r.take()
		r.give(at(0), at(2), at(3))
		r.expect()
		r.give(at(4))
		r.expect("READ Request 1 at 1024+1024 ackreq")
		r.give(at(5), at(1))
		r.completions(r.scq, "1 SUCCESS RDMA_READ 2048", "2 SUCCESS RDMA_READ 2048", "3 SUCCESS RDMA_READ 2048")
	})
	// The window is full of responses that the peer will not send before it has the request.
	run(t, "a READ's request", config{sqPSN: first, retry: 1, rd: 16}, func(t *testing.T, r *rig) {
		for i := range 8 {
			r.post(r.wr(uint64(i), verbs.RDMARead, 64<<10))
		}
		r.take()
		r.give(r.sack(0, 64, 128, 192))
		r.expect("READ Request 0 at 0+65536 ackreq")
	})
	run(t, "the end of all", config{sqPSN: first, retry: 1, timeout: 19}, func(t *testing.T, r *rig) {
		sleep(100 * time.Microsecond)
		r.post(r.wr(1, verbs.Send, 8))
		sleep(100 * time.Microsecond)
		r.give(marked(r.ack(0))...)
		r.post(r.wr(2, verbs.Send, 8), r.wr(3, verbs.Send, 8))
		r.take()
		sleep(30 * time.Millisecond) // the timeout is 2 s
		r.expect("SEND Only 2 len 8 ackreq", "SEND Only 2 len 8 ackreq")
		r.give(r.sack(1, 1))
		r.expect("SEND Only 1 len 8 ackreq")
		r.give(marked(r.ack(2))...)
		r.completions(r.scq, "1 SUCCESS SEND 0", "2 SUCCESS SEND 0", "3 SUCCESS SEND 0")
	})
	// A peer with false reports only harms itself.
	run(t, "lies", config{sqPSN: first, retry: 1, timeout: 14}, func(t *testing.T, r *rig) {
		r.post(r.wr(1, verbs.RDMAWrite, 3*1024))
		r.give(r.sack(0, 1, 2, 500, 1000))
		r.take()
		sleep(time.Minute)
		r.completions(r.scq, "1 RETRY_EXC_ERR")
	})
}

// TestNoAckReqInFlight: while packets are missing, and nothing in flight requests an
// acknowledgement, the requester does not wait for room for a whole frame.
func TestNoAckReqInFlight(t *testing.T) {
	bubble(t, config{retry: 7, batch: 60, size: 1 << 20}, func(r *rig) {
		r.post(r.wr(0, verbs.RDMAWrite, 7*1024))
		for i := range 5 { // shrinks the window
			r.give(marked(r.nak(wire.NakPSNSeq, 1+i))...)
		}
		r.give(marked(r.ack(6))...)
		r.take()
		fenced := r.wr(2, verbs.RDMAWrite, 60*1024)
		fenced.Flags |= verbs.SendFence
		r.post(r.wr(1, verbs.RDMAWrite, 2*1024), fenced)
		r.expect("WRITE First 7 len 1024 at 0+2048", "WRITE Last 8 len 1024 ackreq",
			"WRITE First 9 len 1024 at 0+61440", "WRITE Middle 10 len 1024")
		r.give(r.sack(7, 1)) // 8 requests one; 9 and 10 arrive too, without a request
		sleep(time.Second)
		if sent := r.take(); len(sent) == 0 || !sent[len(sent)-1].AckReq {
			t.Errorf("%d packets are sent, and none in flight requests an acknowledgement", len(sent))
		}
	})
}

// TestReadSentLast: responses to a READ that was sent last show that earlier packets are late.
func TestReadSentLast(t *testing.T) {
	bubble(t, config{retry: 7}, func(r *rig) {
		r.post(r.wr(1, verbs.RDMAWrite, 8), r.wr(2, verbs.RDMARead, 20*1024))
		r.expect("WRITE Only 0 len 8 at 0+8 ackreq", "READ Request 1 at 0+20480 ackreq")
		r.give(r.sack(0, 1))
		sleep(time.Second)
		r.expect("WRITE Only 0 len 8 at 0+8 ackreq")
	})
}

// TestResponseMissing: an acknowledgement of packets that are known to have arrived shows that an
// earlier READ response is lost.
func TestResponseMissing(t *testing.T) {
	bubble(t, config{retry: 7}, func(r *rig) {
		r.post(r.wr(1, verbs.RDMAWrite, 8), r.wr(2, verbs.RDMARead, 2*1024), r.wr(3, verbs.RDMAWrite, 3*1024))
		r.take()
		r.give(r.sack(0, 1, 3, 4, 5))
		r.expect("WRITE Only 0 len 8 at 0+8 ackreq")
		r.give(marked(r.ack(0), r.data(wire.RCReadResponseLast, 2, fill(1024, 1)), r.ack(5))...)
		sleep(time.Second)
		r.expect("READ Request 1 at 0+1024 ackreq")
	})
}

// TestRNRInRecovery: a request without a receive request at the peer is retransmitted after the RNR
// wait, although earlier responses are missing. These are requested meanwhile.
func TestRNRInRecovery(t *testing.T) {
	c := config{sqPSN: first, retry: 7, rnr: 1}
	post := func(r *rig) {
		r.post(r.wr(1, verbs.RDMARead, 8), r.wr(2, verbs.RDMARead, 8), r.wr(3, verbs.Send, 8), r.wr(4, verbs.RDMAWrite, 8))
		r.take()
	}
	rnr := func(r *rig) { r.give(marked(r.nak(wire.RNRNak|20, 2))...) } // 10.24 ms
	read := func(r *rig, psn int) { r.give(marked(r.data(wire.RCReadResponseOnly, psn, fill(8, 1)))...) }
	run(t, "answers arrive", c, func(t *testing.T, r *rig) {
		post(r)
		rnr(r)
		r.expect()
		read(r, 0)
		rnr(r) // it arrives twice, and counts once
		read(r, 1)
		r.completions(r.scq, "1 SUCCESS RDMA_READ 8", "2 SUCCESS RDMA_READ 8")
		sleep(10 * time.Millisecond)
		r.expect()
		sleep(time.Millisecond)
		r.expect("SEND Only 2 len 8 ackreq") // the peer keeps later packets
		r.give(marked(r.ack(3))...)
		r.completions(r.scq, "3 SUCCESS SEND 0", "4 SUCCESS RDMA_WRITE 0")
	})
	run(t, "answers are requested", c, func(t *testing.T, r *rig) {
		r.post(r.wr(1, verbs.RDMARead, 5*1024), r.wr(2, verbs.Send, 8))
		r.take()
		r.give(marked(r.nak(wire.RNRNak|20, 5))...)
		for i := range 4 {
			r.give(marked(r.data(wire.RCReadResponseMiddle, 1+i, fill(1024, 1)))...)
		}
		r.expect("READ Request 0 at 0+1024 ackreq")
		sleep(11 * time.Millisecond)
		r.expect("SEND Only 5 len 8 ackreq")
		r.give(marked(r.data(wire.RCReadResponseFirst, 0, fill(1024, 1)), r.ack(5))...)
		r.completions(r.scq, "1 SUCCESS RDMA_READ 5120", "2 SUCCESS SEND 0")
	})
	run(t, "it was kept", c, func(t *testing.T, r *rig) {
		post(r)
		// The first READ's request is lost; kept packets are executed after it.
		r.give(r.sack(0, 2, 3))
		r.take()
		rnr(r)
		sleep(11 * time.Millisecond)
		r.expect("SEND Only 2 len 8 ackreq")
	})
	run(t, "it arrived meanwhile", c, func(t *testing.T, r *rig) {
		post(r)
		rnr(r)
		r.give(marked(r.ack(3))...)
		r.expect("READ Request 0 at 0+8 ackreq", "READ Request 1 at 0+8 ackreq")
		read(r, 0)
		read(r, 1)
		r.completions(r.scq, "1 SUCCESS RDMA_READ 8", "2 SUCCESS RDMA_READ 8", "3 SUCCESS SEND 0", "4 SUCCESS RDMA_WRITE 0")
		r.post(r.wr(5, verbs.Send, 8))
		r.expect("SEND Only 4 len 8 ackreq")
	})
	run(t, "it is old", c, func(t *testing.T, r *rig) {
		post(r)
		r.give(marked(r.ack(3))...)
		r.expect("READ Request 0 at 0+8 ackreq", "READ Request 1 at 0+8 ackreq")
		rnr(r)
		r.give(marked(r.nak(wire.NakPSNSeq, 2))...)
		sleep(time.Second)
		r.expect()
	})
	run(t, "too often", c, func(t *testing.T, r *rig) {
		post(r)
		rnr(r)
		sleep(11 * time.Millisecond)
		rnr(r)
		r.completions(r.scq, "1 WR_FLUSH_ERR", "2 WR_FLUSH_ERR", "3 RNR_RETRY_EXC_ERR", "4 WR_FLUSH_ERR")
	})
}

// TestKeptDropped: a sequence NAK without a report of kept packets means that none are kept.
// Everything from there on is retransmitted, although earlier responses are missing.
func TestKeptDropped(t *testing.T) {
	bubble(t, config{sqPSN: first, retry: 7}, func(r *rig) {
		r.post(r.wr(1, verbs.RDMARead, 8), r.wr(2, verbs.Send, 8), r.wr(3, verbs.RDMARead, 2*1024), r.wr(4, verbs.Send, 8))
		r.take()
		r.give(r.sack(1, 3)) // it was kept until now
		r.expect("SEND Only 1 len 8 ackreq", "READ Request 2 at 0+2048 ackreq")
		r.give(marked(r.nak(wire.NakPSNSeq, 1))...)
		r.expect("SEND Only 1 len 8 ackreq", "READ Request 2 at 0+2048 ackreq", "SEND Only 4 len 8 ackreq")
		r.give(marked(r.data(wire.RCReadResponseOnly, 0, fill(8, 1)), r.ack(1),
			r.data(wire.RCReadResponseFirst, 2, fill(1024, 1)), r.data(wire.RCReadResponseLast, 3, fill(1024, 1)), r.ack(4))...)
		r.completions(r.scq, "1 SUCCESS RDMA_READ 8", "2 SUCCESS SEND 0", "3 SUCCESS RDMA_READ 2048", "4 SUCCESS SEND 0")
		r.give(marked(r.nak(wire.NakPSNSeq, 1))...)
		r.expect()
	})
}
