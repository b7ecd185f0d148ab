package idle

import (
	"testing"
	"time"
)

// TestSpinGivesUp checks that a reader's spins continue while they find something, and become rare
// once they do not.
func TestSpinGivesUp(t *testing.T) {
	s := Spin{Spinner: &RingReader}
	giveUp, retry := RingReader.GiveUp, RingReader.RetryInterval
	spins := func(n int, found bool) (spins int) {
		for range n {
			if s.Time() > 0 {
				spins++
				s.Spun(found)
			}
		}
		return spins
	}
	for _, c := range []struct {
		name     string
		sleeps   int
		found    bool
		min, max int
	}{
		{"the first", 1, true, 1, 1},
		{"spins find frames", 100, true, 100, 100},
		{"spins stop finding frames", giveUp, false, giveUp, giveUp},
		{"spins find nothing", 100 * retry, false, 99, 100},
		{"spins find frames again", 2 * retry, true, retry, 2 * retry},
	} {
		if got := spins(c.sleeps, c.found); got < c.min || got > c.max {
			t.Errorf("%s: %d spins before %d sleeps, want %d to %d", c.name, got, c.sleeps, c.min, c.max)
		}
	}
}

// TestSpinAdapts checks how the length of sleeps changes a waiter's next spin.
func TestSpinAdapts(t *testing.T) {
	const us = time.Microsecond
	s := Spin{Spinner: &CQWaiter}
	for i, c := range []struct{ slept, want time.Duration }{
		{0, 100 * us}, {999 * us, 200 * us}, {0, 400 * us}, {0, 800 * us}, {0, time.Millisecond}, {0, time.Millisecond},
		{time.Millisecond, 500 * us}, {time.Second, 250 * us}, {time.Second, 125 * us}, {time.Second, 62500}, {time.Second, 31250},
		{time.Second, 15625}, {time.Second, 7812}, {time.Second, 3906}, {time.Second, 0}, {time.Second, 0}, {0, 50 * us},
	} {
		if s.Slept(c.slept); s.Time() != c.want {
			t.Fatalf("after sleep %d, of %v: spin for %v, want %v", i, c.slept, s.Time(), c.want)
		}
	}
}
