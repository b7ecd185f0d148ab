package idle

import "testing"

// TestProgress checks which of a series of empty polls make progress, and that they become rare
// where completions come without.
func TestProgress(t *testing.T) {
	var p Progress
	calls := func(polls int, from uint32) (n int) {
		for range polls {
			if p.Due(from) {
				n++
			}
			p.Empty()
		}
		return n
	}
	if n := calls(1000, 1); n != 1000 {
		t.Errorf("%d calls in 1000 polls", n)
	}
	p.Found(true)
	if n := calls(1000, 2); n != 999 {
		t.Errorf("%d calls in 1000 polls but the first", n)
	}
	p.Found(false)
	if n := calls(10*PollsPerOwnProgress, 1); n != 10 {
		t.Errorf("completions come without progress: %d calls in %d polls", n, 10*PollsPerOwnProgress)
	}
	p.Restart()
	if n := calls(PollsPerOwnProgress-1, 1); n != 0 {
		t.Errorf("a new series: %d calls", n)
	}
	p.Found(true)
	if n := calls(10, 1); n != 10 {
		t.Errorf("completions come with progress again: %d calls in 10 polls", n)
	}
}
