package idle

import "testing"

// TestAdaptiveSpin checks that spins continue while they find something, and become rare once they
// do not.
func TestAdaptiveSpin(t *testing.T) {
	var v AdaptiveSpin
	spins := func(n int, found bool) (spins int) {
		for range n {
			if v.ShouldSpin() {
				spins++
				v.Spun(found)
			}
		}
		return spins
	}
	for _, c := range []struct {
		what     string
		sleeps   int
		found    bool
		min, max int
	}{
		{"the first", 1, true, 1, 1},
		{"luck", 100, true, 100, 100},
		{"spins stop finding frames", maxEmptySpins, false, maxEmptySpins, maxEmptySpins},
		{"spins find nothing", 100 * retryInterval, false, 99, 100},
		{"spins find frames again", 2 * retryInterval, true, retryInterval, 2 * retryInterval},
	} {
		if got := spins(c.sleeps, c.found); got < c.min || got > c.max {
			t.Errorf("%s: %d spins before %d sleeps, want %d to %d", c.what, got, c.sleeps, c.min, c.max)
		}
	}
}
