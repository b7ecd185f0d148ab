//go:build linux

package vnet

import (
	"testing"
	"time"

	"github.com/softrnic/softrnic/link"
)

func TestSpin(t *testing.T) {
	const us = time.Microsecond
	start := time.Unix(1000, 0)
	type step struct {
		at              time.Duration
		received, bulk  bool // frames come at that time; otherwise a read finds nothing
		yield, spinning bool // expected
	}
	for _, c := range []struct {
		name  string
		wait  link.Wait
		steps []step
	}{
		{"no frames yet", link.WaitAdaptive, []step{{at: 0}, {at: 10 * us}}},
		{"small frames", link.WaitAdaptive, []step{
			{at: 0, received: true},
			{at: 1 * us, yield: true, spinning: true},
			{at: 2 * us, spinning: true},
			{at: 50 * us, spinning: true},
			{at: 51 * us},
			{at: 60 * us, received: true},
			{at: 61 * us, yield: true, spinning: true},
		}},
		{"superframes", link.WaitAdaptive, []step{
			{at: 0, received: true, bulk: true},
			{at: 1 * us, yield: true, spinning: true}, // has never yielded
			{at: 2 * us, received: true, bulk: true},
			{at: 3 * us, spinning: true},
			{at: 40 * us, received: true, bulk: true},
			{at: 80 * us, spinning: true},
			{at: 131 * us, yield: true}, // before it sleeps
			{at: 600 * us, received: true, bulk: true},
			{at: 601 * us, spinning: true},
			{at: 632 * us, yield: true, spinning: true}, // goschedInterval after the last
		}},
		{"superframes, sleeping at once", link.WaitEvent, []step{
			{at: 0, received: true, bulk: true},
			{at: 1 * us, yield: true, spinning: true},
			{at: 2 * us, received: true, bulk: true},
			{at: 3 * us, yield: true, spinning: true},
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var s spin
			for _, st := range c.steps {
				now := start.Add(st.at)
				if st.received {
					s.received(st.bulk)
					continue
				}
				s.empty(now)
				yield, spinning := s.yieldDue(now, c.wait), s.spinning(now)
				if again := s.yieldDue(now, c.wait); again != yield {
					t.Fatalf("%v: a query changed the state", st.at)
				}
				if yield != st.yield || spinning != st.spinning {
					t.Errorf("%v: yield %t, spinning %t; want %t, %t", st.at, yield, spinning, st.yield, st.spinning)
				}
				if yield {
					s.yielded(now)
				} else if !spinning {
					s.sleep()
				}
			}
		})
	}
}

// TestSpinAdapts checks that the goroutine soon sleeps when frames are rare, and spins again when
// they are frequent.
func TestSpinAdapts(t *testing.T) {
	const us = time.Microsecond
	var s spin
	now := time.Unix(1000, 0)
	spins := func(gap time.Duration, frames int) (spins int) {
		for range frames {
			s.received(false)
			s.empty(now)
			spun := s.spinning(now)
			if spun {
				spins++
			}
			if gap > spinTime || !spun {
				s.sleep()
			}
			now = now.Add(gap)
		}
		return spins
	}
	for _, c := range []struct {
		gap               time.Duration
		frames, min, most int
	}{{30 * us, 100, 100, 100}, {200 * us, 1000, 30, 40}, {30 * us, 100, 60, 100}} {
		if got := spins(c.gap, c.frames); got < c.min || got > c.most {
			t.Errorf("%d frames, one per %v: %d spins, want %d to %d", c.frames, c.gap, got, c.min, c.most)
		}
	}
}
