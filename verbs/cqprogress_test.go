package verbs

import (
	"testing"
	"time"
)

// TestProgress checks which of a series of empty polls make progress, and that they become rare
// where completions come without.
func TestProgress(t *testing.T) {
	var p cqProgress
	calls := func(polls int, from uint32) (n int) {
		for range polls {
			if p.due(from) {
				n++
			}
			p.pollEmpty()
		}
		return n
	}
	if n := calls(1000, 1); n != 1000 {
		t.Errorf("%d calls in 1000 polls", n)
	}
	p.pollFound(true)
	if n := calls(1000, 2); n != 999 {
		t.Errorf("%d calls in 1000 polls but the first", n)
	}
	p.pollFound(false)
	if n := calls(10*pollsPerOwnProgress, 1); n != 10 {
		t.Errorf("completions come without progress: %d calls in %d polls", n, 10*pollsPerOwnProgress)
	}
	p.restart()
	if n := calls(pollsPerOwnProgress-1, 1); n != 0 {
		t.Errorf("a new series: %d calls", n)
	}
	p.pollFound(true)
	if n := calls(10, 1); n != 10 {
		t.Errorf("completions come with progress again: %d calls in 10 polls", n)
	}
}

// TestNextSpin checks how the length of sleeps changes the polling time of CQ.Wait.
func TestNextSpin(t *testing.T) {
	const us = time.Microsecond
	spin := firstSpin
	for i, c := range []struct{ slept, want time.Duration }{
		{0, 100 * us}, {999 * us, 200 * us}, {0, 400 * us}, {0, 800 * us}, {0, time.Millisecond}, {0, time.Millisecond},
		{time.Millisecond, 500 * us}, {time.Second, 250 * us}, {time.Second, 125 * us}, {time.Second, 62500}, {time.Second, 31250},
		{time.Second, 15625}, {time.Second, 7812}, {time.Second, 3906}, {time.Second, 0}, {time.Second, 0}, {0, 50 * us},
	} {
		if spin = nextSpin(spin, c.slept); spin != c.want {
			t.Fatalf("after sleep %d, of %v: spin for %v, want %v", i, c.slept, spin, c.want)
		}
	}
}
