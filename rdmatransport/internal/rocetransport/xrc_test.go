package rocetransport_test

// XRC against bytes written from IBTA annex A14.

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/softrnic/softrnic/rdmatransport/wire"
	"github.com/softrnic/softrnic/verbs"
)

// TestXRCInitiator checks that each request names an SRQ. Responses are those of RC, with another
// service in their opcode.
func TestXRCInitiator(t *testing.T) {
	bubble(t, config{service: verbs.XRCSend, goBackN: true, sqPSN: 0x000100, rd: 4}, func(r *rig) {
		copy(r.buf, "\x11\x22\x33\x44\x55\x66\x77\x88")
		for i, op := range []verbs.WROpcode{verbs.Send, verbs.RDMAWrite, verbs.RDMARead, verbs.AtomicCmpAndSwp} {
			wr := &verbs.SendWR{WRID: uint64(i), Opcode: op, Flags: verbs.SendSignaled, SGList: []verbs.SGE{r.mr.SGE(0, 8)},
				RemoteSRQN: 0x123456, RemoteAddr: 0x1122334455667788, RKey: 0xaabbccdd, CompareAdd: 1, Swap: 2}
			r.post(wr)
		}
		r.expectBytes("a440 ffff 0000abcd 80000100 00123456 1122334455667788",
			"aa40 ffff 0000abcd 80000101 00123456 1122334455667788 aabbccdd 00000008 1122334455667788",
			"ac40 ffff 0000abcd 80000102 00123456 1122334455667788 aabbccdd 00000008",
			"b340 ffff 0000abcd 80000103 00123456 1122334455667788 aabbccdd 0000000000000002 0000000000000001")
		r.giveBytes("1100 ffff 00Q 00000101 1f000002") // RC's, not XRC's
		r.completions(r.scq)
		r.giveBytes("b100 ffff 00Q 00000101 1f000002")
		r.completions(r.scq, "0 SUCCESS SEND 0", "1 SUCCESS RDMA_WRITE 0")
		r.giveBytes("b000 ffff 00Q 00000102 1f000003 9999999999999999")
		r.giveBytes("b200 ffff 00Q 00000103 1f000004 0000000000000007")
		r.completions(r.scq, "2 SUCCESS RDMA_READ 8", "3 SUCCESS COMP_SWAP 8")
		r.giveBytes("a400 ffff 00Q 80000000 00000001") // an initiator answers nothing
		r.expectBytes()
	})
}

// xrcTarget has two SRQs of the QP's domain, each with its own region and PD.
type xrcTarget struct {
	*rig
	srq [2]*verbs.SRQ
	cq  [2]*verbs.CQ
	mem [2]*verbs.MR
}

func newXRCTarget(r *rig) *xrcTarget {
	x := &xrcTarget{rig: r}
	for i := range 2 {
		pd := must(r.dev.AllocPD())
		x.cq[i] = must(r.dev.CreateCQ(16, nil))
		x.srq[i] = must(pd.CreateSRQ(&verbs.SRQInitAttr{Attr: verbs.SRQAttr{MaxWR: 4, MaxSGE: i + 1}, XRCD: r.xrcd, CQ: x.cq[i]}))
		x.mem[i] = must(pd.RegMR(make([]byte, 4096), allAccess))
	}
	return x
}

func (x *xrcTarget) recv(i int, id uint64) {
	x.t.Helper()
	if err := x.srq[i].PostRecv(&verbs.RecvWR{WRID: id, SGList: []verbs.SGE{x.mem[i].SGE(0, 4096)}}); err != nil {
		x.t.Fatal(err)
	}
}

// TestXRCTarget checks that messages arrive at the SRQ that they name, and use the memory of its
// PD.
func TestXRCTarget(t *testing.T) {
	bubble(t, config{service: verbs.XRCRecv, goBackN: true, mtu: verbs.MTU256}, func(r *rig) {
		x := newXRCTarget(r)
		n := [2]uint32{x.srq[0].Num(), x.srq[1].Num()}
		x.recv(1, 7)
		x.recv(0, 8)
		r.giveBytes("a400 ffff 00Q 80000000 00%06x 0a0b0c0d", n[0])
		r.giveBytes("a000 ffff 00Q 00000001 00%06x %0512x", n[1], 5)
		r.giveBytes("a200 ffff 00Q 80000002 00%06x 01020304", n[1])
		r.expectBytes("b140 ffff 0000abcd 00000000 1f000001", "b140 ffff 0000abcd 00000002 1f000002")
		r.completions(x.cq[0], "8 SUCCESS RECV 4")
		r.completions(x.cq[1], "7 SUCCESS RECV 260")
		if got := fmt.Sprintf("%x %x", x.mem[0].Buf()[:4], x.mem[1].Buf()[254:260]); got != "0a0b0c0d 000501020304" {
			t.Error(got)
		}
		// An SRQ without requests is no error of the domain.
		r.giveBytes("a400 ffff 00Q 80000003 00%06x", n[0])
		r.expectBytes("b140 ffff 0000abcd 00000003 2c000002")
		// READs of each PD, answered from the right one, also for duplicates.
		x.mem[0].Buf()[8], x.mem[1].Buf()[8] = 0xaa, 0xbb
		read := [2]string{}
		for i := range 2 {
			read[i] = fmt.Sprintf("ac00 ffff 00Q 8000%04x 00%06x %016x %08x 00000001", 3+i, n[i], x.mem[i].Addr()+8, x.mem[i].RKey())
		}
		r.giveBytes("%s", read[0])
		r.giveBytes("%s", read[1])
		r.giveBytes("%s", read[0])
		r.expectBytes("b070 ffff 0000abcd 00000003 1f000003 aa000000", "b070 ffff 0000abcd 00000004 1f000004 bb000000",
			"b070 ffff 0000abcd 00000003 1f000004 aa000000")
		// A closed SRQ drops its open message. The domain is closed last.
		x.recv(0, 9)
		r.giveBytes("a000 ffff 00Q 00000005 00%06x %0512x", n[0], 5)
		if err := r.xrcd.Close(); err == nil {
			t.Error("a domain in use was closed")
		}
		if err := x.srq[0].Close(); err != nil {
			t.Error(err)
		}
		if err := x.cq[0].Close(); err != nil {
			t.Error(err)
		}
		r.giveBytes("a200 ffff 00Q 80000006 00%06x 01020304", n[0])
		r.expectBytes("b140 ffff 0000abcd 00000006 62000004")
		r.state(verbs.StateErr)
	})
}

// TestXRCRefused checks that an SRQ outside of the domain, or memory of another PD, is an access
// error.
func TestXRCRefused(t *testing.T) {
	for _, c := range []struct {
		name string
		say  func(x *xrcTarget) string
	}{
		{"unknown SRQ", func(x *xrcTarget) string { return "a400 ffff 00Q 80000000 00ffffff" }},
		{"SRQ of another domain", func(x *xrcTarget) string {
			other := must(x.dev.OpenXRCD(nil, 0))
			s := must(x.pd.CreateSRQ(&verbs.SRQInitAttr{Attr: verbs.SRQAttr{MaxWR: 1}, XRCD: other, CQ: x.scq}))
			return fmt.Sprintf("a400 ffff 00Q 80000000 00%06x", s.Num())
		}},
		{"memory of another PD", func(x *xrcTarget) string {
			return fmt.Sprintf("ac00 ffff 00Q 80000000 00%06x %016x %08x 00000001", x.srq[0].Num(), x.mem[1].Addr(), x.mem[1].RKey())
		}},
	} {
		run(t, c.name, config{service: verbs.XRCRecv, goBackN: true}, func(t *testing.T, r *rig) {
			x := newXRCTarget(r)
			r.giveBytes("%s", c.say(x))
			r.expectBytes("b140 ffff 0000abcd 00000000 62000000")
			r.state(verbs.StateErr)
		})
	}
	run(t, "another SRQ within a message", config{service: verbs.XRCRecv, goBackN: true, mtu: verbs.MTU256}, func(t *testing.T, r *rig) {
		x := newXRCTarget(r)
		x.recv(0, 1)
		x.recv(1, 2)
		r.giveBytes("a000 ffff 00Q 00000000 00%06x %0512x", x.srq[0].Num(), 5)
		r.giveBytes("a200 ffff 00Q 80000001 00%06x 01020304", x.srq[1].Num())
		r.expectBytes("b140 ffff 0000abcd 00000001 62000000")
		r.completions(x.cq[0], "1 REM_ACCESS_ERR")
		r.completions(x.cq[1])
	})
}

// FuzzXRCPackets is FuzzPackets for a target. Only the memory of the message's SRQ changes, and
// each receive completes at most once, at its own SRQ.
func FuzzXRCPackets(f *testing.F) {
	random(f, 100, 500)
	f.Fuzz(func(t *testing.T, data []byte) {
		synctest.Test(t, func(t *testing.T) { fuzzXRC(t, script(data)) })
	})
}

func fuzzXRC(t *testing.T, s script) {
	r := newRig(t, config{service: verbs.XRCRecv, goBackN: true, mtu: verbs.MTU256, destRD: 2, rqPSN: 1<<24 - 3})
	x := newXRCTarget(r)
	secret := must(x.srq[0].PD().RegMR(fill(4096, 5), 0))
	readable := must(x.srq[0].PD().RegMR(fill(4096, 6), verbs.AccessRemoteRead))
	stranger := must(r.pd.RegMR(fill(4096, 7), allAccess))
	psn := 0
	var posted, complete [2]uint64
	for i := 0; s.more() && i < 200; i++ {
		switch s.n(8) {
		case 0:
			if j := s.n(2); x.srq[j].PostRecv(&verbs.RecvWR{WRID: posted[j],
				SGList: []verbs.SGE{x.mem[j].SGE(0, choose(&s, 4096, 100, 0))}}) == nil {
				posted[j]++
			}
		case 1:
			if s.n(8) == 0 {
				r.modify(verbs.StateReset)
				r.connect()
				psn = 0
			}
		default:
			at := psn + choose(&s, 0, 0, 0, 0, 0, 0, -1, 1, -2, 100)
			op := requestOpcodes[s.n(len(requestOpcodes))] | wire.Opcode(wire.XRC)<<5
			n := 0
			if op.Info().HasPayload() {
				n = choose(&s, 256, 256, 8, 0, 1, 255, 257)
			}
			mr := choose(&s, x.mem[0], x.mem[1], readable, secret, stranger)
			p := r.req(op, at, fill(n, byte(at)),
				reth(mr.Addr()+uint64(choose(&s, 0, 0, 8, 3841, -1)), mr.RKey(), choose(&s, uint32(n), 512, 4096, 1<<31)),
				func(p *wire.Packet) {
					p.XRCETH.SRQ = choose(&s, x.srq[0].Num(), x.srq[0].Num(), x.srq[1].Num(), 0, 1<<24-1)
					p.AtomicETH = wire.AtomicETH{Addr: mr.Addr(), RKey: mr.RKey(), Swap: 1}
					p.AckReq = s.n(2) == 0
				})
			r.give(p)
			if at == psn {
				psn++
			}
		}
		r.take()
		for j, cq := range x.cq {
			for _, wc := range poll(t, cq) {
				if wc.WRID != complete[j] || wc.QPNum != r.qp.Num() {
					t.Fatalf("SRQ %d: %+v completes, want %d", j, wc, complete[j])
				}
				if complete[j]++; complete[j] > posted[j] {
					t.Fatalf("SRQ %d: %d completions of %d receives", j, complete[j], posted[j])
				}
			}
		}
	}
	for seed, mr := range map[byte]*verbs.MR{5: secret, 6: readable, 7: stranger} {
		if !bytes.Equal(mr.Buf(), fill(4096, seed)) {
			t.Error("a region that the peer may not write has changed")
		}
	}
}

// TestXRCBadLink checks a link that loses, duplicates and reorders. Everything arrives once and in
// order, and lost packets are retransmitted one by one.
func TestXRCBadLink(t *testing.T) {
	for seed := range uint64(4) {
		c := config{service: verbs.XRCSend, sqPSN: 0xffffe0, rqPSN: 0x345678, timeout: 8, retry: 7, rnr: 7, minRNR: 1}
		run(t, fmt.Sprint(seed), c, func(t *testing.T, a *rig) {
			c.service, c.sqPSN, c.rqPSN = verbs.XRCRecv, c.rqPSN, c.sqPSN
			b := newXRCTarget(newRig(t, c))
			l := &badLink{t: t, rand: rand.New(rand.NewPCG(seed, 1)), ends: [2]*rig{a, b.rig}, percent: 3}
			const n = 20 << 10
			for i := range 20 {
				srq, mem := b.srq[i%2], b.mem[i%2]
				b.recv(i%2, uint64(i))
				copy(a.buf, fill(n, byte(i)))
				for k := range 2 * 4 {
					wr := &verbs.SendWR{WRID: uint64(k), Opcode: verbs.RDMAWrite, Flags: verbs.SendSignaled,
						SGList:     []verbs.SGE{a.mr.SGE(4000*(k%4), 4000)},
						RemoteAddr: mem.Addr(), RKey: mem.RKey(), RemoteSRQN: srq.Num()}
					if k == 7 {
						wr.Opcode = verbs.Send
					}
					a.post(wr)
				}
				var wcs [8]verbs.WC
				for done, rounds := 0, 0; done < len(wcs); rounds++ {
					if rounds > 20000 {
						t.Fatalf("the messages do not complete: %v", must(a.dev.HWCounters()))
					}
					if !l.carry() {
						sleep(100 * time.Microsecond)
					}
					got := must(a.scq.Poll(wcs[done:]))
					for _, wc := range wcs[done : done+got] {
						if wc.Status != verbs.WCSuccess {
							t.Fatalf("got %+v", wc)
						}
					}
					done += got
				}
				b.completions(b.cq[i%2], fmt.Sprintf("%d SUCCESS RECV 4000", i))
				if !bytes.Equal(mem.Buf()[:4000], a.buf[12000:16000]) {
					t.Error("the data are wrong")
				}
			}
			if a.counter("selective_repeats") == 0 {
				t.Error("no packet was retransmitted alone")
			}
		})
	}
}
