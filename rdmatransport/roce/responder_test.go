package roce_test

// What the responder does with requests that are right, wrong, late, early and twice.

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/softrnic/softrnic/rdmatransport/roce/wire"
	"github.com/softrnic/softrnic/verbs"
)

// requestOpcodes are all that a requester of an RC QP can send.
var requestOpcodes = []wire.Opcode{
	wire.RCSendFirst, wire.RCSendMiddle, wire.RCSendLast, wire.RCSendLastImm, wire.RCSendOnly, wire.RCSendOnlyImm,
	wire.RCWriteFirst, wire.RCWriteMiddle, wire.RCWriteLast, wire.RCWriteLastImm, wire.RCWriteOnly, wire.RCWriteOnlyImm,
	wire.RCReadRequest, wire.RCCmpSwap, wire.RCFetchAdd, wire.RCSendLastInv, wire.RCSendOnlyInv,
}

// valid is a packet of any request opcode that would be in order by itself: the second of a message of three, or a
// message of its own.
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
	if op == wire.RCReadRequest {
		length = 8
	}
	return r.req(op, psn, fill(n, 1), r.at(0, length), r.atomic(0, 0, 0), ackReq)
}

// TestOpcodeSequence: Middle and Last continue the message that First opened, and nothing else does (C9-66 to C9-72).
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
				ok = info.First() && op != wire.RCSendOnlyInv // which this device does not offer
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
				// The receive request that the SEND had taken fails; what is left is flushed.
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
	// A READ whose responses go over the wrap, asked for again from behind it.
	bubble(t, config{rqPSN: 0xffffff}, func(r *rig) {
		r.give(r.req(wire.RCReadRequest, 0, nil, r.at(0, 3072)))
		r.expect("First 0 msn 1 len 1024", "Middle 1 len 1024", "Last 2 msn 1 len 1024")
		r.give(r.req(wire.RCReadRequest, 1, nil, r.at(1024, 2048)))
		r.expect("Middle 1 len 1024", "Last 2 msn 1 len 1024")
	})
}

// TestDuplicateIsNotExecutedTwice: what is repeated is acknowledged with the newest PSN of a SEND or WRITE (C9-105).
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
			t.Error("a duplicate WRITE was carried out")
		}
		// One acknowledgement for all duplicates of a superframe, without being asked.
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

// TestAckDoesNotCoverRead: an acknowledgement with a READ's or atomic's PSN would tell the requester that its response
// is lost, and make some (rxe) take the last response for received.
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
	// SEND, WRITE with acknowledgement requests and then a READ in one frame: the responses acknowledge the others.
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
		// A gap that the same frame closes needs no NAK.
		r.giveFrame(w(7), w(5))
		r.expect("ack 5 msn 6")
		if n := r.counter("out_of_seq_request"); n != 9 {
			t.Errorf("%d packets out of sequence are counted", n)
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
			r.give(p, next, next) // what comes behind is dropped without a word
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
	run(t, "acknowledges what came before", config{}, func(t *testing.T, r *rig) {
		r.recv(1, 0, 64)
		send := func(psn int) wire.Packet { return r.req(wire.RCSendOnly, psn, fill(8, 1), ackReq) }
		r.giveFrame(send(0), send(1), send(2))
		r.expect("rnr12 1 msn 1")
	})
}

// TestAckOnlyWhereAsked: and one for all packets that came in one frame.
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
	// 2^24 messages are too many for a test; what counts is that the field is 24 bits and wraps with the PSN.
	bubble(t, config{}, func(r *rig) {
		for i := range 300 {
			r.give(r.req(wire.RCWriteOnly, i, nil, r.at(0, 0)))
		}
		r.give(r.req(wire.RCWriteOnly, 300, nil, r.at(0, 0), ackReq))
		r.expect("ack 300 msn 301")
	})
}

// TestLengths of payloads and pads that are right.
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
		if err := r.qp.PostRecv(&verbs.RecvWR{ID: 2}); err != nil {
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
		wr := &verbs.RecvWR{ID: 1}
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

// refusal is a request, or several, of which the last must end the connection with a NAK, and change nothing.
type refusal struct {
	name string
	c    config
	recv int // post a receive request of so many bytes
	pkts func(r *rig) []wire.Packet
	want string   // the answer
	rcq  []string // completions of receives
	keep bool     // packets before the last have placed data
}

func one(f func(r *rig) wire.Packet) func(r *rig) []wire.Packet {
	return func(r *rig) []wire.Packet { return []wire.Packet{f(r)} }
}

func write(psn, n int, opts ...func(r *rig) option) func(r *rig) wire.Packet {
	return func(r *rig) wire.Packet {
		p := r.req(wire.RCWriteOnly, psn, fill(n, 1), ackReq, r.at(0, uint32(n)))
		for _, o := range opts {
			o(r)(&p)
		}
		return p
	}
}

func at(off int, n uint32) func(*rig) option { return func(r *rig) option { return r.at(off, n) } }

func access(a verbs.Access) config { return config{access: a} }

func TestRefusals(t *testing.T) {
	const gib = 1 << 30
	read := func(opts ...func(*rig) option) func(r *rig) []wire.Packet {
		return one(func(r *rig) wire.Packet {
			p := r.req(wire.RCReadRequest, 0, nil, r.at(0, 8), ackReq)
			for _, o := range opts {
				o(r)(&p)
			}
			return p
		})
	}
	fetchAdd := func(o func(r *rig) option) func(r *rig) []wire.Packet {
		return one(func(r *rig) wire.Packet { return r.req(wire.RCFetchAdd, 0, nil, o(r)) })
	}
	rkey := func(f func(r *rig) uint32) func(*rig) option {
		return func(r *rig) option { return func(p *wire.Packet) { p.RETH.RKey = f(r) } }
	}
	address := func(f func(r *rig) uint64) func(*rig) option {
		return func(r *rig) option { return func(p *wire.Packet) { p.RETH.Addr = f(r) } }
	}
	otherPD := rkey(func(r *rig) uint32 {
		pd := must(r.dev.AllocPD())
		return must(pd.RegMR(r.buf, allAccess)).RKey()
	})
	gone := rkey(func(r *rig) uint32 {
		mr := must(r.pd.RegMR(r.buf, allAccess))
		if err := mr.Dereg(); err != nil {
			panic(err)
		}
		return mr.RKey()
	})
	unknown := rkey(func(r *rig) uint32 { return r.mr.RKey() + 1 })
	lkey := rkey(func(r *rig) uint32 { return r.mr.LKey() })
	top := config{mrIOVAGiven: true, mrIOVA: -(64 << 10) & (1<<64 - 1)}
	const inv, acc = "nak61 0 msn 0", "nak62 0 msn 0"

	for _, c := range []refusal{
		// Lengths (C9-93, C9-94).
		{name: "SEND Only longer than the path MTU", recv: 8192, want: inv,
			pkts: one(func(r *rig) wire.Packet { return r.req(wire.RCSendOnly, 0, fill(1025, 1)) })},
		{name: "short SEND First", recv: 8192, want: inv,
			pkts: one(func(r *rig) wire.Packet { return r.req(wire.RCSendFirst, 0, fill(1023, 1)) })},
		{name: "empty SEND First", recv: 8192, want: inv,
			pkts: one(func(r *rig) wire.Packet { return r.req(wire.RCSendFirst, 0, nil) })},
		{name: "short SEND Middle", recv: 8192, want: "nak61 1 msn 0", keep: true, rcq: []string{"1 REM_INV_REQ_ERR"},
			pkts: func(r *rig) []wire.Packet {
				return []wire.Packet{r.req(wire.RCSendFirst, 0, fill(1024, 1)), r.req(wire.RCSendMiddle, 1, fill(1020, 1))}
			}},
		{name: "empty SEND Last", recv: 8192, want: "nak61 1 msn 0", keep: true, rcq: []string{"1 REM_INV_REQ_ERR"},
			pkts: func(r *rig) []wire.Packet {
				return []wire.Packet{r.req(wire.RCSendFirst, 0, fill(1024, 1)), r.req(wire.RCSendLast, 1, nil)}
			}},
		{name: "SEND longer than the receive by one byte", recv: 99, want: inv, rcq: []string{"1 LOC_LEN_ERR"},
			pkts: one(func(r *rig) wire.Packet { return r.req(wire.RCSendOnly, 0, fill(100, 1)) })},
		{name: "SEND longer than the receive in its last packet", recv: 1024, want: "nak61 1 msn 0", keep: true,
			rcq: []string{"1 LOC_LEN_ERR"},
			pkts: func(r *rig) []wire.Packet {
				return []wire.Packet{r.req(wire.RCSendFirst, 0, fill(1024, 1)), r.req(wire.RCSendLast, 1, fill(1, 1))}
			}},
		{name: "WRITE Only shorter than its RETH", pkts: one(write(0, 8, at(0, 9))), want: inv},
		{name: "WRITE Only longer than its RETH", pkts: one(write(0, 8, at(0, 7))), want: inv},
		{name: "WRITE Only of a RETH of nothing", pkts: one(write(0, 8, at(0, 0))), want: inv},
		{name: "WRITE Only longer than the path MTU", pkts: one(write(0, 1028)), want: inv},
		{name: "WRITE First that is all of its RETH", want: inv,
			pkts: one(func(r *rig) wire.Packet { return r.req(wire.RCWriteFirst, 0, fill(1024, 1), r.at(0, 1024)) })},
		{name: "WRITE First longer than its RETH", want: inv,
			pkts: one(func(r *rig) wire.Packet { return r.req(wire.RCWriteFirst, 0, fill(1024, 1), r.at(0, 1000)) })},
		{name: "WRITE First of a RETH of nothing", want: inv,
			pkts: one(func(r *rig) wire.Packet {
				return r.req(wire.RCWriteFirst, 0, fill(1024, 1), reth(0, 0, 0))
			})},
		{name: "WRITE Last shorter than what is left", want: "nak61 1 msn 0", keep: true,
			pkts: func(r *rig) []wire.Packet {
				return []wire.Packet{r.req(wire.RCWriteFirst, 0, fill(1024, 1), r.at(0, 1030)),
					r.req(wire.RCWriteLast, 1, fill(5, 1))}
			}},
		{name: "WRITE Last longer than what is left", want: "nak61 1 msn 0", keep: true,
			pkts: func(r *rig) []wire.Packet {
				return []wire.Packet{r.req(wire.RCWriteFirst, 0, fill(1024, 1), r.at(0, 1030)),
					r.req(wire.RCWriteLast, 1, fill(7, 1))}
			}},
		{name: "WRITE Last with nothing", want: "nak61 1 msn 0", keep: true,
			pkts: func(r *rig) []wire.Packet {
				return []wire.Packet{r.req(wire.RCWriteFirst, 0, fill(1024, 1), r.at(0, 1030)),
					r.req(wire.RCWriteLast, 1, nil)}
			}},
		{name: "WRITE Middle beyond its RETH", want: "nak61 2 msn 0", keep: true,
			pkts: func(r *rig) []wire.Packet {
				return []wire.Packet{r.req(wire.RCWriteFirst, 0, fill(1024, 1), r.at(0, 2049)),
					r.req(wire.RCWriteMiddle, 1, fill(1024, 1)), r.req(wire.RCWriteMiddle, 2, fill(1024, 1))}
			}},
		{name: "READ over 1 GiB", pkts: read(at(0, gib+1)), want: inv},
		{name: "READ of 4 GiB", pkts: read(at(0, 1<<32-1)), want: inv},

		// Keys and ranges.
		{name: "WRITE with an unknown rkey", pkts: one(write(0, 8, unknown)), want: acc},
		{name: "WRITE with an lkey", pkts: one(write(0, 8, lkey)), want: acc},
		{name: "WRITE with rkey 0", pkts: one(write(0, 8, rkey(func(*rig) uint32 { return 0 }))), want: acc},
		{name: "WRITE with the rkey of another PD", pkts: one(write(0, 8, otherPD)), want: acc},
		{name: "WRITE with the rkey of a region that is gone", pkts: one(write(0, 8, gone)), want: acc},
		{name: "WRITE one byte too far", pkts: one(write(0, 8, at(64<<10-7, 8))), want: acc},
		{name: "WRITE one byte too early", pkts: one(write(0, 8, at(-1, 8))), want: acc},
		{name: "WRITE around the address space", want: acc,
			pkts: one(write(0, 8, address(func(*rig) uint64 { return 1<<64 - 4 })))},
		{name: "WRITE from the end of the address space into the region", c: top, want: acc,
			pkts: one(write(0, 1024, at(64<<10-8, 1024)))},
		{name: "WRITE First whose end is one byte too far", want: acc,
			pkts: one(func(r *rig) wire.Packet {
				return r.req(wire.RCWriteFirst, 0, fill(1024, 1), r.at(60<<10, 4097))
			})},
		{name: "WRITE First of 4 GiB", want: acc,
			pkts: one(func(r *rig) wire.Packet { return r.req(wire.RCWriteFirst, 0, fill(1024, 1), r.at(0, 1<<32-1)) })},
		{name: "READ with an unknown rkey", pkts: read(unknown), want: acc},
		{name: "READ with the rkey of another PD", pkts: read(otherPD), want: acc},
		{name: "READ with the rkey of a region that is gone", pkts: read(gone), want: acc},
		{name: "READ one byte too far", pkts: read(at(64<<10-7, 8)), want: acc},
		{name: "READ one byte too early", pkts: read(at(-1, 8)), want: acc},
		{name: "READ around the address space", want: acc, pkts: read(address(func(*rig) uint64 { return 1<<64 - 4 }))},
		{name: "READ of 1 GiB of a smaller region", pkts: read(at(0, gib)), want: acc},
		{name: "atomic one byte too far", want: acc,
			pkts: fetchAdd(func(r *rig) option { return r.atomic(64<<10-7, 0, 1) })},
		{name: "atomic with an unknown rkey", want: acc, pkts: fetchAdd(func(r *rig) option {
			return func(p *wire.Packet) { r.atomic(0, 0, 1)(p); p.AtomicETH.RKey++ }
		})},
		{name: "atomic not aligned", want: inv, pkts: fetchAdd(func(r *rig) option { return r.atomic(4, 0, 1) })},
		{name: "atomic aligned in name only", c: config{mrIOVAGiven: true, mrIOVA: 0x1004}, want: inv,
			pkts: fetchAdd(func(r *rig) option { return r.atomic(4, 0, 1) })},

		// Rights: of the region (access error), of the QP (invalid request, as rxe).
		{name: "WRITE to a region without REMOTE_WRITE", pkts: one(write(0, 8)), want: acc,
			c: config{mrAccess: allAccess &^ verbs.AccessRemoteWrite}},
		{name: "READ of a region without REMOTE_READ", pkts: read(), want: acc,
			c: config{mrAccess: allAccess &^ verbs.AccessRemoteRead}},
		{name: "atomic on a region without REMOTE_ATOMIC", want: acc,
			c:    config{mrAccess: allAccess &^ verbs.AccessRemoteAtomic},
			pkts: fetchAdd(func(r *rig) option { return r.atomic(0, 0, 1) })},
		{name: "WRITE to a QP without REMOTE_WRITE", pkts: one(write(0, 8)), want: inv,
			c: access(allAccess &^ verbs.AccessRemoteWrite)},
		{name: "WRITE of nothing to a QP without REMOTE_WRITE", pkts: one(write(0, 0)), want: inv,
			c: access(allAccess &^ verbs.AccessRemoteWrite)},
		{name: "READ from a QP without REMOTE_READ", pkts: read(), want: inv,
			c: access(allAccess &^ verbs.AccessRemoteRead)},
		{name: "atomic at a QP without REMOTE_ATOMIC", want: inv,
			c:    access(allAccess &^ verbs.AccessRemoteAtomic),
			pkts: fetchAdd(func(r *rig) option { return r.atomic(0, 0, 1) })},
		{name: "READ from a QP with a max_dest_rd_atomic of 0", pkts: read(), want: inv, c: config{destRD: none}},
		{name: "atomic at a QP with a max_dest_rd_atomic of 0", want: inv, c: config{destRD: none},
			pkts: fetchAdd(func(r *rig) option { return r.atomic(0, 0, 1) })},

		// The receiver's own memory: C9-120, remote operational error.
		{name: "SEND into a region without LOCAL_WRITE", c: config{mrAccess: verbs.AccessRemoteRead}, recv: 64,
			want: "nak63 0 msn 0", rcq: []string{"1 LOC_PROT_ERR"},
			pkts: one(func(r *rig) wire.Packet { return r.req(wire.RCSendOnly, 0, fill(64, 1)) })},
		{name: "SEND into a receive that is longer than its region", recv: 64<<10 + 1, keep: true,
			want: "nak63 64 msn 0", rcq: []string{"1 LOC_PROT_ERR"},
			pkts: func(r *rig) (pkts []wire.Packet) {
				for i := range 64 {
					op := wire.RCSendMiddle
					if i == 0 {
						op = wire.RCSendFirst
					}
					pkts = append(pkts, r.req(op, i, fill(1024, 1)))
				}
				return append(pkts, r.req(wire.RCSendLast, 64, fill(1, 1)))
			}},
	} {
		run(t, c.name, c.c, func(t *testing.T, r *rig) {
			if c.recv > 0 {
				r.recv(1, 0, c.recv)
			}
			r.post(r.wr(7, verbs.Send, 8))
			r.take()
			was := bytes.Clone(r.buf)
			r.give(c.pkts(r)...)
			r.expect(c.want)
			r.state(verbs.StateErr)
			if !c.keep && !bytes.Equal(r.buf, was) {
				t.Error("memory has changed")
			}
			want := c.rcq
			if c.recv > 0 && want == nil {
				want = []string{"1 WR_FLUSH_ERR"}
			}
			r.completions(r.rcq, want...)
			r.completions(r.scq, "7 WR_FLUSH_ERR")
			// Nothing is answered any more.
			r.give(c.pkts(r)...)
			r.expect()
		})
	}
}

// TestRegionGoesInMidMessage: every packet is checked, not only the first.
func TestRegionGoesInMidMessage(t *testing.T) {
	bubble(t, config{}, func(r *rig) {
		mr := must(r.pd.RegMR(r.buf, allAccess))
		r.give(r.req(wire.RCWriteFirst, 0, fill(1024, 1), reth(mr.Addr(), mr.RKey(), 3072)))
		if err := mr.Dereg(); err != nil {
			t.Fatal(err)
		}
		was := bytes.Clone(r.buf)
		r.give(r.req(wire.RCWriteMiddle, 1, fill(1024, 1)))
		r.expect("nak62 1 msn 0")
		r.state(verbs.StateErr)
		if !bytes.Equal(was, r.buf) {
			t.Error("memory that is not registered any more has changed")
		}
	})
	// The same for READ: between the bursts of a long one.
	bubble(t, config{size: 2 << 20}, func(r *rig) {
		mr := must(r.pd.RegMR(r.buf, allAccess))
		r.give(r.req(wire.RCReadRequest, 0, nil, reth(mr.Addr(), mr.RKey(), 2<<20)))
		burst := len(r.take())
		if burst == 0 || burst >= 2048 {
			t.Fatalf("%d responses at once", burst)
		}
		if err := mr.Dereg(); err != nil {
			t.Fatal(err)
		}
		sleep(1e9)
		r.expect(fmt.Sprintf("nak62 %d msn 1", burst))
		r.state(verbs.StateErr)
	})
}

// TestDropped: packets that are not for the QP, or not packets, change nothing and are counted.
func TestDropped(t *testing.T) {
	for _, c := range []struct {
		name    string
		counter string
		give    func(r *rig, p wire.Packet)
	}{
		{"wrong QPN", "unknown_qp", func(r *rig, p wire.Packet) { p.DestQP ^= 1; r.give(p) }},
		{"QPN 0", "unknown_qp", func(r *rig, p wire.Packet) { p.DestQP = 0; r.give(p) }},
		{"multicast QPN", "unknown_qp", func(r *rig, p wire.Packet) { p.DestQP = 0xffffff; r.give(p) }},
		{"wrong source address", "misdirected_packets", func(r *rig, p wire.Packet) {
			r.them = us4.Next().Next()
			r.give(p)
		}},
		{"wrong destination address", "misdirected_packets", func(r *rig, p wire.Packet) {
			r.us = us4.Prev()
			r.give(p)
		}},
		{"other address family", "misdirected_packets", func(r *rig, p wire.Packet) {
			r.us, r.them = us6, them6
			r.give(p)
		}},
		{"wrong port of the device", "misdirected_packets", func(r *rig, p wire.Packet) { r.port2.receive(r.frame(p)) }},
		{"wrong P_Key", "bad_pkey", func(r *rig, p wire.Packet) { p.PKey = 0x8001; r.give(p) }},
		{"P_Key 0", "bad_pkey", func(r *rig, p wire.Packet) { p.PKey = 0; r.give(p) }},
		{"bad ICRC", "icrc_errors", func(r *rig, p wire.Packet) {
			d := r.frame(p)
			d.Payload[len(d.Payload)-1] ^= 1
			r.port.receive(d)
		}},
		{"flipped payload bit", "icrc_errors", func(r *rig, p wire.Packet) {
			d := r.frame(p)
			d.Payload[40] ^= 1
			r.port.receive(d)
		}},
		{"flipped address bit", "icrc_errors", func(r *rig, p wire.Packet) {
			d := r.frame(p)
			d.Header[15] ^= 1
			r.port.receive(d)
		}},
		{"truncated in the payload", "icrc_errors", func(r *rig, p wire.Packet) {
			d := r.frame(p)
			d.Payload = d.Payload[:len(d.Payload)-4]
			r.port.receive(d)
		}},
		{"truncated in the RETH", "malformed_packets", func(r *rig, p wire.Packet) {
			d := r.frame(p)
			d.Payload = d.Payload[:20]
			r.port.receive(d)
		}},
		{"truncated in the BTH", "malformed_packets", func(r *rig, p wire.Packet) {
			d := r.frame(p)
			d.Payload = d.Payload[:11]
			r.port.receive(d)
		}},
		{"one byte", "malformed_packets", func(r *rig, p wire.Packet) {
			d := r.frame(p)
			d.Payload = d.Payload[:1]
			r.port.receive(d)
		}},
		{"transport header version 1", "malformed_packets", func(r *rig, p wire.Packet) { p.Version = 1; r.give(p) }},
		{"UC opcode", "malformed_packets", func(r *rig, p wire.Packet) { p.Opcode = wire.UCWriteOnly; r.give(p) }},
		{"UD opcode", "malformed_packets", func(r *rig, p wire.Packet) { p.Opcode = wire.UDSendOnly; r.give(p) }},
		{"more pad than payload", "malformed_packets", func(r *rig, p wire.Packet) {
			p.Payload, p.Pad = nil, 0
			d := r.frame(p)
			d.Payload[1] |= 3 << 4
			r.port.receive(d)
		}},
	} {
		for _, state := range []verbs.QPState{verbs.StateRTR, verbs.StateRTS} {
			run(t, fmt.Sprint(c.name, " in ", state), config{stopAt: state}, func(t *testing.T, r *rig) {
				was := bytes.Clone(r.buf)
				us, them := r.us, r.them
				before := r.counter(c.counter)
				c.give(r, r.req(wire.RCWriteOnly, 0, fill(64, 1), r.at(0, 64), ackReq))
				r.us, r.them = us, them
				r.expect()
				r.state(state)
				if !bytes.Equal(r.buf, was) {
					t.Error("memory has changed")
				}
				if n := r.counter(c.counter); n != before+1 {
					t.Errorf("%s is %d, was %d", c.counter, n, before)
				}
				// The connection goes on as if nothing had been.
				r.give(r.req(wire.RCWriteOnly, 0, fill(64, 1), r.at(0, 64), ackReq))
				r.expect("ack 0 msn 1")
			})
		}
	}
	for _, state := range []verbs.QPState{verbs.StateReset, verbs.StateInit, verbs.StateErr} {
		run(t, fmt.Sprint("QP in ", state), config{}, func(t *testing.T, r *rig) {
			p := r.req(wire.RCWriteOnly, 0, fill(64, 1), r.at(0, 64), ackReq)
			was := bytes.Clone(r.buf)
			r.modify(verbs.StateReset)
			r.c.stopAt = state
			if state == verbs.StateErr {
				r.modify(state)
			} else if state != verbs.StateReset {
				r.connect()
			}
			r.give(p, r.ack(0))
			r.expect()
			r.state(state)
			if !bytes.Equal(r.buf, was) {
				t.Error("memory has changed")
			}
			if n := r.counter("misdirected_packets"); n != 2 {
				t.Errorf("%d packets are counted", n)
			}
		})
	}
}

// TestOnePacketSpoilsOnlyItself: good packets of the same superframe count.
func TestOnePacketSpoilsOnlyItself(t *testing.T) {
	bubble(t, config{}, func(r *rig) {
		w := func(psn int) wire.Packet { return r.req(wire.RCWriteOnly, psn, fill(8, 1), r.at(8*psn, 8), ackReq) }
		d := r.frame(w(0), w(1), w(2))
		d.Payload[d.SegmentSize+30] ^= 1
		r.port.receive(d)
		r.expect("nak60 1 msn 1")
	})
}
