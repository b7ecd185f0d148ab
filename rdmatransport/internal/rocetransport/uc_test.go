package rocetransport_test

// Unreliable connections: packets of work requests, and received messages that are complete,
// incomplete, or wrong.

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/softrnic/softrnic/rdmatransport/wire"
	"github.com/softrnic/softrnic/verbs"
)

var ucConfig = config{service: verbs.UC, sqPSN: 0xffffff, rqPSN: 0xfffffe}

func TestUCOut(t *testing.T) {
	run(t, "completed when sent", ucConfig, func(t *testing.T, r *rig) {
		imm := func(id uint64, op verbs.WROpcode, n int) *verbs.SendWR {
			wr := r.wr(id, op, n)
			wr.ImmData, wr.Flags = 5, wr.Flags|verbs.SendSolicited
			return wr
		}
		r.post(r.wr(1, verbs.Send, 2500), imm(2, verbs.SendWithImm, 3), r.wr(3, verbs.RDMAWrite, 1025),
			imm(4, verbs.RDMAWriteWithImm, 0), imm(5, verbs.SendWithImm, 1025), imm(6, verbs.RDMAWriteWithImm, 1025))
		sent := r.expect("SEND First 0 len 1024", "SEND Middle 1 len 1024", "SEND Last 2 len 452",
			"SEND Only with Immediate 3 len 3 imm 5 se",
			"WRITE First 4 len 1024 at 0+1025", "WRITE Last 5 len 1",
			"WRITE Only with Immediate 6 len 0 at 0+0 imm 5 se",
			"SEND First 7 len 1024", "SEND Last with Immediate 8 len 1 imm 5 se",
			"WRITE First 9 len 1024 at 0+1025", "WRITE Last with Immediate 10 len 1 imm 5 se")
		for _, p := range sent {
			if p.Opcode.Transport() != wire.UC || p.AckReq {
				t.Errorf("sent %v with AckReq %t", p.Opcode, p.AckReq)
			}
		}
		if !bytes.Equal(sent[2].Payload, r.buf[2048:2500]) {
			t.Error("other bytes than posted")
		}
		r.completions(r.scq, "1 SUCCESS SEND 0", "2 SUCCESS SEND 0", "3 SUCCESS RDMA_WRITE 0", "4 SUCCESS RDMA_WRITE 0",
			"5 SUCCESS SEND 0", "6 SUCCESS RDMA_WRITE 0")
	})
	run(t, "no READ, no atomics", ucConfig, func(t *testing.T, r *rig) {
		for _, op := range []verbs.WROpcode{verbs.RDMARead, verbs.AtomicFetchAndAdd, verbs.SendWithInv} {
			r.post(r.wr(1, verbs.Send, 1), r.wr(2, op, 8), r.wr(3, verbs.Send, 1))
			r.completions(r.scq, "1 SUCCESS SEND 0", "2 LOC_QP_OP_ERR", "3 WR_FLUSH_ERR")
			r.state(verbs.StateSQE)
			if sent := r.take(); len(sent) != 1 {
				t.Errorf("%v: %d packets", op, len(sent))
			}
			r.modify(verbs.StateRTS)
		}
	})
	run(t, "a failed request stops only the send queue", ucConfig, func(t *testing.T, r *rig) {
		bad := r.wr(2, verbs.Send, 2048)
		bad.SGList = []verbs.SGE{r.mr.SGE(0, 1024), {Addr: r.mr.Addr(), Length: 1024, LKey: r.mr.LKey() + 1}}
		r.post(r.wr(1, verbs.Send, 1), bad, r.wr(3, verbs.Send, 1))
		r.expect("SEND Only 0 len 1", "SEND First 1 len 1024")
		r.completions(r.scq, "1 SUCCESS SEND 0", "2 LOC_PROT_ERR", "3 WR_FLUSH_ERR")
		r.state(verbs.StateSQE)
		r.recv(9, 0, 64)
		r.give(r.req(wire.UCSendOnly, 0, fill(4, 1)))
		r.completions(r.rcq, "9 SUCCESS RECV 4")
		r.modify(verbs.StateRTS)
		r.post(r.wr(4, verbs.Send, 1))
		sent := r.take()
		if len(sent) != 1 || sent[0].Opcode != wire.UCSendOnly {
			t.Errorf("sent %v", sent)
		}
	})
	run(t, "a long message in pieces", config{service: verbs.UC, mtu: verbs.MTU4096, size: 2 << 20}, func(t *testing.T, r *rig) {
		const packets = 2 << 20 >> 12
		r.post(r.wr(1, verbs.RDMAWrite, 2<<20), r.wr(2, verbs.RDMAWrite, 1))
		n := len(r.take())
		if n == 0 || n >= packets {
			t.Fatalf("%d packets of %d at once", n, packets)
		}
		r.completions(r.scq)
		for range 20 {
			sleep(time.Millisecond)
			for i, p := range r.take() {
				if want := uint32(n + i); p.PSN != want {
					t.Fatalf("PSN %d, want %d", p.PSN, want)
				}
			}
		}
		r.completions(r.scq, "1 SUCCESS RDMA_WRITE 0", "2 SUCCESS RDMA_WRITE 0")
	})
}

// TestUCIn gives the engine packets, and checks the receive completions and the bytes written.
func TestUCIn(t *testing.T) {
	const mtu = 1024
	full := fill(mtu, 1)
	first, middle, last, only := wire.UCSendFirst, wire.UCSendMiddle, wire.UCSendLast, wire.UCSendOnly
	write := []wire.Opcode{wire.UCWriteFirst, wire.UCWriteMiddle, wire.UCWriteLast, wire.UCWriteOnly}
	type step struct {
		op      wire.Opcode
		psn     int
		payload []byte
		opts    []option
	}
	got := func(n int) string { return fmt.Sprintf("SUCCESS RECV %d", n) }
	for _, c := range []struct {
		name  string
		steps func(r *rig) []step
		want  []string // of requests 1, 2, …
		count string   // a counter that increases, if any
	}{
		{"whole messages", func(*rig) []step {
			return []step{{first, 0, full, nil}, {middle, 1, full, nil}, {last, 2, full[:9], nil}, {only, 3, nil, nil},
				{wire.UCSendOnlyImm, 4, full[:1], []option{imm(8)}}}
		}, []string{got(2*mtu + 9), got(0), got(1) + " imm 8"}, ""},
		{"the last packet is lost: the next message takes the request", func(*rig) []step {
			return []step{{first, 0, full, nil}, {middle, 1, full, nil}, {only, 3, full[:5], nil}}
		}, []string{got(5)}, "out_of_seq_request"},
		{"the middle is lost: the rest is dropped", func(*rig) []step {
			return []step{{first, 0, full, nil}, {last, 2, full[:9], nil}, {middle, 3, full, nil}, {only, 4, full[:5], nil}}
		}, []string{got(5)}, "out_of_seq_request"},
		{"the first is lost", func(*rig) []step {
			return []step{{middle, 1, full, nil}, {last, 2, full, nil}, {first, 3, full, nil}, {last, 4, full[:1], nil}}
		}, []string{got(mtu + 1)}, "out_of_seq_request"},
		{"PSNs jump by half their range", func(*rig) []step {
			return []step{{only, 1 << 23, full[:5], nil}, {only, 5, full[:6], nil}, {only, 6, full[:7], nil}}
		}, []string{got(5), got(6), got(7)}, "out_of_seq_request"},
		{"a duplicate is a message again", func(*rig) []step {
			return []step{{only, 0, full[:5], nil}, {only, 0, full[:5], nil}, {only, 1, full[:6], nil}}
		}, []string{got(5), got(5), got(6)}, "out_of_seq_request"},
		{"First in a message", func(*rig) []step {
			return []step{{first, 0, full, nil}, {first, 1, full, nil}, {last, 2, full[:1], nil}}
		}, []string{got(mtu + 1)}, ""},
		{"a WRITE in a SEND", func(r *rig) []step {
			return []step{{first, 0, full, nil}, {write[1], 1, full, nil}, {last, 2, full[:9], nil},
				{write[3], 3, full[:7], []option{r.at(4096, 7)}}, {only, 4, full[:3], nil}}
		}, []string{got(3)}, ""},
		{"a short middle", func(*rig) []step {
			return []step{{first, 0, full, nil}, {middle, 1, full[:8], nil}, {last, 2, full[:8], nil}, {only, 3, full[:3], nil}}
		}, []string{got(3)}, ""},
		{"an empty last", func(*rig) []step {
			return []step{{first, 0, full, nil}, {last, 1, nil, nil}, {only, 2, full[:3], nil}}
		}, []string{got(3)}, ""},
		{"longer than the request", func(*rig) []step {
			return []step{{first, 0, full, nil}, {middle, 1, full, nil}, {middle, 2, full, nil}, {middle, 3, full, nil},
				{last, 4, full[:1], nil}, {only, 5, full[:3], nil}}
		}, []string{got(3)}, "too_long_dropped"},
		{"an opcode that UC does not have", func(r *rig) []step {
			return []step{{wire.UCSendOnly | 0x10, 0, nil, nil}, {wire.RCReadRequest, 1, nil, []option{r.at(0, 8)}},
				{only, 1, full[:3], nil}}
		}, []string{got(3)}, "malformed_packets"},
		{"WRITE with the key of another PD", func(r *rig) []step {
			return []step{{wire.UCWriteOnlyImm, 0, full[:8], []option{reth(r.mr.Addr(), r.mr.RKey()+1, 8), imm(1)}},
				{only, 1, full[:3], nil}}
		}, []string{got(3)}, ""},
		{"WRITE past the region", func(r *rig) []step {
			return []step{{write[0], 0, full, []option{r.at(r.c.size-mtu, 2*mtu)}}, {write[2], 1, full, nil},
				{only, 2, full[:3], nil}}
		}, []string{got(3)}, ""},
		{"WRITE of another length than its RETH", func(r *rig) []step {
			return []step{{wire.UCWriteOnlyImm, 0, full[:8], []option{r.at(0, 9), imm(1)}}, {only, 1, full[:3], nil}}
		}, []string{got(3)}, ""},
	} {
		run(t, c.name, ucConfig, func(t *testing.T, r *rig) {
			for i := range c.want {
				r.recv(uint64(i+1), 8192+4096*i, 4*mtu)
			}
			before := map[string]uint64{}
			for _, name := range []string{"out_of_seq_request", "too_long_dropped", "malformed_packets"} {
				before[name] = r.counter(name)
			}
			for _, s := range c.steps(r) {
				r.give(r.req(s.op, s.psn, s.payload, s.opts...))
			}
			var want []string
			for i, w := range c.want {
				want = append(want, fmt.Sprintf("%d %s", i+1, w))
			}
			r.completions(r.rcq, want...)
			r.expect() // never an answer
			r.state(verbs.StateRTS)
			for name, n := range before {
				if up := r.counter(name) > n; up != (name == c.count) {
					t.Errorf("%s went up: %t", name, up)
				}
			}
		})
	}

	run(t, "WRITE", ucConfig, func(t *testing.T, r *rig) {
		r.give(r.req(write[0], 0, full, r.at(0, 2*mtu+3)), r.req(write[1], 1, fill(mtu, 2)), r.req(write[2], 2, fill(3, 3)),
			// No receive request: dropped.
			r.req(wire.UCWriteOnlyImm, 3, fill(4, 4), r.at(5000, 4), imm(1)))
		if !bytes.Equal(r.buf[:mtu], full) || !bytes.Equal(r.buf[mtu:2*mtu], fill(mtu, 2)) ||
			!bytes.Equal(r.buf[2*mtu:2*mtu+3], fill(3, 3)) {
			t.Error("at the wrong place")
		}
		if r.counter("no_recv_dropped") != 1 || bytes.Equal(r.buf[5000:5004], fill(4, 4)) {
			t.Error("immediate data without a receive request")
		}
		r.recv(1, 0, 0)
		r.give(r.req(wire.UCWriteOnlyImm, 4, fill(4, 4), r.at(5000, 4), imm(7)))
		r.completions(r.rcq, "1 SUCCESS RECV_RDMA_WITH_IMM 4 imm 7")
		if !bytes.Equal(r.buf[5000:5004], fill(4, 4)) {
			t.Error("not written")
		}
	})
	run(t, "WRITE that the QP does not allow", config{service: verbs.UC, access: verbs.AccessLocalWrite}, func(t *testing.T, r *rig) {
		r.give(r.req(write[3], 0, fill(4, 4), r.at(0, 4)))
		if bytes.Equal(r.buf[:4], fill(4, 4)) {
			t.Error("written")
		}
		r.expect()
		r.state(verbs.StateRTS)
	})
	run(t, "no receive request", ucConfig, func(t *testing.T, r *rig) {
		r.give(r.req(first, 0, full))
		r.recv(1, 0, 64) // too late for that message
		r.give(r.req(last, 1, full[:1]), r.req(only, 2, full[:2]))
		r.completions(r.rcq, "1 SUCCESS RECV 2")
		if r.counter("no_recv_dropped") != 1 {
			t.Error("not counted")
		}
	})
	run(t, "a receive request that fails", ucConfig, func(t *testing.T, r *rig) {
		if err := r.qp.PostRecv(&verbs.RecvWR{WRID: 1,
			SGList: []verbs.SGE{{Addr: r.mr.Addr(), Length: 64, LKey: r.mr.LKey() + 1}}}); err != nil {
			t.Fatal(err)
		}
		r.recv(2, 0, 64)
		r.give(r.req(only, 0, full[:2]))
		r.completions(r.rcq, "1 LOC_PROT_ERR", "2 WR_FLUSH_ERR")
		r.state(verbs.StateErr)
		r.expect()
	})
	run(t, "the first message of a QP in RTR", config{service: verbs.UC, stopAt: verbs.StateRTR}, func(t *testing.T, r *rig) {
		r.recv(1, 0, 64)
		r.give(r.req(only, 0, full[:2]))
		r.completions(r.rcq, "1 SUCCESS RECV 2")
		e, err := r.dev.GetAsyncEvent(t.Context())
		if err != nil || e.Type != verbs.EventCommEst {
			t.Errorf("event %v, %v", e.Type, err)
		}
	})
}

// BenchmarkUC posts, sends and polls a message, and receives one.
func BenchmarkUC(b *testing.B) {
	b.Run("send 65536", func(b *testing.B) {
		r := benchRig(b, config{service: verbs.UC, mtu: verbs.MTU4096})
		wr := r.wr(1, verbs.Send, 65536)
		wcs := make([]verbs.WC, 16)
		b.SetBytes(65536)
		b.ReportAllocs()
		for b.Loop() {
			if err := r.qp.PostSend(wr); err != nil {
				b.Fatal(err)
			}
			if drain(b, r.scq, wcs) != 1 {
				b.Fatal("not complete")
			}
		}
	})
	b.Run("receive 4096", func(b *testing.B) {
		r := benchRig(b, config{service: verbs.UC, mtu: verbs.MTU4096})
		p := r.packet(r.req(wire.UCSendOnly, 0, fill(4096, 1)))
		recv := &verbs.RecvWR{SGList: []verbs.SGE{r.mr.SGE(0, 4096)}}
		wcs := make([]verbs.WC, 16)
		b.SetBytes(4096)
		b.ReportAllocs()
		for b.Loop() {
			if err := r.qp.PostRecv(recv); err != nil {
				b.Fatal(err)
			}
			p.give(1)
			if drain(b, r.rcq, wcs) != 1 {
				b.Fatal("not received")
			}
		}
	})
}
