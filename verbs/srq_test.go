package verbs_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/softrnic/softrnic/verbs"
)

// sharedRig returns a rig with an SRQ and two QPs that use it, in RTS.
func sharedRig(t *testing.T, attr verbs.SRQAttr) (r *rig, srq *verbs.SRQ, qps [2]*verbs.QP, lqs [2]*loopQP) {
	t.Helper()
	r = newRig(t)
	srq = must(r.pd.CreateSRQ(&verbs.SRQInitAttr{Attr: attr}))(t)
	for i := range qps {
		qps[i] = must(r.pd.CreateQP(&verbs.QPInitAttr{Type: verbs.RC, SendCQ: r.cq, RecvCQ: r.cq, SRQ: srq,
			Cap: verbs.QPCap{MaxRecvWR: 3, MaxRecvSGE: 3}}))(t)
		lqs[i] = r.l.qps[qps[i].Num()]
		(&rig{qp: qps[i]}).moveTo(t, verbs.StateRTS)
	}
	return r, srq, qps, lqs
}

func postIDs(t *testing.T, srq *verbs.SRQ, ids ...uint64) {
	t.Helper()
	for _, id := range ids {
		check(t, srq.PostRecv(&verbs.RecvWR{WRID: id, SGList: []verbs.SGE{{Addr: id, Length: uint32(id), LKey: 9}}}))
	}
}

func TestSRQSharesInOrder(t *testing.T) {
	r, srq, qps, lqs := sharedRig(t, verbs.SRQAttr{MaxWR: 4, MaxSGE: 2})
	postIDs(t, srq, 1, 2, 3, 4)
	if err := srq.PostRecv(&verbs.RecvWR{}); !errors.Is(err, verbs.ErrQueueFull) {
		t.Errorf("got %v, want ErrQueueFull", err)
	}
	take := func(i int, want uint64) {
		t.Helper()
		lqs[i].locked(func() {
			wr := lqs[i].Recv()
			if wr == nil || wr.WRID != want || wr != lqs[i].Recv() {
				t.Fatalf("QP %d took %+v, want %d", i, wr, want)
			}
			if wr.Length() != want || len(wr.SGList) != 1 || wr.SGList[0].Addr != want {
				t.Errorf("the request changed: %+v", wr)
			}
		})
	}
	finish := func(i int) {
		lqs[i].locked(func() { lqs[i].CompleteRecv(&verbs.WC{Opcode: verbs.WCRecv}, false) })
	}
	take(0, 1)
	take(1, 2) // while the other QP uses the first
	finish(1)
	finish(0)
	take(1, 3)
	postIDs(t, srq, 5)
	finish(1)
	take(0, 4)
	finish(0)
	take(0, 5)
	finish(0)
	lqs[0].locked(func() {
		if wr := lqs[0].Recv(); wr != nil {
			t.Errorf("an empty SRQ returned %+v", wr)
		}
	})
	wcs := pollAll(t, r.cq)
	want := []struct {
		id uint64
		qp *verbs.QP
	}{{2, qps[1]}, {1, qps[0]}, {3, qps[1]}, {4, qps[0]}, {5, qps[0]}}
	if len(wcs) != len(want) {
		t.Fatalf("%d completions", len(wcs))
	}
	for i, w := range want {
		if wcs[i].WRID != w.id || wcs[i].QPNum != w.qp.Num() {
			t.Errorf("completion %d: %+v, want %+v", i, wcs[i], w)
		}
	}
	if err := qps[0].PostRecv(&verbs.RecvWR{}); !errors.Is(err, verbs.ErrInvalid) || !strings.Contains(err.Error(), "SRQ") {
		t.Errorf("posting to a QP that has an SRQ: %v", err)
	}
	if _, init, _ := qps[0].Query(); init.SRQ != srq || init.Cap.MaxRecvWR != 0 {
		t.Errorf("got %+v", init)
	}
}

func TestSRQLimit(t *testing.T) {
	r, srq, _, lqs := sharedRig(t, verbs.SRQAttr{MaxWR: 8, MaxSGE: 1, Limit: 2})
	use := func() {
		lqs[0].locked(func() {
			lqs[0].Recv()
			lqs[0].CompleteRecv(&verbs.WC{Opcode: verbs.WCRecv}, false)
		})
	}
	postIDs(t, srq, 1, 2, 3)
	use()
	noEvent(t, r.dev) // 2 are left
	use()
	if e := must(r.dev.GetAsyncEvent(t.Context()))(t); e.Type != verbs.EventSRQLimitReached || e.SRQ != srq {
		t.Errorf("got %+v", e)
	}
	if a := must(srq.Query())(t); a.Limit != 0 || a.MaxWR != 8 {
		t.Errorf("got %+v, want a disarmed limit", a)
	}
	use()
	noEvent(t, r.dev) // once
	postIDs(t, srq, 4, 5)
	check(t, srq.Modify(&verbs.SRQAttr{Limit: 2}, verbs.SRQLimit))
	noEvent(t, r.dev)
	check(t, srq.Modify(&verbs.SRQAttr{Limit: 3}, verbs.SRQLimit)) // fewer are already left
	if e := must(r.dev.GetAsyncEvent(t.Context()))(t); e.Type != verbs.EventSRQLimitReached {
		t.Errorf("got %+v", e)
	}
}

func TestSRQResize(t *testing.T) {
	_, srq, _, lqs := sharedRig(t, verbs.SRQAttr{MaxWR: 3, MaxSGE: 1})
	postIDs(t, srq, 1, 2, 3)
	for _, c := range []struct {
		attr verbs.SRQAttr
		mask verbs.SRQAttrMask
		want string
	}{
		{verbs.SRQAttr{MaxWR: 2}, verbs.SRQMaxWR, "MaxWR 2 is not in 3–256"},
		{verbs.SRQAttr{MaxWR: 257}, verbs.SRQMaxWR, "MaxWR 257"},
		{verbs.SRQAttr{Limit: 4}, verbs.SRQLimit, "Limit 4 is not in 0–3"},
		{verbs.SRQAttr{MaxWR: 4, Limit: 5}, verbs.SRQLimit | verbs.SRQMaxWR, "Limit 5 is not in 0–4"},
		{verbs.SRQAttr{}, 4, "unknown bits"},
	} {
		if err := srq.Modify(&c.attr, c.mask); !errors.Is(err, verbs.ErrInvalid) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("got %v, want %q", err, c.want)
		}
	}
	check(t, srq.Modify(&verbs.SRQAttr{MaxWR: 5}, verbs.SRQMaxWR))
	postIDs(t, srq, 4, 5)
	lqs[0].locked(func() {
		for want := uint64(1); want <= 5; want++ {
			wr := lqs[0].Recv()
			if wr == nil || wr.WRID != want || wr.Length() != want || wr.SGList[0].Addr != want {
				t.Fatalf("after the resize: %+v, want %d", wr, want)
			}
			lqs[0].CompleteRecv(&verbs.WC{}, false)
		}
	})
}

// TestLastWQE: a QP in ERR takes no more requests from its SRQ, and raises the event once.
func TestLastWQE(t *testing.T) {
	r, srq, qps, lqs := sharedRig(t, verbs.SRQAttr{MaxWR: 4, MaxSGE: 1})
	postIDs(t, srq, 1, 2)
	lqs[0].locked(func() {
		lqs[0].Recv()
		lqs[0].Fail()
	})
	if wcs := pollAll(t, r.cq); len(wcs) != 1 || wcs[0].WRID != 1 || wcs[0].Status != verbs.WCWRFlushErr {
		t.Errorf("got %+v, want only the request that the QP had taken, flushed", wcs)
	}
	if e := must(r.dev.GetAsyncEvent(t.Context()))(t); e.Type != verbs.EventQPLastWQEReached || e.QP != qps[0] {
		t.Errorf("got %+v", e)
	}
	toErr := &verbs.QPAttr{QPState: verbs.StateErr}
	check(t, qps[0].Modify(toErr, verbs.QPAttrState))
	noEvent(t, r.dev)
	check(t, qps[1].Modify(toErr, verbs.QPAttrState))
	if e := must(r.dev.GetAsyncEvent(t.Context()))(t); e.Type != verbs.EventQPLastWQEReached || e.QP != qps[1] {
		t.Errorf("got %+v", e)
	}
	check(t, r.qp.Modify(toErr, verbs.QPAttrState))
	noEvent(t, r.dev) // it has no SRQ
}

func TestSRQObjects(t *testing.T) {
	r := newRig(t)
	for _, c := range []struct {
		attr verbs.SRQAttr
		want string
	}{
		{verbs.SRQAttr{MaxWR: 0}, "Attr.MaxWR 0 is not in 1–256"},
		{verbs.SRQAttr{MaxWR: 257}, "Attr.MaxWR 257"},
		{verbs.SRQAttr{MaxWR: 1, MaxSGE: 17}, "Attr.MaxSGE 17 is not in 0–16"},
		{verbs.SRQAttr{MaxWR: 1, Limit: 2}, "Attr.Limit 2 is not in 0–1"},
	} {
		_, err := r.pd.CreateSRQ(&verbs.SRQInitAttr{Attr: c.attr})
		if !errors.Is(err, verbs.ErrInvalid) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("got %v, want %q", err, c.want)
		}
	}
	srq := must(r.pd.CreateSRQ(&verbs.SRQInitAttr{Context: 7, Attr: verbs.SRQAttr{MaxWR: 2, Limit: 1}}))(t)
	if srq.PD() != r.pd || srq.Context() != 7 {
		t.Error("wrong attributes")
	}
	other := must(r.dev.AllocPD())(t)
	init := &verbs.QPInitAttr{Type: verbs.RC, SendCQ: r.cq, RecvCQ: r.cq, SRQ: srq}
	foreignQP := must(other.CreateQP(init))(t)
	if foreignQP.SRQ() != srq || foreignQP.PD() != other {
		t.Error("wrong attributes of a QP with an SRQ of another PD")
	}
	check(t, foreignQP.Close())
	check(t, other.Close())
	foreign := newRig(t)
	init2 := &verbs.QPInitAttr{Type: verbs.RC, SendCQ: foreign.cq, RecvCQ: foreign.cq, SRQ: srq}
	if _, err := foreign.pd.CreateQP(init2); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("an SRQ of another device: %v", err)
	}
	if err := srq.PostRecv(&verbs.RecvWR{SGList: make([]verbs.SGE, 1)}); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("got %v", err)
	}
	qp := must(r.pd.CreateQP(init))(t)
	if err := srq.Close(); !errors.Is(err, verbs.ErrBusy) {
		t.Errorf("got %v, want ErrBusy", err)
	}
	check(t, qp.Close())
	check(t, r.qp.Close())
	if err := r.pd.Close(); !errors.Is(err, verbs.ErrBusy) {
		t.Errorf("got %v, want ErrBusy", err)
	}
	check(t, srq.Modify(&verbs.SRQAttr{Limit: 1}, verbs.SRQLimit))
	check(t, srq.Close())
	noEvent(t, r.dev) // its events are dropped
	check(t, r.pd.Close())
	for what, err := range map[string]error{
		"destroy": srq.Close(), "post": srq.PostRecv(&verbs.RecvWR{}), "modify": srq.Modify(&verbs.SRQAttr{}, 0),
		"query": func() error { _, err := srq.Query(); return err }(),
		"QP":    func() error { _, err := r.pd.CreateQP(init); return err }(),
	} {
		if !errors.Is(err, verbs.ErrClosed) {
			t.Errorf("%s: got %v, want ErrClosed", what, err)
		}
	}
}
