package rest

import "testing"

// TestVigil: a reader looks for more as long as that finds something, and after bad luck only once in a while.
func TestVigil(t *testing.T) {
	var v Vigil
	looks := func(n int, found bool) (looks int) {
		for range n {
			if v.Due() {
				looks++
				v.Looked(found)
			}
		}
		return looks
	}
	for _, c := range []struct {
		what     string
		sleeps   int
		found    bool
		min, max int
	}{
		{"the first", 1, true, 1, 1},
		{"luck", 100, true, 100, 100},
		{"the luck ends", patience, false, patience, patience},
		{"bad luck", 100 * seldom, false, 99, 100},
		{"luck again", 2 * seldom, true, seldom, 2 * seldom},
	} {
		if got := looks(c.sleeps, c.found); got < c.min || got > c.max {
			t.Errorf("%s: %d looks before %d sleeps, want %d to %d", c.what, got, c.sleeps, c.min, c.max)
		}
	}
}
