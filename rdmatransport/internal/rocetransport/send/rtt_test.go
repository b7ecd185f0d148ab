package send

import (
	"testing"
	"time"
)

func TestRTT(t *testing.T) {
	const ms = time.Millisecond
	for _, c := range []struct {
		name   string
		trips  []time.Duration // 0: a probe is sent, and answered later than the others
		likely time.Duration
		wait   time.Duration // for a probe
		late   time.Duration // of the last answer; -1 if that is unknown
	}{
		{"none measured", nil, 0, 20 * ms, -1},
		// 40 and four times half of it.
		{"the first", []time.Duration{40 * ms}, 120 * ms, 120 * ms, -1},
		// The variance falls by a quarter.
		{"a steady one", []time.Duration{40 * ms, 40 * ms, 40 * ms}, 85 * ms, 85 * ms, 0},
		// But half the trip is left.
		{"a very steady one", repeat(40*ms, 60), 60 * ms, 60 * ms, 0},
		{"a short one", repeat(4*time.Microsecond, 60), 6 * time.Microsecond, 6 * time.Microsecond, 0},
		// About 10 and four times 5: short trips that vary are not taken for their least.
		{"short ones", alternate(5*time.Microsecond, 15*time.Microsecond, 200), 31625 * time.Nanosecond, 31625 * time.Nanosecond, 0},
		// 45 + 4·25.
		{"a longer one", []time.Duration{40 * ms, 80 * ms}, 145 * ms, 145 * ms, 0},
		// 120 is what was likely.
		{"a late one", []time.Duration{40 * ms, 140 * ms}, 212500 * time.Microsecond, 212500 * time.Microsecond, 20 * ms},
		{"a probe", []time.Duration{40 * ms, 0}, 120 * ms, 120 * ms, -1},
		{"probes before any", []time.Duration{0, 0}, 0, 80 * ms, -1},
		{"a probe, then an answer", []time.Duration{40 * ms, 0, 40 * ms}, 100 * ms, 100 * ms, 0},
	} {
		var r rtt
		now, late := time.Hour, time.Duration(-1)
		for i, trip := range c.trips {
			if trip != 0 {
				r.awaitWanted(t)
			}
			if trip == 0 {
				r.backOff()
				r.dueProbe()
				r.sentProbe(now)
				if r.wanted() || !r.covers(0) {
					t.Errorf("%s: trip %d is not the one that is measured", c.name, i)
				}
				r.endProbe(now+r.likely(), now)
				continue
			}
			r.begin(uint32(i), now)
			if r.wanted() || r.covers(uint32(i)) || !r.covers(uint32(i)+1) {
				t.Errorf("%s: trip %d is not the one that is measured", c.name, i)
			}
			now += trip
			var known bool
			if late, known = r.end(now); !known {
				late = -1
			}
		}
		first := r.likely()
		if !r.measured() {
			first = 20 * ms
		}
		if wait := r.probeTimeout(first); r.likely() != c.likely || wait != c.wait || late != c.late {
			t.Errorf("%s: likely %v, want %v; probe after %v, want %v; late by %v, want %v", c.name, r.likely(), c.likely, wait, c.wait,
				late, c.late)
		}
	}
	// Retransmitted packets are not measured (Karn).
	var r rtt
	r.begin(1, now0)
	if r.cancel(); r.covers(2) {
		t.Error("an abandoned measurement counts")
	}
	// The clock is rarely read once much is known.
	for range 200 {
		r.begin(0, now0)
		r.end(now0 + ms)
		r.awaitWanted(t)
	}
	packets := 0
	for range 10 {
		r.begin(0, now0)
		r.end(now0 + ms)
		packets += r.awaitWanted(t)
	}
	if packets != 160 {
		t.Errorf("10 of %d packets are measured", packets)
	}
	r.backOff()
	r.dueProbe()
	r.sentProbe(now0)
	r.endProbe(now0+ms, now0)
	if !r.wanted() {
		t.Error("not measured after a probe")
	}
}

// awaitWanted returns after how many packets one is measured.
func (r *rtt) awaitWanted(t *testing.T) (packets int) {
	for packets = 1; !r.wanted(); packets++ {
		if packets > sampled {
			t.Fatal("no packet is measured")
		}
	}
	return packets
}

// TestAnswerAfterProbe checks what an answer after a probe says. The likely round trip is 150 µs,
// and the shortest was 40 µs. The probe was sent after 350 µs.
func TestAnswerAfterProbe(t *testing.T) {
	const us = time.Microsecond
	for _, c := range []struct {
		name   string
		probes int
		after  time.Duration
		late   time.Duration // -1 if nothing is known
	}{
		{"at once", 1, 0, 200 * us},
		{"sooner than the answer to a probe", 1, 19 * us, 219 * us},
		{"from a queue that is empty now", 1, 20 * us, -1},
		{"usual", 1, 100 * us, -1},
		{"hardly late", 1, 150 * us, -1},
		{"late also as the answer to a probe", 1, 151 * us, us},
		{"later", 1, 1000 * us, 850 * us},
		{"at once, to an earlier probe", 2, 0, -1},
		{"before the probe was sent", 0, 10 * us, 210 * us},
	} {
		r := rtt{smoothed: inEighths(100 * us), shortest: uint16(inEighths(40 * us)), variance: 1}
		r.backOff()
		r.dueProbe()
		for probe := range c.probes {
			if probe > 0 {
				r.backOff()
				r.dueProbe()
			}
			r.sentProbe(now0 + 350*us)
		}
		late, known := r.endProbe(now0+350*us+c.after, now0)
		if !known {
			late = -1
		}
		if late != c.late {
			t.Errorf("%s: late by %v, want %v", c.name, late, c.late)
		}
		if r.covers(1) {
			t.Error("it still awaits an answer")
		}
	}
}

const now0 = time.Hour

func repeat(d time.Duration, n int) (all []time.Duration) {
	for range n {
		all = append(all, d)
	}
	return all
}

func alternate(a, b time.Duration, n int) (all []time.Duration) {
	for range n {
		all = append(all, a, b)
	}
	return all
}
