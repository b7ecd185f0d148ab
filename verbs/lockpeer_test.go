package verbs_test

import (
	"sync"
	"testing"

	"github.com/softrnic/softrnic/verbs"
)

// TestLockPeer: whoever locks which QP first, two at a time are locked without a deadlock, and kept tells whether the
// first was let go.
func TestLockPeer(t *testing.T) {
	r := newRig(t)
	const qps, rounds = 3, 2000
	var handles [qps]verbs.QPHandle
	var guarded [qps]int // each by its QP's lock
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
					guarded[i]++
					mine := guarded[i]
					if kept := handles[i].LockPeer(handles[j]); kept && guarded[i] != mine {
						t.Error("the lock was not kept")
					}
					guarded[i]++
					guarded[j]++
					handles[j].Unlock()
					handles[i].Unlock()
				}
			})
		}
	}
	wg.Wait()
	for i, n := range guarded {
		if want := 6 * rounds; n != want { // two peers: three counts each way
			t.Errorf("QP %d was counted %d times, want %d", i, n, want)
		}
	}
}

// TestPollAfterArming: a completion that comes while a CQ is polled and armed is either polled or announced.
func TestPollAfterArming(t *testing.T) {
	r := newRig(t)
	r.bring(t, verbs.StateRTS)
	const n = 20_000
	slots := make(chan struct{}, 16)
	go func() {
		for range n {
			slots <- struct{}{}
			if err := r.qp.PostSend(&verbs.SendWR{Opcode: verbs.Send, Flags: verbs.SendSignaled}); err != nil {
				t.Error(err)
			}
		}
	}()
	var wcs [4]verbs.WC
	poll := func() int {
		k, err := r.cq.Poll(wcs[:])
		if err != nil {
			t.Fatal(err)
		}
		for range k {
			<-slots
		}
		return k
	}
	for got := 0; got < n; {
		k := poll()
		if got += k; k > 0 {
			continue
		}
		if err := r.cq.RequestNotify(false); err != nil {
			t.Fatal(err)
		}
		if k = poll(); k > 0 {
			got += k
			continue
		}
		if _, err := r.ch.GetEvent(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := r.cq.AckEvents(1); err != nil {
			t.Fatal(err)
		}
	}
}
