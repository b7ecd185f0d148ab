package verbs_test

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/softrnic/softrnic/verbs"
)

// TestPostSendAndPoll: the completion of the request is returned at once, after those that are in
// the CQ, and with the event for which the CQ is armed.
func TestPostSendAndPoll(t *testing.T) {
	r := newRig(t)
	r.moveTo(t, verbs.StateRTS)
	var wcs [4]verbs.WC
	post := func(id uint64, flags verbs.SendFlags, room int, want ...uint64) {
		t.Helper()
		wr := &verbs.SendWR{WRID: id, Opcode: verbs.Send, Flags: flags}
		n, err := r.qp.PostSendAndPoll(wr, wcs[:room])
		check(t, err)
		if n != len(want) {
			t.Fatalf("%d completions, want %v", n, want)
		}
		for i, wc := range wcs[:n] {
			if wc.WRID != want[i] || wc.Status != verbs.WCSuccess || wc.Opcode != verbs.WCSend || wc.QPNum != r.qp.Num() {
				t.Errorf("completion %d is %+v, want that of %d", i, wc, want[i])
			}
		}
	}
	polls := func(want ...uint64) {
		t.Helper()
		n, err := r.cq.Poll(wcs[:])
		check(t, err)
		if n != len(want) {
			t.Fatalf("%d completions are left, want %v", n, want)
		}
		for i, wc := range wcs[:n] {
			if wc.WRID != want[i] {
				t.Errorf("completion %d is that of %d, want %d", i, wc.WRID, want[i])
			}
		}
	}
	post(1, verbs.SendSignaled, 4, 1)
	polls()
	post(2, 0, 4)
	check(t, r.qp.PostSend(&verbs.SendWR{WRID: 3, Opcode: verbs.Send, Flags: verbs.SendSignaled}))
	post(4, verbs.SendSignaled, 1, 3)
	post(5, verbs.SendSignaled, 0)
	post(6, verbs.SendSignaled, 4, 4, 5, 6)
	polls()
	check(t, r.cq.ReqNotify(false))
	post(7, verbs.SendSignaled, 4, 7)
	if _, err := r.ch.TryGetEvent(); err != nil {
		t.Errorf("no event: %v", err)
	}
	check(t, r.cq.AckEvents(1))
	// An earlier request completes in the same call, and causes the event.
	r.lq.hold = true
	check(t, r.qp.PostSend(&verbs.SendWR{WRID: 9, Opcode: verbs.Send, Flags: verbs.SendSignaled}))
	r.lq.hold = false
	check(t, r.cq.ReqNotify(false))
	post(10, verbs.SendSignaled, 4, 9, 10)
	if _, err := r.ch.TryGetEvent(); err != nil {
		t.Errorf("no event: %v", err)
	}
	check(t, r.cq.AckEvents(1))
	var refused *verbs.PostError
	if n, err := r.qp.PostSendAndPoll(&verbs.SendWR{Opcode: 200}, wcs[:]); n != 0 || !errors.As(err, &refused) {
		t.Errorf("a request that is refused: %d, %v", n, err)
	}
	r.moveTo(t, verbs.StateErr)
	if n, err := r.qp.PostSendAndPoll(&verbs.SendWR{WRID: 8, Opcode: verbs.Send}, wcs[:]); n != 1 || err != nil ||
		wcs[0].WRID != 8 || wcs[0].Status != verbs.WCWRFlushErr {
		t.Errorf("in ERR: %d, %v, %+v", n, err, wcs[0])
	}
	polls()
	check(t, r.qp.Close())
	if _, err := r.qp.PostSendAndPoll(&verbs.SendWR{Opcode: verbs.Send}, wcs[:]); !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("a closed QP: %v", err)
	}
}

// TestPostSendAndPollRace: several goroutines post to one QP and poll. Each completion is returned
// once.
func TestPostSendAndPollRace(t *testing.T) {
	const each = 2000
	r := newRig(t)
	r.moveTo(t, verbs.StateRTS)
	var seen [4 * each]atomic.Uint32
	var done atomic.Uint32
	saw := func(wcs []verbs.WC) {
		for _, wc := range wcs {
			if n := seen[wc.WRID].Add(1); n != 1 || wc.Status != verbs.WCSuccess {
				t.Errorf("completion %d of request %d, %v", n, wc.WRID, wc.Status)
			}
			done.Add(1)
		}
	}
	var all sync.WaitGroup
	for k := range 4 {
		all.Go(func() {
			var wcs [2]verbs.WC
			for i := range each {
				wr := verbs.SendWR{WRID: uint64(k*each + i), Opcode: verbs.Send, Flags: verbs.SendSignaled}
				var n int
				var err error
				if k == 3 {
					if err = r.qp.PostSend(&wr); err == nil {
						n, err = r.cq.Poll(wcs[:])
					}
				} else {
					n, err = r.qp.PostSendAndPoll(&wr, wcs[:])
				}
				if err != nil {
					t.Error(err)
					return
				}
				saw(wcs[:n])
			}
		})
	}
	all.Wait()
	var wcs [64]verbs.WC
	n, err := r.cq.Poll(wcs[:])
	check(t, err)
	if saw(wcs[:n]); done.Load() != 4*each {
		t.Errorf("%d completions, want %d", done.Load(), 4*each)
	}
}
