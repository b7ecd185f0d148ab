package rest

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestVain: polls are in vain once they have found nothing for a while, until one finds something.
func TestVain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var v Vain
		for round := range 2 {
			if v.In() {
				t.Errorf("round %d: the first poll is in vain", round)
			}
			time.Sleep(time.Millisecond - 1)
			if v.In() {
				t.Errorf("round %d: in vain too soon", round)
			}
			time.Sleep(time.Nanosecond)
			if !v.In() {
				t.Errorf("round %d: not in vain after a millisecond", round)
			}
			v.Found()
		}
	})
}
