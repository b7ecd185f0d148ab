package idle

import "testing"

// TestSpinGivesUp checks that a reader's spins continue while they find something, and become rare
// once they do not.
func TestSpinGivesUp(t *testing.T) {
	s := spin{Spinner: &RingReader}
	giveUp, retry := RingReader.GiveUp, RingReader.RetryInterval
	spins := func(n int, found bool) (spins int) {
		for range n {
			if s.next() > 0 {
				spins++
				s.spun(found)
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
