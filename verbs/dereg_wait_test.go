package verbs_test

import (
	"testing"
	"time"

	"github.com/softrnic/softrnic/verbs"
)

// TestWaitsForAccess: calls that revoke access to memory return only after all running accesses to
// it have ended. A provider accesses the memory while it has a QP locked.
func TestWaitsForAccess(t *testing.T) {
	r := newMWRig(t)
	domain := must(r.dev.OpenXRCD(nil, 0))(t)
	target := r.l.qps[must(domain.CreateQP(&verbs.QPInitAttr{Type: verbs.XRCRecv}))(t).Num()]
	other := must(r.dev.AllocPD())(t) // the PD of an SRQ, whose regions the target uses
	srq := must(other.CreateSRQ(&verbs.SRQInitAttr{Attr: verbs.SRQAttr{MaxWR: 1, MaxSGE: 1}, XRCD: domain, CQ: r.cq}))(t)
	defer srq.Close()
	for _, qp := range []*loopQP{r.lq, target} {
		pd := r.pd
		if qp == target {
			pd = other
		}
		region := func() *verbs.MR { return must(pd.RegMR(make([]byte, 8), verbs.AccessLocalWrite))(t) }
		mw1, mw2 := must(pd.AllocMW(verbs.MWType1))(t), must(pd.AllocMW(verbs.MWType2))(t)
		dereg, rereg := region(), region()
		for name, end := range map[string]func() error{
			"MR.Close":           dereg.Close,
			"MR.Rereg":           func() error { return rereg.Rereg(verbs.ReregAccess, nil, nil, 0) },
			"MW.Close of type 1": mw1.Close,
			"MW.Close of type 2": mw2.Close,
		} {
			qp.Lock()
			done := make(chan error)
			go func() { done <- end() }()
			for waits := false; !waits; {
				select {
				case err := <-done:
					qp.Unlock()
					t.Fatalf("%s returned (%v) while a QP was locked", name, err)
				default:
					waits = qp.Contended()
				}
			}
			qp.Unlock()
			check(t, <-done)
		}
		check(t, rereg.Close())
	}
}

// TestYield: Contended reports a goroutine that waits for the lock, and Yield lets this goroutine
// take it.
func TestYield(t *testing.T) {
	r := newRig(t)
	r.lq.Lock()
	defer r.lq.Unlock()
	if r.lq.Contended() {
		t.Error("Contended without a waiting goroutine")
	}
	for range 100 {
		in := false
		go func() {
			r.qp.State()
			r.lq.Lock()
			in = true
			r.lq.Unlock()
		}()
		// This may take a millisecond: until then, other goroutines may take a sync.Mutex before a
		// woken one.
		for deadline := time.Now().Add(10 * time.Second); !in; {
			for !r.lq.Contended() && !in {
				r.lq.Unlock() // the goroutine may be between its two calls
				r.lq.Lock()
			}
			if r.lq.Yield(); time.Now().After(deadline) {
				t.Fatal("a waiting goroutine does not get the lock")
			}
		}
	}
}
