package receive

import (
	"testing"
	"time"
)

// An RNR NAK of PSN 10 requested a wait of one second from time 0. Which packets after it prove
// that 10 was retransmitted and lost?
func TestRepeatedWithout(t *testing.T) {
	type packet struct {
		psn  uint32
		at   time.Duration
		want bool
	}
	const early, late = 999 * time.Millisecond, time.Second
	for _, c := range []struct {
		name    string
		packets []packet
	}{
		{"in flight from before", []packet{{11, early, false}, {12, early, false}, {13, late, false}}},
		{"the first since, in time", []packet{{11, early, false}}},
		{"the first since, when the time is over", []packet{{11, late, true}}},
		{"gone back", []packet{{11, early, false}, {12, early, false}, {11, early, true}}},
		{"one packet twice", []packet{{11, early, false}, {12, early, false}, {12, early, false}}},
		{"the last again, when the time is over", []packet{{11, early, false}, {12, late, false}, {12, late, true}}},
	} {
		var w rnrWait
		w.begin(10, late)
		for _, p := range c.packets {
			if got := w.retransmissionLost(p.psn, 10, func() time.Duration { return p.at }); got != p.want {
				t.Errorf("%s: PSN %d at %v: %v", c.name, p.psn, p.at, got)
			}
			w.record(p.psn)
		}
	}
}
