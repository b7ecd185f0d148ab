package send

import (
	"testing"
	"time"
)

func TestRTT(t *testing.T) {
	const least, timeout, ms = 5 * time.Millisecond, 320 * time.Millisecond, time.Millisecond
	for _, c := range []struct {
		name  string
		trips []time.Duration // -1: a probe is sent
		pto   time.Duration
	}{
		{"none measured", nil, 20 * ms}, // a share of the timeout
		{"a short one", []time.Duration{ms}, least},
		// 40 and four times half of it.
		{"a long one", []time.Duration{40 * ms}, 120 * ms},
		// The variance falls by a quarter.
		{"a steady one", []time.Duration{40 * ms, 40 * ms, 40 * ms}, 85 * ms},
		// But half the trip is left.
		{"a very steady one", append(make([]time.Duration, 0), repeat(40*ms, 60)...), 60 * ms},
		// 45 + 4·25.
		{"a longer one", []time.Duration{40 * ms, 80 * ms}, 145 * ms},
		{"a probe", []time.Duration{40 * ms, -1}, 240 * ms},
		{"a probe before any", []time.Duration{-1, -1}, 80 * ms},
		{"a probe, then an answer", []time.Duration{40 * ms, -1, 40 * ms}, 100 * ms},
	} {
		var r rtt
		now := time.Hour
		for i, trip := range c.trips {
			if trip < 0 {
				r.backOff(timeout, least)
				continue
			}
			if !r.wanted(least) {
				t.Errorf("%s: trip %d is not wanted", c.name, i)
			}
			r.begin(uint32(i), now)
			if r.wanted(least) || r.covers(uint32(i)) || !r.covers(uint32(i)+1) {
				t.Errorf("%s: trip %d is not the one that is measured", c.name, i)
			}
			now += trip
			r.end(now, least)
		}
		if pto := r.probeTimeout(timeout, least); pto != c.pto {
			t.Errorf("%s: probe timeout %v, want %v", c.name, pto, c.pto)
		}
	}
	// Short round trips need no second measurement, and retransmitted packets are not measured
	// (Karn).
	var r rtt
	r.begin(0, now0)
	r.end(now0+ms, least)
	if r.wanted(least) {
		t.Error("another short trip is measured")
	}
	r.begin(1, now0)
	if r.cancel(); r.covers(2) {
		t.Error("an abandoned measurement counts")
	}
}

const now0 = time.Hour

func repeat(d time.Duration, n int) (all []time.Duration) {
	for range n {
		all = append(all, d)
	}
	return all
}
