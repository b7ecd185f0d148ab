package idle

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestBackoff checks that Backoff is idle after a millisecond of empty polls, until a poll finds
// something.
func TestBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var v Backoff
		for round := range 2 {
			if v.Idle() {
				t.Errorf("round %d: idle at the first empty poll", round)
			}
			time.Sleep(time.Millisecond - 1)
			if v.Idle() {
				t.Errorf("round %d: idle too soon", round)
			}
			time.Sleep(time.Nanosecond)
			if !v.Idle() {
				t.Errorf("round %d: not idle after a millisecond", round)
			}
			v.Reset()
		}
	})
}
