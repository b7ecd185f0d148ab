package verbs_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/softrnic/softrnic/verbs"
)

// recv completes one receive as the provider does.
func (r *rig) recv(t testing.TB, status verbs.WCStatus, solicited bool) {
	t.Helper()
	check(t, r.qp.PostRecv(&verbs.RecvWR{}))
	r.lq.locked(func() { r.lq.CompleteRecv(&verbs.WC{Status: status, Opcode: verbs.WCRecv}, solicited) })
}

// event reports whether the channel has an event, and acknowledges it.
func (r *rig) event(t testing.TB) bool {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	// With a cancelled context, GetEvent still returns an event that it finds before it waits.
	cq, err := r.ch.GetEvent(ctx)
	if err != nil {
		if !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		return false
	}
	if cq != r.cq {
		t.Fatal("event of another CQ")
	}
	check(t, cq.AckEvents(1))
	return true
}

func TestNotify(t *testing.T) {
	const any, solicited = false, true
	type step func(*testing.T, *rig)
	arm := func(solicitedOnly bool) step {
		return func(t *testing.T, r *rig) { check(t, r.cq.ReqNotify(solicitedOnly)) }
	}
	recv := func(sol bool) step { return func(t *testing.T, r *rig) { r.recv(t, verbs.WCSuccess, sol) } }
	failed := func(t *testing.T, r *rig) { r.recv(t, verbs.WCLocLenErr, false) }
	send := func(t *testing.T, r *rig) {
		check(t, r.qp.PostSend(&verbs.SendWR{Opcode: verbs.Send, Flags: verbs.SendSignaled}))
	}
	for _, c := range []struct {
		name  string
		steps []step
		want  int
	}{
		{"not armed", []step{recv(true), send}, 0},
		{"any", []step{arm(any), recv(false)}, 1},
		{"any, by a send", []step{arm(any), send}, 1},
		{"one event per arming", []step{arm(any), recv(false), recv(false)}, 1},
		{"armed twice before", []step{arm(any), arm(any), recv(false), recv(false)}, 1},
		{"armed again", []step{arm(any), recv(false), arm(any), recv(false)}, 2},
		{"earlier completions do not count", []step{recv(false), arm(any)}, 0},
		{"solicited, by an unsolicited completion", []step{arm(solicited), recv(false), send}, 0},
		{"solicited", []step{arm(solicited), recv(false), recv(true)}, 1},
		{"solicited, by an error", []step{arm(solicited), failed}, 1},
		{"any outranks solicited", []step{arm(any), arm(solicited), recv(false)}, 1},
		{"any after solicited", []step{arm(solicited), arm(any), recv(false)}, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t)
			r.moveTo(t, verbs.StateRTS)
			for _, s := range c.steps {
				s(t, r)
			}
			got := 0
			for r.event(t) {
				got++
			}
			if got != c.want {
				t.Errorf("%d events, want %d", got, c.want)
			}
		})
	}
}

func TestGetEventWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.moveTo(t, verbs.StateRTS)
		other := must(r.dev.CreateCQ(1, &verbs.CQInitAttr{Channel: r.ch}))(t)
		check(t, r.cq.ReqNotify(false))

		got := make(chan *verbs.CQ)
		for range 2 {
			go func() {
				cq, _ := r.ch.GetEvent(context.Background())
				got <- cq
			}()
		}
		synctest.Wait()
		r.recv(t, verbs.WCSuccess, false)
		if cq := <-got; cq != r.cq {
			t.Fatal("event of another CQ")
		}

		// Close waits for the acknowledgement.
		check(t, r.qp.Close())
		closed := make(chan error, 1)
		go func() { closed <- r.cq.Close() }()
		synctest.Wait()
		select {
		case err := <-closed:
			t.Fatalf("CQ closed (%v) before its event was acknowledged", err)
		default:
		}
		if err := r.cq.AckEvents(2); !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("acknowledging 2 of 1: %v", err)
		}
		check(t, r.cq.AckEvents(1))
		check(t, <-closed)

		if err := r.ch.Close(); !errors.Is(err, verbs.ErrBusy) {
			t.Errorf("channel in use: %v", err)
		}
		check(t, other.Close())
		check(t, r.ch.Close())
		if cq := <-got; cq != nil {
			t.Error("a waiting GetEvent returned a CQ after Close")
		}
		if _, err := r.ch.GetEvent(t.Context()); !errors.Is(err, verbs.ErrClosed) {
			t.Errorf("got %v, want ErrClosed", err)
		}
	})
}

func TestClosedCQLeavesNoEvent(t *testing.T) {
	r := newRig(t)
	r.moveTo(t, verbs.StateInit)
	second := must(r.dev.CreateCQ(4, &verbs.CQInitAttr{Channel: r.ch}))(t)
	qp2 := must(r.pd.CreateQP(&verbs.QPInitAttr{Type: verbs.RC, SendCQ: second, RecvCQ: second,
		Cap: verbs.QPCap{MaxRecvWR: 1}}))(t)
	attr := steps[verbs.StateInit]
	attr.QPState = verbs.StateInit
	check(t, qp2.Modify(&attr, verbs.QPAttrState|needs[verbs.StateInit]))
	check(t, r.cq.ReqNotify(false))
	check(t, second.ReqNotify(false))
	r.recv(t, verbs.WCSuccess, false)
	check(t, qp2.PostRecv(&verbs.RecvWR{}))
	check(t, qp2.Modify(&verbs.QPAttr{QPState: verbs.StateErr}, verbs.QPAttrState))
	check(t, qp2.Close())
	check(t, second.Close())
	if !r.event(t) || r.event(t) {
		t.Error("want exactly the event of the remaining CQ")
	}
	if _, err := second.Poll(make([]verbs.WC, 1)); !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("poll of a closed CQ: %v", err)
	}
}

func TestPollWraps(t *testing.T) {
	r := newRigWith(t, verbs.QPCap{MaxRecvWR: 1}, 5)
	r.moveTo(t, verbs.StateInit)
	next, want := uint64(0), uint64(0)
	wcs := make([]verbs.WC, 4)
	for round := range 40 {
		for range 1 + round%5 {
			if next-want == 5 {
				break
			}
			check(t, r.qp.PostRecv(&verbs.RecvWR{WRID: next}))
			r.lq.locked(func() { r.lq.CompleteRecv(&verbs.WC{ByteLen: uint32(next)}, false) })
			next++
		}
		n := must(r.cq.Poll(wcs[:1+round%4]))(t)
		for _, wc := range wcs[:n] {
			if wc.WRID != want || wc.ByteLen != uint32(want) || wc.QPNum != r.qp.Num() {
				t.Fatalf("got %+v, want WRID %d", wc, want)
			}
			want++
		}
	}
}

func TestOverrun(t *testing.T) {
	r := newRigWith(t, verbs.QPCap{MaxSendWR: 4}, 3)
	r.moveTo(t, verbs.StateRTS)
	cq := must(r.dev.CreateCQ(1, nil))(t)
	other := must(r.pd.CreateQP(&verbs.QPInitAttr{Type: verbs.RC, SendCQ: cq, RecvCQ: cq}))(t)
	(&rig{qp: other}).moveTo(t, verbs.StateRTS)
	wr := &verbs.SendWR{Opcode: verbs.Send, Flags: verbs.SendSignaled}
	check(t, r.qp.PostSend(wr, wr))
	check(t, r.cq.ReqNotify(true))
	check(t, r.qp.PostSend(wr))
	check(t, r.cq.ReqNotify(false))
	check(t, r.qp.PostSend(wr, wr)) // two lost
	if !r.event(t) {
		t.Error("an armed CQ generated no event when it overran")
	}
	if n := len(pollAll(t, r.cq)); n != 3 {
		t.Errorf("%d completions left, want 3", n)
	}
	for range 2 {
		_, err := r.cq.Poll(make([]verbs.WC, 1))
		if !errors.Is(err, verbs.ErrCQOverrun) {
			t.Errorf("got %v, want ErrCQOverrun", err)
		}
	}
	if err := r.cq.ReqNotify(false); !errors.Is(err, verbs.ErrCQOverrun) {
		t.Errorf("arming: %v", err)
	}
	e := must(r.dev.GetAsyncEvent(t.Context()))(t)
	if e.Type != verbs.EventCQErr || e.CQ != r.cq {
		t.Errorf("got %+v", e)
	}
	if r.qp.State() != verbs.StateErr || r.lq.modified[len(r.lq.modified)-1] != [2]verbs.QPState{verbs.StateRTS, verbs.StateErr} {
		t.Errorf("the QP is in %v, and its provider got %v", r.qp.State(), r.lq.modified)
	}
	if e := must(r.dev.GetAsyncEvent(t.Context()))(t); e.Type != verbs.EventQPFatal || e.QP != r.qp {
		t.Errorf("got %+v", e)
	}
	noEvent(t, r.dev)
	if other.State() != verbs.StateRTS {
		t.Errorf("a QP of another CQ went to %v", other.State())
	}
}

func TestClosedCQLeavesNoAsyncEvent(t *testing.T) {
	r := newRigWith(t, verbs.QPCap{MaxSendWR: 2}, 1)
	r.moveTo(t, verbs.StateRTS)
	wr := &verbs.SendWR{Opcode: verbs.Send, Flags: verbs.SendSignaled}
	check(t, r.qp.PostSend(wr, wr))
	check(t, r.qp.Close())
	check(t, r.cq.Close())
	noEvent(t, r.dev)
}

func TestNotifyNeedsChannel(t *testing.T) {
	r := newRig(t)
	cq := must(r.dev.CreateCQ(1, nil))(t)
	if err := cq.ReqNotify(false); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("got %v", err)
	}
	if err := cq.AckEvents(0); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("got %v", err)
	}
}

func noEvent(t *testing.T, d *verbs.Device) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if e, err := d.GetAsyncEvent(ctx); err == nil {
		t.Errorf("unexpected event %v", e.Type)
	}
}

// fillCQ adds n completions, numbered from *next.
func (r *rig) fillCQ(t testing.TB, next *uint64, n int) {
	t.Helper()
	for range n {
		check(t, r.qp.PostRecv(&verbs.RecvWR{WRID: *next}))
		r.lq.locked(func() { r.lq.CompleteRecv(&verbs.WC{Opcode: verbs.WCRecv}, false) })
		*next++
	}
}

func TestResizeCQ(t *testing.T) {
	r := newRigWith(t, verbs.QPCap{MaxRecvWR: 1}, 4)
	r.moveTo(t, verbs.StateInit)
	next, want := uint64(0), uint64(0)
	take := func(n int) {
		t.Helper()
		wcs := make([]verbs.WC, n)
		if got := must(r.cq.Poll(wcs))(t); got != n {
			t.Fatalf("%d completions, want %d", got, n)
		}
		for _, wc := range wcs {
			if wc.WRID != want {
				t.Errorf("got %d, want %d", wc.WRID, want)
			}
			want++
		}
	}
	r.fillCQ(t, &next, 4)
	take(2)
	r.fillCQ(t, &next, 2) // wraps around the ring
	for _, c := range []struct {
		cqe  int
		want string
	}{{3, "cqe 3 is not in 4–4096"}, {4097, "cqe 4097"}} {
		if err := r.cq.Resize(c.cqe); !errors.Is(err, verbs.ErrInvalid) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("got %v, want %q", err, c.want)
		}
	}
	check(t, r.cq.Resize(6))
	if r.cq.Cap() != 6 {
		t.Errorf("capacity %d", r.cq.Cap())
	}
	r.fillCQ(t, &next, 2)
	take(4)
	check(t, r.cq.Resize(2))
	take(2)
	r.fillCQ(t, &next, 2)
	take(2)
	if err := r.cq.Resize(0); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("got %v", err)
	}
}

// A transition to RESET removes the QP's completions. Those of other QPs stay, in their order.
func TestResetDropsCompletions(t *testing.T) {
	r := newRig(t)
	other := must(r.pd.CreateQP(&verbs.QPInitAttr{Type: verbs.RC, SendCQ: r.cq, RecvCQ: r.cq,
		Cap: verbs.QPCap{MaxSendWR: 8, MaxRecvWR: 8}}))(t)
	for i := range 6 {
		qpn := r.qp.Num()
		if i%3 == 0 {
			qpn = other.Num()
		}
		r.cq.Push(&verbs.WC{WRID: uint64(i), QPNum: qpn})
	}
	check(t, r.qp.Modify(&verbs.QPAttr{QPState: verbs.StateReset}, verbs.QPAttrState))
	wcs := pollAll(t, r.cq)
	if len(wcs) != 2 || wcs[0].WRID != 0 || wcs[1].WRID != 3 {
		t.Errorf("%+v, want the completions 0 and 3 of the other QP", wcs)
	}
	r.cq.Push(&verbs.WC{WRID: 7, QPNum: r.qp.Num()})
	if wcs := pollAll(t, r.cq); len(wcs) != 1 || wcs[0].WRID != 7 {
		t.Errorf("%+v, want completion 7", wcs)
	}
}
