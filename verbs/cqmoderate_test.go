package verbs_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/softrnic/softrnic/verbs"
)

// events takes all events of the channel and returns their number.
func (r *rig) events(t testing.TB) (n int) {
	t.Helper()
	for r.event(t) {
		n++
	}
	return n
}

func TestModerationByCount(t *testing.T) {
	r := newRig(t)
	r.moveTo(t, verbs.StateInit)
	check(t, r.cq.Modify(verbs.CQModeration{Count: 3}))
	var next uint64
	for round := range 3 {
		check(t, r.cq.ReqNotify(false))
		r.fillCQ(t, &next, 2)
		if n := r.events(t); n != 0 {
			t.Errorf("round %d: %d events after 2 completions", round, n)
		}
		r.fillCQ(t, &next, 3)
		if n := r.events(t); n != 1 {
			t.Errorf("round %d: %d events after 5 completions, want 1", round, n)
		}
		pollAll(t, r.cq)
	}
	check(t, r.cq.ReqNotify(false))
	r.fillCQ(t, &next, 1)
	check(t, r.cq.Modify(verbs.CQModeration{}))
	if n := r.events(t); n != 1 {
		t.Errorf("%d events after the end of moderation, want the delayed one", n)
	}
}

func TestModerationByTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.moveTo(t, verbs.StateInit)
		check(t, r.cq.Modify(verbs.CQModeration{Count: 10, Period: 100 * time.Microsecond}))
		var next uint64
		for range 2 {
			check(t, r.cq.ReqNotify(false))
			time.Sleep(time.Millisecond) // the period starts with the first completion
			if n := r.events(t); n != 0 {
				t.Errorf("%d events without a completion", n)
			}
			start := time.Now()
			r.fillCQ(t, &next, 2)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			cq, err := r.ch.GetEvent(ctx)
			cancel()
			check(t, err)
			if d := time.Since(start); d != 100*time.Microsecond {
				t.Errorf("the event arrived after %v", d)
			}
			check(t, cq.AckEvents(1))
			r.fillCQ(t, &next, 2)
			time.Sleep(time.Millisecond)
			if n := r.events(t); n != 0 {
				t.Errorf("%d events of a CQ that is not armed", n)
			}
			check(t, r.cq.ReqNotify(false))
			r.fillCQ(t, &next, 10)
			if n := r.events(t); n != 1 {
				t.Errorf("%d events after Count completions, want 1", n)
			}
			pollAll(t, r.cq)
		}
		// A delayed event is dropped with its CQ.
		check(t, r.cq.ReqNotify(false))
		r.fillCQ(t, &next, 1)
		check(t, r.qp.Close())
		check(t, r.cq.Close())
		time.Sleep(time.Millisecond)
		if n := r.events(t); n != 0 {
			t.Errorf("%d events of a closed CQ", n)
		}
	})
}

func TestModerationRejects(t *testing.T) {
	r := newRig(t)
	for _, m := range []verbs.CQModeration{{Count: -1}, {Count: 65536}, {Period: -1}, {Period: 65536 * time.Microsecond}} {
		if err := r.cq.Modify(m); !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("%+v: %v", m, err)
		}
	}
	cq := must(r.dev.CreateCQ(1, nil))(t)
	if err := cq.Modify(verbs.CQModeration{Count: 2}); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("a CQ without a channel: %v", err)
	}
}
