package rocetransport_test

// The responder's handling of requests: valid, invalid, late, early and duplicate.

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/softrnic/softrnic/rdmatransport/wire"
	"github.com/softrnic/softrnic/verbs"
)

// requestOpcodes are all request opcodes of an RC QP.
var requestOpcodes = []wire.Opcode{
	wire.RCSendFirst, wire.RCSendMiddle, wire.RCSendLast, wire.RCSendLastImm, wire.RCSendOnly, wire.RCSendOnlyImm,
	wire.RCWriteFirst, wire.RCWriteMiddle, wire.RCWriteLast, wire.RCWriteLastImm, wire.RCWriteOnly, wire.RCWriteOnlyImm,
	wire.RCReadRequest, wire.RCCmpSwap, wire.RCFetchAdd, wire.RCSendLastInv, wire.RCSendOnlyInv,
	wire.RCFlush, wire.RCAtomicWrite,
}

// valid returns a packet of any request opcode that is in order by itself: the second of a message
// of three, or a message of its own.
func (r *rig) valid(op wire.Opcode, psn int) wire.Packet {
	info := op.Info()
	n := 0
	if info.HasPayload() {
		n = r.mtu()
	}
	length := uint32(n)
	if !info.Last() {
		length = uint32(3 * n)
	}
	switch op {
	case wire.RCReadRequest:
		length = 8
	case wire.RCAtomicWrite:
		n, length = 8, 8
	}
	return r.req(op, psn, fill(n, 1), r.at(0, length), r.atomic(0, 0, 0), ackReq, flush(wire.FlushGlobal, wire.FlushRange))
}

// TestOpcodeSequence: only Middle and Last continue the message that First opened (C9-66 to C9-72).
func TestOpcodeSequence(t *testing.T) {
	for _, open := range []struct {
		name      string
		first     wire.Opcode
		continues map[wire.Opcode]bool
	}{
		{"in no message", 0xff, nil},
		{"in a SEND", wire.RCSendFirst, map[wire.Opcode]bool{
			wire.RCSendMiddle: true, wire.RCSendLast: true, wire.RCSendLastImm: true}},
		{"in a WRITE", wire.RCWriteFirst, map[wire.Opcode]bool{
			wire.RCWriteMiddle: true, wire.RCWriteLast: true, wire.RCWriteLastImm: true}},
	} {
		for _, op := range requestOpcodes {
			info := op.Info()
			ok := open.continues[op]
			if open.continues == nil {
				ok = info.First()
			}
			if info.HasIETH() && open.first != wire.RCWriteFirst {
				continue // see TestInvalidateRemotely
			}
			run(t, fmt.Sprintf("%v %s", op, open.name), config{}, func(t *testing.T, r *rig) {
				r.recv(1, 8192, 4096)
				r.recv(2, 8192, 4096)
				psn := 0
				if open.continues != nil {
					p := r.valid(open.first, 0)
					p.AckReq = false
					if open.first == wire.RCWriteFirst && info.Last() {
						p.RETH.Length = uint32(2 * r.mtu())
					}
					r.give(p)
					psn = 1
				}
				r.give(r.valid(op, psn))
				sent := r.take()
				if ok {
					r.state(verbs.StateRTS)
					if len(sent) != 1 || sent[0].Opcode.Info().HasAETH() && !sent[0].AETH.IsACK() {
						t.Errorf("answered with %v", sent)
					}
					return
				}
				r.state(verbs.StateErr)
				if len(sent) != 1 || r.brief(&sent[0]) != fmt.Sprintf("nak61 %d msn 0", psn) {
					t.Errorf("answered with %v", sent)
				}
				// The SEND's receive request fails, and the others are flushed.
				if open.first == wire.RCSendFirst {
					r.completions(r.rcq, "1 REM_INV_REQ_ERR", "2 WR_FLUSH_ERR")
				} else {
					r.completions(r.rcq, "1 WR_FLUSH_ERR", "2 WR_FLUSH_ERR")
				}
				r.give(r.valid(wire.RCSendOnly, psn))
				r.expect()
			})
		}
	}
}

func TestPSNWraps(t *testing.T) {
	bubble(t, config{rqPSN: 0xfffffe}, func(r *rig) {
		mtu := r.mtu()
		n := uint32(3 * mtu)
		r.give(
			r.req(wire.RCWriteFirst, 0, fill(mtu, 1), r.at(0, n)),
			r.req(wire.RCWriteMiddle, 1, fill(mtu, 2)),
			r.req(wire.RCWriteLast, 2, fill(mtu, 3), ackReq),
			r.req(wire.RCWriteMiddle, 1, fill(mtu, 9)), // a duplicate across the wrap
			r.req(wire.RCReadRequest, 3, nil, r.at(0, n)),
		)
		sent := r.expect("ack 2 msn 1", "ack 2 msn 1", "First 3 msn 2 len 1024", "Middle 4 len 1024", "Last 5 msn 2 len 1024")
		if sent[0].PSN != 0 {
			t.Errorf("PSN %#x after 0xffffff", sent[0].PSN)
		}
		for i := range 3 {
			if !bytes.Equal(r.buf[i*mtu:(i+1)*mtu], fill(mtu, byte(i+1))) {
				t.Errorf("packet %d is not where it belongs", i)
			}
			if !bytes.Equal(sent[2+i].Payload, fill(mtu, byte(i+1))) {
				t.Errorf("response %d reads something else", i)
			}
		}
	})
	// A READ whose responses wrap, requested again from after the wrap.
	bubble(t, config{rqPSN: 0xffffff}, func(r *rig) {
		r.give(r.req(wire.RCReadRequest, 0, nil, r.at(0, 3072)))
		r.expect("First 0 msn 1 len 1024", "Middle 1 len 1024", "Last 2 msn 1 len 1024")
		r.give(r.req(wire.RCReadRequest, 1, nil, r.at(1024, 2048)))
		r.expect("Middle 1 len 1024", "Last 2 msn 1 len 1024")
	})
}

// TestDuplicateIsNotExecutedTwice: duplicates are acknowledged with the newest PSN of a SEND or
// WRITE (C9-105).
func TestDuplicateIsNotExecutedTwice(t *testing.T) {
	bubble(t, config{}, func(r *rig) {
		for i := range 4 {
			r.recv(uint64(i), 4096*i, 4096)
		}
		first := r.req(wire.RCSendOnly, 0, fill(100, 1), ackReq)
		write := r.req(wire.RCWriteOnly, 1, fill(100, 2), r.at(32768, 100), ackReq)
		r.give(first, write)
		r.expect("ack 0 msn 1", "ack 1 msn 2")
		r.completions(r.rcq, "0 SUCCESS RECV 100")
		for i := range r.buf[32768:32868] {
			r.buf[32768+i] = 0
		}
		r.give(first, write)
		r.expect("ack 1 msn 2", "ack 1 msn 2")
		r.completions(r.rcq)
		if !bytes.Equal(r.buf[32768:32868], make([]byte, 100)) {
			t.Error("a duplicate WRITE was executed")
		}
		// One acknowledgement for all duplicates of a superframe, without a request.
		dup := r.req(wire.RCSendOnly, 0, fill(100, 1))
		r.giveFrame(dup, dup, dup)
		r.expect("ack 1 msn 2")
		// In the middle of a message, up to its last packet.
		r.give(r.req(wire.RCSendFirst, 2, fill(1024, 3)), dup)
		r.expect("ack 2 msn 2")
		r.give(r.req(wire.RCSendLast, 3, fill(1, 4), ackReq))
		r.expect("ack 3 msn 3")
		r.completions(r.rcq, "1 SUCCESS RECV 1025")
		// A PSN from before the connection.
		r.give(r.req(wire.RCSendOnly, -1, fill(1, 1)))
		r.expect("ack 3 msn 3")
		if n := r.counter("duplicate_request"); n != 7 {
			t.Errorf("%d duplicates are counted", n)
		}
	})
}

// TestAckDoesNotCoverRead checks that no acknowledgement has the PSN of a READ or atomic. It would
// tell the requester that its response is lost. Some requesters (rxe) would assume that they have
// received the last response.
func TestAckDoesNotCoverRead(t *testing.T) {
	bubble(t, config{}, func(r *rig) {
		r.recv(1, 0, 4096)
		send := r.req(wire.RCSendOnly, 0, fill(16, 1), ackReq)
		r.give(send, r.req(wire.RCReadRequest, 1, nil, r.at(0, 2048)))
		r.expect("ack 0 msn 1", "First 1 msn 2 len 1024", "Last 2 msn 2 len 1024")
		r.give(send)
		r.expect("ack 0 msn 2")
		r.give(r.req(wire.RCFetchAdd, 3, nil, r.atomic(0, 0, 0)), send)
		if sent := r.take(); len(sent) != 2 || r.brief(&sent[1]) != "ack 0 msn 3" {
			t.Errorf("answered with %v", sent)
		}
	})
	// SEND and WRITE with acknowledgement requests, and then a READ, in one frame: the responses
	// acknowledge the others.
	bubble(t, config{}, func(r *rig) {
		r.give(r.req(wire.RCReadRequest, 0, nil, r.at(0, 0)))
		r.take()
		r.giveFrame(
			r.req(wire.RCWriteOnly, 1, fill(4, 1), r.at(0, 4), ackReq),
			r.req(wire.RCReadRequest, 2, nil, r.at(0, 1500)),
		)
		r.expect("First 2 msn 3 len 1024", "Last 3 msn 3 len 476")
	})
}

func TestOutOfSequenceMakesOneNAK(t *testing.T) {
	bubble(t, config{}, func(r *rig) {
		w := func(psn int) wire.Packet {
			return r.req(wire.RCWriteOnly, psn, fill(8, byte(psn)), r.at(8*psn, 8), ackReq)
		}
		r.give(w(0), w(2), w(3), w(7))
		r.expect("ack 0 msn 1", "nak60 1 msn 1")
		// A duplicate in between is acknowledged, and does not end the wait.
		r.give(w(0), w(4))
		r.expect("ack 0 msn 1")
		r.give(w(1), w(3), w(4))
		r.expect("ack 1 msn 2", "nak60 2 msn 2")
		r.give(w(2), w(3))
		r.expect("ack 2 msn 3", "ack 3 msn 4")
		if !bytes.Equal(r.buf[8:16], fill(8, 1)) || !bytes.Equal(r.buf[24:32], fill(8, 3)) {
			t.Error("data are missing")
		}
		if bytes.Equal(r.buf[56:64], fill(8, 7)) {
			t.Error("a packet out of sequence was placed")
		}
		// All in one superframe: the packets before the gap and the NAK make one answer.
		r.giveFrame(w(4), w(6), w(7))
		r.expect("nak60 5 msn 5")
		// A gap that is closed in the same frame needs no NAK.
		r.giveFrame(w(7), w(5))
		r.expect("ack 5 msn 6")
		if n := r.counter("out_of_seq_request"); n != 3 {
			t.Errorf("%d gaps are counted, want 3", n)
		}
	})
}

func TestReceiverNotReady(t *testing.T) {
	for _, c := range []struct {
		name string
		op   wire.Opcode
		want string
	}{
		{"SEND", wire.RCSendOnly, "1 SUCCESS RECV 64"},
		{"SEND with immediate", wire.RCSendOnlyImm, "1 SUCCESS RECV 64 imm 77"},
		{"WRITE with immediate", wire.RCWriteOnlyImm, "1 SUCCESS RECV_RDMA_WITH_IMM 64 imm 77"},
	} {
		run(t, c.name, config{minRNR: 20}, func(t *testing.T, r *rig) {
			p := r.req(c.op, 0, fill(64, 1), r.at(0, 64), imm(77), ackReq)
			next := r.req(wire.RCSendOnly, 1, fill(64, 2), ackReq)
			was := bytes.Clone(r.buf)
			r.give(p, next, next) // later packets are silently dropped
			r.expect("rnr20 0 msn 0")
			r.giveFrame(p, r.req(wire.RCWriteOnly, 1, fill(8, 2), r.at(128, 8), ackReq))
			r.expect("rnr20 0 msn 0")
			if !bytes.Equal(r.buf, was) {
				t.Error("data were placed")
			}
			r.recv(1, 0, 64)
			r.expect()
			r.give(p)
			r.expect("ack 0 msn 1")
			r.completions(r.rcq, c.want)
			r.recv(2, 0, 64)
			r.give(next)
			r.expect("ack 1 msn 2")
			if n := r.counter("send_rnr_err"); n != 2 {
				t.Errorf("%d RNR NAKs are counted", n)
			}
		})
	}
	// A requester that retries after the wait, and loses the first packet, gets another NAK.
	// Packets that were in flight before do not count.
	run(t, "the retransmission is lost", config{minRNR: 20}, func(t *testing.T, r *rig) {
		send := func(psn int) wire.Packet { return r.req(wire.RCSendOnly, psn, fill(8, 1), ackReq) }
		r.give(send(0))
		r.expect("rnr20 0 msn 0")
		for i := range 4 {
			r.recv(uint64(i), 0, 64)
		}
		sleep(11 * time.Millisecond)
		r.give(send(1))
		r.expect("nak60 0 msn 0")
		r.give(send(2), send(1))
		r.expect()
		r.give(send(0), send(1), send(2), send(3))
		r.expect("ack 0 msn 1", "ack 1 msn 2", "ack 2 msn 3", "ack 3 msn 4")
		r.give(send(4))
		r.expect("rnr20 4 msn 4")
		sleep(9 * time.Millisecond)
		r.give(send(5))
		sleep(2 * time.Millisecond) // a slow retry
		r.give(send(6), send(7))
		r.expect()
		r.give(send(5))
		r.expect("nak60 4 msn 4")
	})
	run(t, "at the end of a WRITE", config{}, func(t *testing.T, r *rig) {
		r.give(r.req(wire.RCWriteFirst, 0, fill(1024, 1), r.at(0, 1028)))
		last := r.req(wire.RCWriteLastImm, 1, fill(4, 2), imm(5), ackReq)
		r.give(last)
		r.expect("rnr12 1 msn 0")
		r.recv(9, 0, 0)
		r.give(last)
		r.expect("ack 1 msn 1")
		r.completions(r.rcq, "9 SUCCESS RECV_RDMA_WITH_IMM 1028 imm 5")
	})
	run(t, "acknowledges earlier packets", config{}, func(t *testing.T, r *rig) {
		r.recv(1, 0, 64)
		send := func(psn int) wire.Packet { return r.req(wire.RCSendOnly, psn, fill(8, 1), ackReq) }
		r.giveFrame(send(0), send(1), send(2))
		r.expect("rnr12 1 msn 1")
	})
}

// TestAckOnlyWhereAsked: one acknowledgement for all packets of a frame, if requested.
func TestAckOnlyWhereAsked(t *testing.T) {
	bubble(t, config{}, func(r *rig) {
		w := func(psn int, opts ...option) wire.Packet {
			return r.req(wire.RCWriteOnly, psn, fill(8, 1), append(opts, r.at(0, 8))...)
		}
		r.give(w(0), w(1))
		r.expect()
		r.give(w(2, ackReq))
		r.expect("ack 2 msn 3")
		r.giveFrame(w(3, ackReq), w(4, ackReq), w(5))
		r.expect("ack 5 msn 6")
		r.giveFrame(w(6), w(7))
		r.expect()
		r.give(r.req(wire.RCWriteFirst, 8, fill(1024, 1), r.at(0, 2048), ackReq))
		r.expect("ack 8 msn 8")
		r.give(r.req(wire.RCWriteLast, 9, fill(1024, 1), ackReq))
		r.expect("ack 9 msn 9")
	})
}

func TestMSNWraps(t *testing.T) {
	// 2^24 messages are too many for a test. The field has 24 bits and wraps with the PSN.
	bubble(t, config{}, func(r *rig) {
		for i := range 300 {
			r.give(r.req(wire.RCWriteOnly, i, nil, r.at(0, 0)))
		}
		r.give(r.req(wire.RCWriteOnly, 300, nil, r.at(0, 0), ackReq))
		r.expect("ack 300 msn 301")
	})
}

// TestLengths of valid payloads and pads.
func TestLengths(t *testing.T) {
	for n := range 10 {
		run(t, fmt.Sprint(n), config{v6: n%2 == 1}, func(t *testing.T, r *rig) {
			r.recv(1, 0, n)
			r.recv(2, 100, 1024+n)
			r.give(r.req(wire.RCSendOnly, 0, fill(n, 1), ackReq))
			r.expect("ack 0 msn 1")
			psn := 1
			if n > 0 {
				r.give(r.req(wire.RCSendFirst, 1, fill(1024, 2)), r.req(wire.RCSendLast, 2, fill(n, 3), ackReq))
				r.expect("ack 2 msn 2")
				psn = 3
				r.completions(r.rcq, fmt.Sprint("1 SUCCESS RECV ", n), fmt.Sprint("2 SUCCESS RECV ", 1024+n))
				if !bytes.Equal(r.buf[100:1124+n], append(fill(1024, 2), fill(n, 3)...)) {
					t.Error("the SEND of two packets is wrong")
				}
			}
			was := bytes.Clone(r.buf)
			r.give(r.req(wire.RCWriteOnly, psn, fill(n, 4), r.at(5000, uint32(n)), ackReq))
			copy(was[5000:], fill(n, 4))
			if !bytes.Equal(r.buf, was) {
				t.Error("the WRITE wrote something else")
			}
			r.take()
			r.give(r.req(wire.RCReadRequest, psn+1, nil, r.at(5000, uint32(n))))
			sent := r.take()
			if len(sent) != 1 || sent[0].Opcode != wire.RCReadResponseOnly || !bytes.Equal(sent[0].Payload, fill(n, 4)) ||
				sent[0].Pad != uint8(-n&3) {
				t.Errorf("read as %v", sent)
			}
		})
	}
}

// TestZeroLengthNeedsNoKey: C9-88.
func TestZeroLengthNeedsNoKey(t *testing.T) {
	bubble(t, config{}, func(r *rig) {
		nowhere := reth(0xdead_beef_dead_beef, 0, 0)
		r.recv(1, 0, 0)
		if err := r.qp.PostRecv(&verbs.RecvWR{WRID: 2}); err != nil {
			t.Fatal(err)
		}
		r.give(
			r.req(wire.RCWriteOnly, 0, nil, nowhere, ackReq),
			r.req(wire.RCReadRequest, 1, nil, nowhere),
			r.req(wire.RCSendOnly, 2, nil, ackReq),
			r.req(wire.RCWriteOnlyImm, 3, nil, nowhere, imm(8), ackReq),
		)
		r.expect("ack 0 msn 1", "Only 1 msn 2 len 0", "ack 2 msn 3", "ack 3 msn 4")
		r.completions(r.rcq, "1 SUCCESS RECV 0", "2 SUCCESS RECV_RDMA_WITH_IMM 0 imm 8")
	})
}

// TestScatter: a receive request of many pieces, some of them empty.
func TestScatter(t *testing.T) {
	bubble(t, config{}, func(r *rig) {
		wr := &verbs.RecvWR{WRID: 1}
		var want []int // offset of each byte of the message
		for i := range 32 {
			n := i % 7 * 20
			wr.SGList = append(wr.SGList, r.mr.SGE(i*200, n))
			for j := range n {
				want = append(want, i*200+j)
			}
		}
		if err := r.qp.PostRecv(wr); err != nil {
			t.Fatal(err)
		}
		n := len(want)
		msg := fill(n, 1)
		was := bytes.Clone(r.buf)
		r.give(r.req(wire.RCSendFirst, 0, msg[:1024]), r.req(wire.RCSendLastImm, 1, msg[1024:], imm(3)))
		r.completions(r.rcq, fmt.Sprintf("1 SUCCESS RECV %d imm 3", n))
		for i, at := range want {
			was[at] = msg[i]
		}
		if !bytes.Equal(r.buf, was) {
			t.Error("the message is not where it belongs")
		}
	})
}

// refusal is a request, or several, of which the last must end the connection with a NAK, and
// change nothing.
type refusal struct {
	name string
	c    config
	recv int // post a receive request of this many bytes
	pkts func(r *rig) []wire.Packet
	want string   // the answer
	rcq  []string // completions of receives
	keep bool     // packets before the last have placed data
}
