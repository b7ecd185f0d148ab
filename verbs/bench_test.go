package verbs_test

import (
	"fmt"
	"testing"

	"github.com/softrnic/softrnic/verbs"
)

// fastPaths returns the operations of an application per message. None may allocate.
func fastPaths(t testing.TB) map[string]func() {
	r := newRigWith(t, verbs.QPCap{MaxSendWR: 64, MaxRecvWR: 64, MaxSendSGE: 4, MaxRecvSGE: 4, MaxInlineData: 64}, 256)
	r.moveTo(t, verbs.StateRTS)
	a := must(r.pd.RegMR(make([]byte, 4096), verbs.AccessLocalWrite))(t)
	b := must(r.pd.RegMR(make([]byte, 4096), verbs.AccessLocalWrite))(t)
	wcs := make([]verbs.WC, 16)
	poll := func(want int) {
		if n, err := r.cq.Poll(wcs); n != want || err != nil {
			t.Fatalf("%d completions (%v), want %d", n, err, want)
		}
	}
	ok := func(err error) { // without t.Helper, which takes longer than the measured call
		if err != nil {
			t.Fatal(err)
		}
	}
	list := []verbs.SGE{a.SGE(0, 1024), b.SGE(1024, 1024), a.SGE(2048, 10), b.SGE(0, 1)}
	two := [...]verbs.SendWR{
		{WRID: 1, Opcode: verbs.RDMAWrite, Flags: verbs.SendSignaled, RKey: 1, RemoteAddr: 2, SGList: list},
		{WRID: 1, Opcode: verbs.Send, Flags: verbs.SendInline, InlineData: a.Buf()[:10]},
	}
	return map[string]func(){
		"PostSend": func() {
			ok(r.qp.PostSend(&verbs.SendWR{WRID: 1, Opcode: verbs.RDMAWrite, SGList: list}))
		},
		"PostSendPoll": func() {
			ok(r.qp.PostSend(&verbs.SendWR{WRID: 1, Opcode: verbs.Send, SGList: list, Flags: verbs.SendSignaled}))
			poll(1)
		},
		"PostSendAndPoll": func() {
			n, err := r.qp.PostSendAndPoll(&verbs.SendWR{WRID: 1, Opcode: verbs.Send, SGList: list, Flags: verbs.SendSignaled}, wcs)
			if ok(err); n != 1 {
				t.Fatalf("%d completions, want 1", n)
			}
		},
		"PostSendInline": func() {
			ok(r.qp.PostSend(&verbs.SendWR{Opcode: verbs.Send, SGList: list[2:], Flags: verbs.SendInline}))
		},
		"PostRecvPoll": func() {
			ok(r.qp.PostRecv(&verbs.RecvWR{WRID: 2, SGList: list}))
			r.lq.Lock()
			r.lq.CompleteRecv(&verbs.WC{Opcode: verbs.WCRecv, ByteLen: uint32(r.lq.Recv().Length())}, false)
			r.lq.Unlock()
			poll(1)
		},
		"PollEmpty": func() { poll(0) },
		"PostSendAll": func() {
			n := 0
			ok(r.qp.PostSendAll(func() *verbs.SendWR {
				if n++; n > len(two) {
					return nil
				}
				return &two[n-1]
			}))
			poll(1)
		},
		"Poller": func() {
			ok(r.qp.PostSend(&verbs.SendWR{WRID: 1, Opcode: verbs.Send, SGList: list, Flags: verbs.SendSignaled}))
			p, n := r.cq.StartPoll(), 0
			for p.Next() {
				n += int(p.WC().WRID)
			}
			if p.End() != nil || n != 1 {
				t.Fatal(n, p.End())
			}
		},
		"NotifyEvent": func() {
			ok(r.cq.ReqNotify(false))
			ok(r.qp.PostSend(&verbs.SendWR{Opcode: verbs.Send, Flags: verbs.SendSignaled}))
			cq, err := r.ch.GetEvent(t.Context())
			ok(err)
			ok(cq.AckEvents(1))
			poll(1)
		},
	}
}

func TestFastPathsDoNotAllocate(t *testing.T) {
	for name, f := range fastPaths(t) {
		if n := testing.AllocsPerRun(100, f); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

func BenchmarkFastPath(b *testing.B) {
	for name, f := range fastPaths(b) {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				f()
			}
		})
	}
}

// BenchmarkDestroy destroys QPs while events of other QPs are queued, which should not slow it
// down.
func BenchmarkDestroy(b *testing.B) {
	for _, events := range []int{0, 40_000} {
		b.Run(fmt.Sprintf("%d events of others", events), func(b *testing.B) {
			r := &rig{l: newLoop()}
			r.l.attr.MaxQP = events + 2
			r.open(b, verbs.QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}, 1)
			create := func() *verbs.QP {
				qp := must(r.pd.CreateQP(&verbs.QPInitAttr{Type: verbs.RC, SendCQ: r.cq, RecvCQ: r.cq}))(b)
				lq := r.l.qps[qp.Num()]
				lq.locked(func() { lq.Event(verbs.EventCommEst) })
				return qp
			}
			for range events {
				create()
			}
			b.ReportAllocs()
			for b.Loop() {
				b.StopTimer()
				qp := create()
				b.StartTimer()
				check(b, qp.Close())
				delete(r.l.qps, qp.Num())
			}
		})
	}
}
