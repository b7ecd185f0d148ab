package verbs_test

import (
	"context"
	"errors"
	"testing"

	"github.com/softrnic/softrnic/verbs"
)

// TestWhoPollsDrives: which of three empty polls, and of two after a request for notification, drive the device; and
// that it is on its own when the application sleeps.
func TestWhoPollsDrives(t *testing.T) {
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
			before := l.driven.Load()
			for range n {
				if n, err := cq.Poll(make([]verbs.WC, room)); n != 0 || err != nil {
					t.Fatal(n, err)
				}
			}
			return l.driven.Load() - before
		}
		if n := polls(3, 0); n != c.none {
			t.Errorf("wait %d: %d polls for no completion drove", c.wait, n)
		}
		cq = must(dev.CreateCQ(4, &verbs.CQInitAttr{Channel: ch, Wait: c.wait}))(t)
		if n := polls(3, 1); n != c.unarmed {
			t.Errorf("wait %d: %d of 3 polls drove, want %d", c.wait, n, c.unarmed)
		}
		check(t, cq.RequestNotify(false))
		if n := polls(2, 1); n != c.armed {
			t.Errorf("wait %d: %d of 2 polls after a request drove, want %d", c.wait, n, c.armed)
		}
		if l.ended.Load() != 0 {
			t.Errorf("wait %d: the device was told of a sleep before there was one", c.wait)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := ch.GetEvent(ctx); !errors.Is(err, context.Canceled) || l.ended.Load() != 1 {
			t.Errorf("wait %d: the device was told of %d sleeps, want 1 (%v)", c.wait, l.ended.Load(), err)
		}
	}
	dev := must(verbs.Open(newLoop()))(t)
	if _, err := dev.CreateCQ(1, &verbs.CQInitAttr{Wait: verbs.WaitPoll + 1}); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("CQ with an unknown Wait: %v", err)
	}
}
