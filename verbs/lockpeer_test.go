package verbs_test

import (
	"sync"
	"testing"

	"github.com/softrnic/softrnic/verbs"
)

// TestLockPeer: goroutines lock pairs of QPs in both orders without a deadlock, and kept reports
// whether the first QP stayed locked.
func TestLockPeer(t *testing.T) {
	r := newRig(t)
	const qps, rounds = 3, 2000
	var handles [qps]verbs.QPHandle
	var counts [qps]int // each protected by its QP's lock
	for i := range handles {
		qp := must(r.pd.CreateQP(&verbs.QPInitAttr{Type: verbs.RC, SendCQ: r.cq, RecvCQ: r.cq}))(t)
		handles[i] = r.l.qps[qp.Num()].QPHandle
	}
	var wg sync.WaitGroup
	for i := range qps {
		for j := range qps {
			if i == j {
				continue
			}
			wg.Go(func() {
				for range rounds {
					handles[i].Lock()
					counts[i]++
					before := counts[i]
					if kept := handles[i].LockPeer(handles[j]); kept && counts[i] != before {
						t.Error("the lock was not kept")
					}
					counts[i]++
					counts[j]++
					handles[j].Unlock()
					handles[i].Unlock()
				}
			})
		}
	}
	wg.Wait()
	for i, n := range counts {
		if want := 6 * rounds; n != want { // two peers: three counts each way
			t.Errorf("QP %d was counted %d times, want %d", i, n, want)
		}
	}
}
