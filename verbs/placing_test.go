package verbs_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/softrnic/softrnic/verbs"
)

// gate is a backend each of whose copies waits for a value: an error, or nil.
type gate chan error

func (g gate) ReadAt(p []byte, _ int64) (int, error)  { return g.copy(p) }
func (g gate) WriteAt(p []byte, _ int64) (int, error) { return g.copy(p) }

func (g gate) copy(p []byte) (int, error) {
	if err := <-g; err != nil {
		return 0, err
	}
	return len(p), nil
}

// pass lets the next copy end, and waits for what follows.
func (g gate) pass(err error) {
	g <- err
	synctest.Wait()
}

// gated runs a test with a QP in RTS, and a region in a gate. Sends stay in the queue.
func gated(t *testing.T, f func(t *testing.T, r *rig, g gate, mr *verbs.MR)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r, g := newRig(t), make(gate)
		r.moveTo(t, verbs.StateRTS)
		r.lq.hold = true
		f(t, r, g, must(r.pd.RegMREx(&verbs.MRInitAttr{Backend: g, BackendLength: 1 << 20, Access: verbs.AccessLocalWrite}))(t))
		close(g)
	})
}

// post posts a send request, which completes when the test says so.
func (r *rig) post(t *testing.T, id uint64, op verbs.WROpcode, flags verbs.SendFlags) {
	t.Helper()
	check(t, r.qp.PostSend(&verbs.SendWR{WRID: id, Opcode: op, Flags: flags}))
}

// statuses are those of all completions in the CQ, in the order of their IDs from 0 on.
func (r *rig) statuses(t *testing.T) (all []verbs.WCStatus) {
	t.Helper()
	for i, wc := range pollAll(t, r.cq) {
		if wc.WRID != uint64(i) {
			t.Errorf("completion %d is of %d", i, wc.WRID)
		}
		all = append(all, wc.Status)
	}
	return all
}

func same[T comparable](t *testing.T, what string, got []T, want ...T) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: %v, want %v", what, got, want)
	}
	for i := range got {
		if got[i] != want[i] {
			t.Fatalf("%s: %v, want %v", what, got, want)
		}
	}
}

var errGate = errors.New("on demand")

// TestReadBehindFailedWrite: the data of a READ waits behind a WRITE of the peer that fails, and is
// dropped with it. Neither the READ nor a later request has succeeded; an earlier one has.
func TestReadBehindFailedWrite(t *testing.T) {
	gated(t, func(t *testing.T, r *rig, g gate, mr *verbs.MR) {
		r.post(t, 0, verbs.Send, verbs.SendSignaled)
		r.post(t, 1, verbs.RDMARead, verbs.SendSignaled)
		r.post(t, 2, verbs.Send, verbs.SendSignaled)
		r.lq.locked(func() {
			r.lq.Place(mr, 0, make([]byte, 8), verbs.PlaceRemote, 7)
			r.lq.CompleteSend(verbs.WCSuccess, 0)
			r.lq.Place(mr, 100, make([]byte, 8), verbs.PlaceSend, 0)
			r.lq.CompleteSend(verbs.WCSuccess, 8)
			r.lq.CompleteSend(verbs.WCSuccess, 0)
		})
		g.pass(errGate)
		same(t, "statuses", r.statuses(t), verbs.WCSuccess, verbs.WCWRFlushErr, verbs.WCWRFlushErr)
		same(t, "errors", r.lq.failed, verbs.PlaceError{By: verbs.PlaceRemote, PSN: 7, Incomplete: true})
	})
}

// TestUnsignaledReadFails: the error of an unsignaled READ is reported, and no later request
// succeeds.
func TestUnsignaledReadFails(t *testing.T) {
	gated(t, func(t *testing.T, r *rig, g gate, mr *verbs.MR) {
		for _, err := range []error{nil, errGate} {
			r.post(t, 0, verbs.RDMARead, 0)
			r.post(t, 1, verbs.Send, 0)
			r.post(t, 2, verbs.Send, verbs.SendSignaled)
			r.lq.locked(func() {
				r.lq.Place(mr, 100, make([]byte, 8), verbs.PlaceSend, 0)
				for range 3 {
					r.lq.CompleteSend(verbs.WCSuccess, 0)
				}
			})
			g.pass(err)
			if err == nil {
				if wcs := pollAll(t, r.cq); len(wcs) != 1 || wcs[0].WRID != 2 || wcs[0].Status != verbs.WCSuccess {
					t.Fatalf("completions %+v", wcs)
				}
			}
		}
		same(t, "statuses", r.statuses(t), verbs.WCLocProtErr, verbs.WCWRFlushErr, verbs.WCWRFlushErr)
		same(t, "errors", r.lq.failed, verbs.PlaceError{By: verbs.PlaceSend})
	})
}

// TestOwnReadsDelayNoAcknowledgement: READs of this side whose data is always on its way do not
// delay what the peer waits for.
func TestOwnReadsDelayNoAcknowledgement(t *testing.T) {
	gated(t, func(t *testing.T, r *rig, g gate, mr *verbs.MR) {
		placing := func(want bool) {
			t.Helper()
			r.lq.locked(func() {
				if r.lq.Placing() != want {
					t.Errorf("placing is %v", !want)
				}
			})
		}
		read := func(off int64) {
			r.lq.locked(func() { r.lq.Place(mr, off, make([]byte, 8), verbs.PlaceSend, 0) })
		}
		read(0)
		placing(false)
		r.lq.locked(func() { r.lq.Place(mr, 100, make([]byte, 8), verbs.PlaceRemote, 0) })
		read(200)
		g.pass(nil)
		placing(true)
		g.pass(nil)
		placing(false)
		if r.lq.placed != 1 {
			t.Errorf("%d calls of Placed", r.lq.placed)
		}
		g.pass(nil)
	})
}

// TestCountedWhenPlaced: counters, and the event after the last request of an SRQ, come with the
// completions.
func TestCountedWhenPlaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, g := newRig(t), make(gate)
		mr := must(r.pd.RegMREx(&verbs.MRInitAttr{Backend: g, BackendLength: 64, Access: verbs.AccessLocalWrite}))(t)
		srq := must(r.pd.CreateSRQ(&verbs.SRQInitAttr{Attr: verbs.SRQAttr{MaxWR: 2, MaxSGE: 1}}))(t)
		r.qp = must(r.pd.CreateQP(&verbs.QPInitAttr{Type: verbs.RC, SendCQ: r.cq, RecvCQ: r.cq, SRQ: srq,
			Cap: verbs.QPCap{MaxSendWR: 2, MaxSendSGE: 1}}))(t)
		r.lq = r.l.qps[r.qp.Num()]
		c := must(r.dev.CreateCompCntr(nil))(t)
		check(t, r.qp.AttachCompCntr(c, verbs.CompCntrRemoteWrite|verbs.CompCntrRecv|verbs.CompCntrRead))
		r.moveTo(t, verbs.StateRTS)
		r.lq.hold = true
		r.post(t, 1, verbs.RDMARead, 0)
		check(t, srq.PostRecv(&verbs.RecvWR{}))
		r.lq.locked(func() {
			r.lq.Place(mr, 0, make([]byte, 8), verbs.PlaceRemote, 0)
			r.lq.CountRemote(verbs.CompCntrRemoteWrite, 1, 8)
			r.lq.CompleteSend(verbs.WCSuccess, 0)
			r.lq.Recv()
			r.lq.CompleteRecv(&verbs.WC{Opcode: verbs.WCRecv}, false)
			r.lq.Fail()
		})
		count := c.Count
		if e, err := r.dev.TryGetAsyncEvent(); err == nil || count() != 0 {
			t.Errorf("before the data: event %v, %d operations", e.Type, count())
		}
		g.pass(nil)
		if e, err := r.dev.TryGetAsyncEvent(); err != nil || e.Type != verbs.EventQPLastWQEReached || count() != 3 {
			t.Errorf("after the data: event %v (%v), %d operations", e.Type, err, count())
		}
		if wcs := pollAll(t, r.cq); len(wcs) != 1 || wcs[0].Status != verbs.WCSuccess {
			t.Errorf("completions %+v", wcs)
		}
	})
}

// TestXRCSRQGoesWhilePlacing: an SRQ is closed, and its CQ, while the data of a message for it is
// on its way to a backend. The completion is dropped.
func TestXRCSRQGoesWhilePlacing(t *testing.T) {
	gated(t, func(t *testing.T, r *rig, g gate, mr *verbs.MR) {
		x := must(r.dev.OpenXRCD(nil, 0))(t)
		target := r.l.qps[must(x.CreateQP(&verbs.QPInitAttr{Type: verbs.XRCRecv}))(t).Num()]
		cq := must(r.dev.CreateCQ(1, nil))(t)
		srq := must(r.pd.CreateSRQ(&verbs.SRQInitAttr{Attr: verbs.SRQAttr{MaxWR: 1, MaxSGE: 1}, XRCD: x, CQ: cq}))(t)
		postIDs(t, srq, 1)
		target.locked(func() {
			if target.SelectSRQ(srq.Num()) == nil || target.Recv() == nil {
				t.Fatal("the QP gets no request")
			}
			target.Place(mr, 0, make([]byte, 8), verbs.PlaceRecv, 0)
			target.CompleteRecv(&verbs.WC{Opcode: verbs.WCRecv}, false)
		})
		check(t, srq.Close())
		check(t, cq.Close())
		g.pass(nil)
		if n, err := cq.Poll(make([]verbs.WC, 1)); n != 0 || !errors.Is(err, verbs.ErrClosed) {
			t.Errorf("%d completions, %v", n, err)
		}
	})
}

// pinned is a backend that allocates its staging memory, which takes the QP's lock.
type pinned struct {
	gate
	qp *verbs.QP
	t  *testing.T
}

func (p *pinned) AllocStaging(n int) []byte {
	got := make(chan bool, 1)
	go func() {
		p.qp.State()
		got <- true
	}()
	select {
	case <-got:
	case <-time.After(5 * time.Second):
		p.t.Error("the QP is locked")
	}
	return make([]byte, n)
}

func (p *pinned) FreeStaging([]byte) {}

// TestStagingIsPinnedUnlocked: staging memory of send requests and of responses is allocated
// without the QP's lock, because pinning takes long.
func TestStagingIsPinnedUnlocked(t *testing.T) {
	r := newRig(t)
	r.moveTo(t, verbs.StateRTS)
	g := make(gate)
	close(g)
	mr := must(r.pd.RegMREx(&verbs.MRInitAttr{Backend: &pinned{g, r.qp, t}, BackendLength: 1 << 20}))(t)
	check(t, r.qp.PostSend(&verbs.SendWR{Opcode: verbs.Send, Flags: verbs.SendSignaled, SGList: []verbs.SGE{mr.SGE(0, 1<<20)}}))
	var wc [1]verbs.WC
	if n, err := r.cq.Wait(t.Context(), wc[:]); n != 1 || err != nil || wc[0].Status != verbs.WCSuccess {
		t.Errorf("%+v, %v", wc[0], err)
	}
	for fetched := verbs.FetchPending; fetched == verbs.FetchPending; {
		r.lq.locked(func() { _, fetched = r.lq.Fetch(mr, 0, 1000, 1<<19) })
	}
	r.lq.locked(r.lq.EndFetch)
}

// TestHeldSendsTakeRoom: a send request whose completion waits for the data of a READ still takes
// its place in the queue, also if it is unsignaled: a program cannot have seen that it is complete.
func TestHeldSendsTakeRoom(t *testing.T) {
	gated(t, func(t *testing.T, r *rig, g gate, mr *verbs.MR) {
		r.post(t, 0, verbs.RDMARead, verbs.SendSignaled)
		r.lq.locked(func() {
			r.lq.Place(mr, 0, make([]byte, 8), verbs.PlaceSend, 0)
			r.lq.CompleteSend(verbs.WCSuccess, 8)
		})
		r.lq.hold = false
		posted := 0
		var err error
		for ; posted < 100 && err == nil; posted++ {
			err = r.qp.PostSend(&verbs.SendWR{Opcode: verbs.Send})
		}
		if !errors.Is(err, verbs.ErrQueueFull) || posted != 8 { // of which the last failed
			t.Errorf("%d requests were posted: %v", posted, err)
		}
		g.pass(nil)
		same(t, "statuses", r.statuses(t), verbs.WCSuccess)
		check(t, r.qp.PostSend(&verbs.SendWR{Opcode: verbs.Send}))
	})
}

// TestFetchWithinRegion: what is read ahead is in the region, also if the rest of the response is
// not: the window that it was checked against may have been bound anew.
func TestFetchWithinRegion(t *testing.T) {
	r := newRig(t)
	r.moveTo(t, verbs.StateRTS)
	mr := must(r.pd.RegMREx(&verbs.MRInitAttr{Backend: short(1000), BackendLength: 1000}))(t)
	for fetched := verbs.FetchPending; fetched != verbs.FetchDone; {
		r.lq.locked(func() { _, fetched = r.lq.Fetch(mr, 900, 50, 10_000) })
		if fetched == verbs.FetchFailed {
			t.Fatal("it was read beyond the end")
		}
	}
	r.lq.locked(r.lq.EndFetch)
}

// short is a backend of so many bytes.
type short int

func (s short) ReadAt(p []byte, off int64) (int, error) {
	if off+int64(len(p)) > int64(s) {
		return 0, errGate
	}
	return len(p), nil
}

func (s short) WriteAt([]byte, int64) (int, error) { return 0, errGate }
