package verbs_test

import (
	"bytes"
	"errors"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/softrnic/softrnic/verbs"
)

func TestPostSendRejects(t *testing.T) {
	buf := make([]byte, 128)
	sge := func(n uint32) verbs.SGE { return verbs.SGE{Length: n} }
	for _, c := range []struct {
		name string
		wr   func(mr *verbs.MR) *verbs.SendWR
		kind error
		want string
	}{
		{"nil", func(*verbs.MR) *verbs.SendWR { return nil }, verbs.ErrInvalid, "nil"},
		{"opcode unknown", func(*verbs.MR) *verbs.SendWR { return &verbs.SendWR{Opcode: 200} }, verbs.ErrInvalid, "200"},
		{"opcode not supported by the device", func(*verbs.MR) *verbs.SendWR {
			return &verbs.SendWR{Opcode: verbs.SendWithInv}
		}, verbs.ErrNotSupported, "SEND_WITH_INV"},
		{"flags", func(*verbs.MR) *verbs.SendWR {
			return &verbs.SendWR{Opcode: verbs.Send, Flags: 1 << 7}
		}, verbs.ErrInvalid, "0x80"},
		{"list too long", func(*verbs.MR) *verbs.SendWR {
			return &verbs.SendWR{Opcode: verbs.Send, SGList: make([]verbs.SGE, 5)}
		}, verbs.ErrInvalid, "SGList of 5 is longer than MaxSendSGE of 4"},
		{"message too long", func(*verbs.MR) *verbs.SendWR {
			return &verbs.SendWR{Opcode: verbs.Send, SGList: []verbs.SGE{sge(1 << 30), sge(1)}}
		}, verbs.ErrInvalid, "length 1073741825 is more than the port's MaxMsgSz of 1073741824"},
		{"sum beyond 32 bits", func(*verbs.MR) *verbs.SendWR {
			return &verbs.SendWR{Opcode: verbs.RDMAWrite, SGList: []verbs.SGE{sge(1<<32 - 1), sge(2)}}
		}, verbs.ErrInvalid, "length 4294967297"},
		{"atomic write of 4", func(*verbs.MR) *verbs.SendWR {
			return &verbs.SendWR{Opcode: verbs.AtomicWrite, SGList: []verbs.SGE{{Length: 4}}}
		}, verbs.ErrInvalid, "needs 8"},
		{"flush with data", func(*verbs.MR) *verbs.SendWR {
			return &verbs.SendWR{Opcode: verbs.Flush, FlushType: verbs.FlushGlobal, SGList: []verbs.SGE{{Length: 4}}}
		}, verbs.ErrInvalid, "no SGList"},
		{"flush without a type", func(*verbs.MR) *verbs.SendWR {
			return &verbs.SendWR{Opcode: verbs.Flush}
		}, verbs.ErrInvalid, "FlushType 0"},
		{"flush of an unknown level", func(*verbs.MR) *verbs.SendWR {
			return &verbs.SendWR{Opcode: verbs.Flush, FlushType: verbs.FlushGlobal, FlushLevel: 2}
		}, verbs.ErrInvalid, "flush level 2"},
		{"unregistered data without the flag", func(*verbs.MR) *verbs.SendWR {
			return &verbs.SendWR{Opcode: verbs.Send, InlineData: []byte{1}}
		}, verbs.ErrInvalid, "InlineData needs SendInline"},
		{"unregistered data and a list", func(mr *verbs.MR) *verbs.SendWR {
			return &verbs.SendWR{Opcode: verbs.Send, Flags: verbs.SendInline, InlineData: []byte{1}, SGList: []verbs.SGE{mr.SGE(0, 1)}}
		}, verbs.ErrInvalid, "empty SGList"},
		{"unregistered data too long", func(*verbs.MR) *verbs.SendWR {
			return &verbs.SendWR{Opcode: verbs.Send, Flags: verbs.SendInline, InlineData: make([]byte, 65)}
		}, verbs.ErrInvalid, "inline length 65 is more than MaxInlineData of 64"},
		{"inline READ", func(*verbs.MR) *verbs.SendWR {
			return &verbs.SendWR{Opcode: verbs.RDMARead, Flags: verbs.SendInline}
		}, verbs.ErrInvalid, "RDMA_READ has no inline data"},
		{"inline too long", func(mr *verbs.MR) *verbs.SendWR {
			return &verbs.SendWR{Opcode: verbs.Send, Flags: verbs.SendInline, SGList: []verbs.SGE{mr.SGE(0, 65)}}
		}, verbs.ErrInvalid, "inline length 65 is more than MaxInlineData of 64"},
		{"inline beyond the region", func(mr *verbs.MR) *verbs.SendWR {
			return &verbs.SendWR{Opcode: verbs.Send, Flags: verbs.SendInline, SGList: []verbs.SGE{mr.SGE(100, 29)}}
		}, verbs.ErrInvalid, "not within the region"},
		{"inline before the region", func(mr *verbs.MR) *verbs.SendWR {
			return &verbs.SendWR{Opcode: verbs.Send, Flags: verbs.SendInline, SGList: []verbs.SGE{mr.SGE(-1, 2)}}
		}, verbs.ErrInvalid, "not within the region"},
		{"inline with a wrong lkey", func(mr *verbs.MR) *verbs.SendWR {
			s := mr.SGE(0, 1)
			s.LKey ^= 1
			return &verbs.SendWR{Opcode: verbs.Send, Flags: verbs.SendInline, SGList: []verbs.SGE{s}}
		}, verbs.ErrInvalid, "no lkey"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t)
			r.moveTo(t, verbs.StateRTS)
			mr := must(r.pd.RegMR(buf, verbs.AccessLocalWrite))(t)
			ok := &verbs.SendWR{WRID: 1, Opcode: verbs.Send, Flags: verbs.SendSignaled}
			err := r.qp.PostSend(ok, ok, c.wr(mr), ok)
			var post *verbs.PostError
			if !errors.As(err, &post) || post.Index != 2 || !errors.Is(err, c.kind) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want index 2, %v, %q", err, c.kind, c.want)
			}
			if n := len(pollAll(t, r.cq)); n != 2 || r.lq.doorbells != 1 {
				t.Errorf("%d requests done with %d doorbells, want 2 with 1", n, r.lq.doorbells)
			}
		})
	}
}

func TestPostStates(t *testing.T) {
	r := newRig(t)
	post := func(s verbs.QPState, wantSend, wantRecv error) {
		t.Helper()
		if err := r.qp.PostSend(&verbs.SendWR{Opcode: verbs.Send}); !errors.Is(err, wantSend) {
			t.Errorf("%v: PostSend: %v, want %v", s, err, wantSend)
		} else if wantSend == verbs.ErrInvalid && !strings.Contains(err.Error(), s.String()) {
			t.Errorf("%q does not name %v", err, s)
		}
		if err := r.qp.PostRecv(&verbs.RecvWR{}); !errors.Is(err, wantRecv) {
			t.Errorf("%v: PostRecv: %v, want %v", s, err, wantRecv)
		}
	}
	post(verbs.StateReset, verbs.ErrInvalid, verbs.ErrInvalid)
	for s := verbs.StateInit; s <= verbs.StateRTS; s++ {
		attr := steps[s]
		attr.QPState = s
		check(t, r.qp.Modify(&attr, verbs.QPAttrState|needs[s]))
		if s < verbs.StateRTS {
			post(s, verbs.ErrInvalid, nil)
		}
	}
	post(verbs.StateRTS, nil, nil)
	r.moveTo(t, verbs.StateErr)
	post(verbs.StateErr, nil, nil)
	check(t, r.qp.Close())
	post(verbs.StateErr, verbs.ErrClosed, verbs.ErrClosed)
}

func TestQueueFull(t *testing.T) {
	r := newRig(t)
	r.moveTo(t, verbs.StateRTS)
	r.lq.hold = true
	var sends []*verbs.SendWR
	var recvs []*verbs.RecvWR
	for i := range 9 {
		sends = append(sends, &verbs.SendWR{WRID: uint64(i), Opcode: verbs.Send})
		recvs = append(recvs, &verbs.RecvWR{WRID: uint64(i)})
	}
	for _, err := range []error{r.qp.PostSend(sends...), r.qp.PostRecv(recvs...)} {
		var post *verbs.PostError
		if !errors.As(err, &post) || post.Index != 8 || !errors.Is(err, verbs.ErrQueueFull) || !errors.Is(err, syscall.ENOMEM) {
			t.Errorf("got %v, want ErrQueueFull at 8", err)
		}
	}
	r.lq.locked(func() { r.lq.CompleteSend(verbs.WCSuccess, 0) })
	check(t, r.qp.PostSend(sends[8]))
	r.lq.locked(func() {
		for i := range r.lq.SendLen() {
			if got := r.lq.Send(i).WRID; got != uint64(i+1) {
				t.Errorf("request %d is %d", i, got)
			}
		}
	})
}

func TestPostCopies(t *testing.T) {
	r := newRig(t)
	r.moveTo(t, verbs.StateRTS)
	r.lq.hold = true
	buf := []byte("payload-of-the-message")
	mr := must(r.pd.RegMR(buf, 0))(t)
	list := []verbs.SGE{mr.SGE(0, 7), mr.SGE(12, 3)}
	wr := &verbs.SendWR{WRID: 7, Opcode: verbs.RDMAWriteWithImm, Flags: verbs.SendFence, SGList: list, ImmData: 0x01020304,
		RemoteAddr: 0x1000, RKey: 0x99, CompareAdd: 5, Swap: 6}
	inline := &verbs.SendWR{WRID: 8, Opcode: verbs.Send, Flags: verbs.SendInline, SGList: list}
	empty := &verbs.SendWR{WRID: 9, Opcode: verbs.Send, Flags: verbs.SendInline}
	check(t, r.qp.PostSend(wr, inline, empty))
	recv := &verbs.RecvWR{WRID: 3, SGList: list}
	check(t, r.qp.PostRecv(recv))
	list[0], list[1], wr.RKey, inline.WRID, recv.WRID = verbs.SGE{}, verbs.SGE{}, 0, 0, 0
	copy(buf, "PAYLOAD-OF-THE-MESSAGE")

	r.lq.locked(func() {
		a, b, c := r.lq.Send(0), r.lq.Send(1), r.lq.Send(2)
		if !slices.Equal(a.SGList, []verbs.SGE{mr.SGE(0, 7), mr.SGE(12, 3)}) || a.Length() != 10 || a.Inline() != nil {
			t.Errorf("got %+v", a)
		}
		if a.WRID != 7 || a.Opcode != verbs.RDMAWriteWithImm || a.Flags != verbs.SendFence || a.ImmData != 0x01020304 {
			t.Errorf("got %+v", a)
		}
		if a.RemoteAddr != 0x1000 || a.RKey != 0x99 || a.CompareAdd != 5 || a.Swap != 6 {
			t.Errorf("got %+v", a)
		}
		if b.WRID != 8 || len(b.SGList) != 0 || !bytes.Equal(b.Inline(), []byte("payloadhe-")) || b.Length() != 10 {
			t.Errorf("got %+v with %q", b, b.Inline())
		}
		if c.Length() != 0 || len(c.Inline()) != 0 {
			t.Errorf("got %+v", c)
		}
		if d := r.lq.Recv(); d.WRID != 3 || len(d.SGList) != 2 || d.SGList[1] != mr.SGE(12, 3) || d.Length() != 10 {
			t.Errorf("got %+v", d)
		}
	})
}

func TestNothingPostedRingsNoDoorbell(t *testing.T) {
	r := newRig(t)
	r.moveTo(t, verbs.StateRTS)
	check(t, r.qp.PostSend())
	if err := r.qp.PostSend(nil, &verbs.SendWR{Opcode: verbs.Send}); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("got %v", err)
	}
	if r.lq.doorbells != 0 {
		t.Errorf("%d doorbells", r.lq.doorbells)
	}
}

func TestInlineOfDeregisteredRegion(t *testing.T) {
	r := newRig(t)
	r.moveTo(t, verbs.StateRTS)
	mr := must(r.pd.RegMR(make([]byte, 8), 0))(t)
	wr := &verbs.SendWR{Opcode: verbs.Send, Flags: verbs.SendInline, SGList: []verbs.SGE{mr.SGE(0, 8)}}
	check(t, r.qp.PostSend(wr))
	check(t, mr.Close())
	if err := r.qp.PostSend(wr); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("got %v, want ErrInvalid", err)
	}
}

func TestSignalling(t *testing.T) {
	for _, all := range []bool{false, true} {
		r := newRig(t)
		qp := must(r.pd.CreateQP(&verbs.QPInitAttr{Type: verbs.RC, SendCQ: r.cq, RecvCQ: r.cq, SQSigAll: all,
			Cap: verbs.QPCap{MaxSendWR: 4}}))(t)
		r.qp, r.lq = qp, r.l.qps[qp.Num()]
		r.moveTo(t, verbs.StateRTS)
		check(t, qp.PostSend(&verbs.SendWR{WRID: 1, Opcode: verbs.Send},
			&verbs.SendWR{WRID: 2, Opcode: verbs.RDMAWriteWithImm, Flags: verbs.SendSignaled}))
		r.lq.hold = true
		check(t, qp.PostSend(&verbs.SendWR{WRID: 3, Opcode: verbs.RDMARead}))
		r.lq.locked(func() { r.lq.CompleteSend(verbs.WCRemAccessErr, 0) })
		var ids []uint64
		for _, wc := range pollAll(t, r.cq) {
			ids = append(ids, wc.WRID)
		}
		if want := map[bool]int{false: 2, true: 3}[all]; len(ids) != want || ids[len(ids)-1] != 3 || ids[len(ids)-2] != 2 {
			t.Errorf("SQSigAll %v: completions of %v", all, ids)
		}
	}
}

func TestCompletionFields(t *testing.T) {
	r := newRig(t)
	r.moveTo(t, verbs.StateRTS)
	r.lq.hold = true
	sge := []verbs.SGE{{Length: 8}}
	want := map[verbs.WROpcode]verbs.WCOpcode{verbs.Send: verbs.WCSend, verbs.SendWithImm: verbs.WCSend,
		verbs.RDMAWrite: verbs.WCRDMAWrite, verbs.RDMAWriteWithImm: verbs.WCRDMAWrite, verbs.RDMARead: verbs.WCRDMARead,
		verbs.AtomicCmpAndSwp: verbs.WCCompSwap, verbs.AtomicFetchAndAdd: verbs.WCFetchAdd}
	for op, wcop := range want {
		check(t, r.qp.PostSend(&verbs.SendWR{WRID: 1 << 63, Opcode: op, Flags: verbs.SendSignaled, SGList: sge}))
		r.lq.locked(func() { r.lq.CompleteSend(verbs.WCSuccess, 8) })
		if wcs := pollAll(t, r.cq); len(wcs) != 1 || wcs[0] != (verbs.WC{WRID: 1 << 63, Opcode: wcop, ByteLen: 8, QPNum: r.qp.Num()}) {
			t.Errorf("%v: got %+v", op, wcs)
		}
	}
}

// flushed posts 3 sends and 3 receives, and starts to use the first receive for a message. It then
// moves the QP to ERR, posts 2 more of each, and returns all completions.
func flushed(t *testing.T, toErr func(*rig)) (sends, recvs []verbs.WC, r *rig) {
	r = newRig(t)
	recvCQ := must(r.dev.CreateCQ(16, nil))(t)
	qp := must(r.pd.CreateQP(&verbs.QPInitAttr{Type: verbs.RC, SendCQ: r.cq, RecvCQ: recvCQ,
		Cap: verbs.QPCap{MaxSendWR: 4, MaxRecvWR: 4}}))(t)
	r.qp, r.lq = qp, r.l.qps[qp.Num()]
	r.moveTo(t, verbs.StateRTS)
	r.lq.hold = true
	for i := range uint64(3) {
		check(t, qp.PostSend(&verbs.SendWR{WRID: i, Opcode: verbs.Send}))
		check(t, qp.PostRecv(&verbs.RecvWR{WRID: 10 + i}))
	}
	r.lq.locked(func() {
		first := r.lq.Recv()
		if again := r.lq.Recv(); first.WRID != 10 || again != first {
			t.Error("Recv is not the oldest request each time")
		}
	})
	toErr(r)
	sends, recvs = pollAll(t, r.cq), pollAll(t, recvCQ)
	if len(sends) != 3 || len(recvs) != 3 {
		t.Errorf("%d sends and %d receives flushed, want 3 and 3", len(sends), len(recvs))
	}
	check(t, qp.PostSend(&verbs.SendWR{WRID: 3, Opcode: verbs.RDMARead}, &verbs.SendWR{WRID: 4, Opcode: verbs.Send}))
	check(t, qp.PostRecv(&verbs.RecvWR{WRID: 13}, &verbs.RecvWR{WRID: 14}))
	sends, recvs = append(sends, pollAll(t, r.cq)...), append(recvs, pollAll(t, recvCQ)...)
	if qp.State() != verbs.StateErr {
		t.Errorf("state %v", qp.State())
	}
	return sends, recvs, r
}

func wantIDs(t *testing.T, what string, wcs []verbs.WC, ids []uint64, first verbs.WCStatus) {
	t.Helper()
	if len(wcs) != len(ids) {
		t.Fatalf("%s: got %+v, want %v", what, wcs, ids)
	}
	for i, wc := range wcs {
		status := verbs.WCWRFlushErr
		if i == 0 {
			status = first
		}
		if wc.WRID != ids[i] || wc.Status != status {
			t.Errorf("%s %d: got %d %v, want %d %v", what, i, wc.WRID, wc.Status, ids[i], status)
		}
	}
}

func TestFlushByModify(t *testing.T) {
	sends, recvs, r := flushed(t, func(r *rig) { r.moveTo(t, verbs.StateErr) })
	wantIDs(t, "send", sends, []uint64{0, 1, 2, 3, 4}, verbs.WCWRFlushErr)
	wantIDs(t, "recv", recvs, []uint64{10, 11, 12, 13, 14}, verbs.WCWRFlushErr)
	noEvent(t, r.dev)
}

func TestFlushByFailure(t *testing.T) {
	sends, recvs, r := flushed(t, func(r *rig) {
		r.lq.locked(func() {
			r.lq.CompleteSend(verbs.WCRetryExcErr, 0)
			r.lq.Fail()
			r.lq.Fail()
		})
	})
	wantIDs(t, "send", sends, []uint64{0, 1, 2, 3, 4}, verbs.WCRetryExcErr)
	wantIDs(t, "recv", recvs, []uint64{10, 11, 12, 13, 14}, verbs.WCWRFlushErr)
	noEvent(t, r.dev) // the completion reports the error
}

func TestResetDropsPosted(t *testing.T) {
	r := newRig(t)
	r.moveTo(t, verbs.StateRTS)
	r.lq.hold = true
	check(t, r.qp.PostSend(&verbs.SendWR{Opcode: verbs.Send, Flags: verbs.SendSignaled}))
	check(t, r.qp.PostRecv(&verbs.RecvWR{WRID: 1}))
	check(t, r.qp.Modify(&verbs.QPAttr{QPState: verbs.StateReset}, verbs.QPAttrState))
	r.moveTo(t, verbs.StateRTS)
	r.lq.locked(func() {
		if r.lq.SendLen() != 0 || r.lq.Recv() != nil {
			t.Error("requests survived RESET")
		}
		// Late calls of the provider have no effect.
		r.lq.CompleteSend(verbs.WCSuccess, 0)
		r.lq.CompleteRecv(&verbs.WC{}, false)
	})
	if wcs := pollAll(t, r.cq); len(wcs) != 0 {
		t.Errorf("got %+v", wcs)
	}
}

// TestPostPollFail: goroutines post and poll while the QP fails. Each request completes exactly
// once, in the order in which its goroutine posted it, and none succeeds after a flushed one.
func TestPostPollFail(t *testing.T) {
	const posters, each = 4, 200
	r := newRigWith(t, verbs.QPCap{MaxSendWR: 1024, MaxRecvWR: 1}, posters*each)
	r.moveTo(t, verbs.StateRTS)
	var wg sync.WaitGroup
	for p := range uint64(posters) {
		wg.Go(func() {
			for i := range uint64(each) {
				wr := verbs.SendWR{WRID: p<<32 | i, Opcode: verbs.Send, Flags: verbs.SendSignaled}
				if err := r.qp.PostSend(&wr); err != nil {
					t.Error(err)
				}
				if p == 0 && i == each/2 {
					r.lq.locked(r.lq.Fail)
				}
			}
		})
	}
	var next [posters]uint64
	flushing := false
	wcs := make([]verbs.WC, 16)
	for done := 0; done < posters*each; {
		n, err := r.cq.Poll(wcs)
		check(t, err)
		if n == 0 {
			runtime.Gosched()
		}
		for _, wc := range wcs[:n] {
			p := wc.WRID >> 32
			if wc.WRID != p<<32|next[p] {
				t.Fatalf("poster %d: got %d, want %d", p, uint32(wc.WRID), next[p])
			}
			next[p]++
			if flushing = flushing || wc.Status != verbs.WCSuccess; flushing && wc.Status != verbs.WCWRFlushErr {
				t.Fatalf("%v after a flush", wc.Status)
			}
		}
		done += n
	}
	wg.Wait()
}
