package verbs_test

import (
	"context"
	"errors"
	"testing"

	"github.com/softrnic/softrnic/verbs"
)

// TestPollProgress checks the number of Progress calls in three empty Polls, and in two after
// ReqNotify. It also checks that GetEvent calls EndProgress before it sleeps.
func TestPollProgress(t *testing.T) {
	for _, c := range []struct {
		wait                 verbs.Wait
		unarmed, armed, none int64
	}{
		{verbs.WaitAdaptive, 2, 1, 0},
		{verbs.WaitEvent, 0, 0, 0},
		{verbs.WaitPoll, 3, 2, 0},
	} {
		l := newLoop()
		dev := must(verbs.Open(l))(t)
		ch := must(dev.CreateCompChannel())(t)
		cq := must(dev.CreateCQ(4, &verbs.CQInitAttr{Channel: ch, Wait: c.wait}))(t)
		polls := func(n, room int) int64 {
			before := l.progressed.Load()
			for range n {
				if n, err := cq.Poll(make([]verbs.WC, room)); n != 0 || err != nil {
					t.Fatal(n, err)
				}
			}
			return l.progressed.Load() - before
		}
		if n := polls(3, 0); n != c.none {
			t.Errorf("wait %d: %d Polls with an empty slice called Progress", c.wait, n)
		}
		cq = must(dev.CreateCQ(4, &verbs.CQInitAttr{Channel: ch, Wait: c.wait}))(t)
		if n := polls(3, 1); n != c.unarmed {
			t.Errorf("wait %d: %d of 3 Polls called Progress, want %d", c.wait, n, c.unarmed)
		}
		check(t, cq.ReqNotify(false))
		if n := polls(2, 1); n != c.armed {
			t.Errorf("wait %d: %d of 2 Polls after ReqNotify called Progress, want %d", c.wait, n, c.armed)
		}
		if l.endedProgress.Load() != 0 {
			t.Errorf("wait %d: EndProgress was called before the application slept", c.wait)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := ch.GetEvent(ctx); !errors.Is(err, context.Canceled) || l.endedProgress.Load() != 1 {
			t.Errorf("wait %d: EndProgress was called %d times, want 1 (%v)", c.wait, l.endedProgress.Load(), err)
		}
	}
	dev := must(verbs.Open(newLoop()))(t)
	if _, err := dev.CreateCQ(1, &verbs.CQInitAttr{Wait: verbs.WaitPoll + 1}); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("CQ with an unknown Wait: %v", err)
	}
}

// TestSelfProgress: after a completion has arrived without Progress, one in 128 empty Polls calls
// it. A Poll counts once, even if Progress had something to do and the CQ is still empty.
func TestSelfProgress(t *testing.T) {
	l := newLoop()
	dev := must(verbs.Open(l))(t)
	cq := must(dev.CreateCQ(4, nil))(t)
	l.busy = true
	var wcs [1]verbs.WC
	poll := func(want int) {
		t.Helper()
		if n, err := cq.Poll(wcs[:]); n != want || err != nil {
			t.Fatalf("%d completions, want %d (%v)", n, want, err)
		}
	}
	poll(0)
	cq.Push(&verbs.WC{})
	poll(1)
	for i := range 3 * 128 {
		before := l.progressed.Load()
		poll(0)
		if got, want := l.progressed.Load() > before, (i+1)%128 == 0; got != want {
			t.Fatalf("empty Poll %d calls Progress: %v, want %v", i+1, got, want)
		}
	}
}
