package send

import (
	"testing"
	"time"

	"github.com/softrnic/softrnic/rdmatransport/wire"
)

// trips passes n round trips of the given length to a controller, each with a full window
// acknowledged.
func trips(c *ByDelay, now *time.Duration, window uint32, n int, took time.Duration) uint32 {
	for range n {
		*now += took
		window = c.OnRoundTrip(window, took, *now)
		for acked := window; acked > 0; {
			part := min(4, acked)
			window, acked = c.OnAck(window, part), acked-part
		}
	}
	return window
}

func TestByDelay(t *testing.T) {
	const ms = time.Millisecond
	for _, c := range []struct {
		name     string
		do       func(c *ByDelay, trip func(n int, took time.Duration) uint32) uint32
		min, max uint32
	}{
		{"it doubles while nothing is in the queue",
			func(_ *ByDelay, trip func(int, time.Duration) uint32) uint32 { return trip(5, 10*ms) }, 16 << 5, 16 << 5},
		{"and falls halfway to its target", func(_ *ByDelay, trip func(int, time.Duration) uint32) uint32 {
			trip(6, 10*ms)        // 1,024
			return trip(1, 20*ms) // to 512 and some 32
		}, 700, 860},
		{"which it reaches", func(_ *ByDelay, trip func(int, time.Duration) uint32) uint32 {
			trip(6, 10*ms)
			return trip(80, 11*ms) // w/11 is √w; slower as it gets closer
		}, 121, 220},
		{"from where it grows slowly, and then faster", func(_ *ByDelay, trip func(int, time.Duration) uint32) uint32 {
			trip(6, 10*ms)
			w := trip(80, 11*ms)
			w2 := trip(2, 10*ms)
			w6 := trip(4, 10*ms)
			return 100 * (trip(2, 10*ms) - w6) / (w2 - w) // per cent
		}, 150, 1000},
		{"few losses change nothing", func(c *ByDelay, trip func(int, time.Duration) uint32) uint32 {
			trip(6, 10*ms)
			w := trip(1, 20*ms)
			for range 9 {
				if got := c.OnLoss(w, w/100); got != w {
					return 0
				}
			}
			return w
		}, 700, 860},
		{"many do, once in a round trip", func(c *ByDelay, trip func(int, time.Duration) uint32) uint32 {
			trip(6, 10*ms)
			w := trip(1, 20*ms)
			w = c.OnLoss(w, w/5)
			return c.OnLoss(w, w/5)
		}, 490, 602},
		{"as any does at the beginning", func(c *ByDelay, trip func(int, time.Duration) uint32) uint32 {
			return c.OnLoss(trip(4, 10*ms), 1)
		}, 179, 179},
		{"a timeout halves it", func(c *ByDelay, trip func(int, time.Duration) uint32) uint32 {
			return c.OnTimeout(trip(4, 10*ms))
		}, 128, 128},
		{"after a second of queues it uses half of it", func(c *ByDelay, trip func(int, time.Duration) uint32) uint32 {
			trip(6, 10*ms)
			trip(40, 11*ms)
			w := trip(50, 11*ms) // 990 ms
			return trip(1, 11*ms) * 2 * 100 / w
		}, 96, 104},
	} {
		now, window := time.Hour, uint32(delayStart)
		cc := NewByDelay(2, new(BaseRTT))
		got := c.do(cc, func(n int, took time.Duration) uint32 {
			window = trips(cc, &now, window, n, took)
			return window
		})
		if got < c.min || got > c.max {
			t.Errorf("%s: %d, want %d to %d", c.name, got, c.min, c.max)
		}
	}
}

// TestBase: connections share the minimum round trip. They forget it after some minutes, and
// measure it again together.
func TestBase(t *testing.T) {
	const ms = time.Millisecond
	var b BaseRTT
	for _, c := range []struct {
		at, took, shortest time.Duration
		draining           bool
	}{
		{0, 15 * ms, 15 * ms, false},
		{5 * ms, 10 * ms, 10 * ms, false},
		{900 * ms, 16 * ms, 10 * ms, false},
		{1010 * ms, 16 * ms, 10 * ms, true},
		{1030 * ms, 12 * ms, 10 * ms, true},
		{1040 * ms, 12 * ms, 10 * ms, false},
		{2 * time.Second, 16 * ms, 10 * ms, false},
		{2050 * ms, 16 * ms, 10 * ms, true},
		{2060 * ms, 10 * ms, 10 * ms, false},
		{6 * time.Minute, 20 * ms, 10 * ms, true},
		{12 * time.Minute, 20 * ms, 20 * ms, false},
	} {
		if shortest, draining := b.update(c.took, time.Hour+c.at, 16*ms); shortest != c.shortest || draining != c.draining {
			t.Errorf("at %v: %v, draining %v; want %v, %v", c.at, shortest, draining, c.shortest, c.draining)
		}
	}
}

// TestDelays: several packets are sampled at a time, spread over a round trip. Retransmitted ones
// are not.
func TestDelays(t *testing.T) {
	const ms = time.Millisecond
	var d rttSamples
	now := time.Hour
	answered := func(una uint32, want time.Duration) {
		t.Helper()
		took, _, ok := d.answered(func() time.Duration { return now }, func(psn uint32) bool { return wire.PSNDiff(una, psn) > 0 })
		if ok != (want != 0) || ok && took != want {
			t.Errorf("everything before %d: %v, %v, want %v", una, took, ok, want)
		}
	}
	d.begin(0xffffff, now)
	now += 16 * ms
	answered(0xffffff, 0)
	answered(0, 16*ms)
	for psn := range uint32(9) { // 2 ms is an eighth
		d.begin(psn, now)
		now += ms
	}
	if d.n != 5 {
		t.Errorf("%d are measured, want 5", d.n)
	}
	answered(5, 5*ms) // the last of 0, 2 and 4
	d.cancel(8)
	answered(9, 3*ms) // of 6
	answered(9, 0)
}
