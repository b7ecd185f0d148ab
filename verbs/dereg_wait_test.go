package verbs_test

import (
	"testing"
	"time"

	"github.com/softrnic/softrnic/verbs"
)

// TestWaitsForAccess: whatever ends access to memory returns only when no QP that could have
// reached that memory is in the middle of it, which is while a provider has the QP locked.
func TestWaitsForAccess(t *testing.T) {
	r := newMWRig(t)
	domain := must(r.dev.OpenXRCD(nil, 0))(t)
	target := r.l.qps[must(domain.CreateQP(&verbs.QPInitAttr{Type: verbs.XRCRecv}))(t).Num()]
	other := must(r.dev.AllocPD())(t) // of an SRQ, through which the target reaches its regions
	srq := must(other.CreateSRQ(&verbs.SRQInitAttr{Attr: verbs.SRQAttr{MaxWR: 1, MaxSGE: 1}, XRCD: domain, CQ: r.cq}))(t)
	defer srq.Destroy()
	for _, qp := range []*loopQP{r.lq, target} {
		pd := r.pd
		if qp == target {
			pd = other
		}
		region := func() *verbs.MR { return must(pd.RegMR(make([]byte, 8), verbs.AccessLocalWrite))(t) }
		mw1, mw2 := must(pd.AllocMW(verbs.MWType1))(t), must(pd.AllocMW(verbs.MWType2))(t)
		dereg, rereg := region(), region()
		for name, end := range map[string]func() error{
			"MR.Dereg":             dereg.Dereg,
			"MR.Rereg":             func() error { return rereg.Rereg(verbs.ReregAccess, nil, nil, 0) },
			"MW.Dealloc of type 1": mw1.Dealloc,
			"MW.Dealloc of type 2": mw2.Dealloc,
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
					waits = qp.Wanted()
				}
			}
			qp.Unlock()
			check(t, <-done)
		}
		check(t, rereg.Dereg())
	}
}

// TestYield: Wanted reports a goroutine that waits for the lock, and Yield lets this goroutine take
// it.
func TestYield(t *testing.T) {
	r := newRig(t)
	r.lq.Lock()
	defer r.lq.Unlock()
	if r.lq.Wanted() {
		t.Error("nobody wants the lock")
	}
	for range 100 {
		in := false
		go func() {
			r.qp.State()
			r.lq.Lock()
			in = true
			r.lq.Unlock()
		}()
		// It may take a millisecond: until then sync.Mutex lets others overtake a goroutine that it
		// has woken.
		for deadline := time.Now().Add(10 * time.Second); !in; {
			for !r.lq.Wanted() && !in {
				r.lq.Unlock() // the goroutine may be between the two
				r.lq.Lock()
			}
			if r.lq.Yield(); time.Now().After(deadline) {
				t.Fatal("a goroutine waits, and does not get the lock")
			}
		}
	}
}
