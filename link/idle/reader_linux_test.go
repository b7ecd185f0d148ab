package idle

import (
	"runtime"
	"sync/atomic"
	"testing"
	"time"
)

// TestReader checks what a reader does at each empty read after frames.
func TestReader(t *testing.T) {
	const us = time.Microsecond
	start := time.Unix(1000, 0)
	type step struct {
		at             time.Duration
		received, bulk bool   // frames come at that time; otherwise a read finds nothing
		want           action // if a read finds nothing
	}
	for _, c := range []struct {
		name    string
		spinner Spinner
		wait    Wait
		steps   []step
	}{
		{"no frames yet", DeviceReader, WaitAdaptive, []step{{at: 0, want: sleepNow}, {at: 10 * us, want: sleepNow}}},
		{"no frames yet, never sleeping", DeviceReader, WaitPoll, []step{{at: 0}, {at: time.Second}}},
		{"small frames", DeviceReader, WaitAdaptive, []step{
			{at: 0, received: true},
			{at: 1 * us, want: gosched},
			{at: 2 * us},
			{at: 50 * us},
			{at: 51 * us, want: sleepNow},
			{at: 60 * us, received: true},
			{at: 61 * us, want: gosched},
		}},
		{"superframes", DeviceReader, WaitAdaptive, []step{
			{at: 0, received: true, bulk: true},
			{at: 1 * us, want: gosched}, // has never yielded
			{at: 2 * us, received: true, bulk: true},
			{at: 3 * us},
			{at: 40 * us, received: true, bulk: true},
			{at: 80 * us},
			{at: 131 * us, want: gosched}, // before it sleeps
			{at: 132 * us, want: sleepNow},
			{at: 600 * us, received: true, bulk: true},
			{at: 601 * us},
			{at: 632 * us, want: gosched}, // goschedInterval after the last
		}},
		{"superframes, sleeping at once", DeviceReader, WaitEvent, []step{
			{at: 0, received: true, bulk: true},
			{at: 1 * us, want: gosched},
			{at: 2 * us, want: sleepNow},
			{at: 3 * us, received: true, bulk: true},
			{at: 4 * us, want: gosched},
			{at: 5 * us, want: sleepNow},
		}},
		{"a socket's reader", SocketReader, WaitAdaptive, []step{
			{at: 0, received: true},
			{at: 1 * us, want: gosched},
			{at: 20 * us},
			{at: 21 * us, want: sleepNow},
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := NewReader(&c.spinner, c.wait)
			for _, st := range c.steps {
				if st.received {
					r.Received(st.bulk)
				} else if got := r.decide(start.Add(st.at)); got != st.want {
					t.Errorf("%v: action %d, want %d", st.at, got, st.want)
				}
			}
		})
	}
}

// TestReaderYieldsWhileBusy checks that with one P a reader yields between superframes that keep
// coming. An empty read that yields begins a new count.
func TestReaderYieldsWhileBusy(t *testing.T) {
	for _, c := range []struct {
		name    string
		spinner Spinner
		procs   int
		bulk    bool
		yields  bool
	}{
		{"one P", DeviceReader, 1, true, true},
		{"two Ps", DeviceReader, 2, true, false},
		{"small frames", DeviceReader, 1, false, false},
		{"a socket's reader", SocketReader, 1, true, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(c.procs))
			r := NewReader(&c.spinner, WaitAdaptive)
			now := time.Unix(1000, 0)
			r.decide(now)
			r.Received(c.bulk) // the first of the count
			due := func(frames int) (yields int) {
				for range frames {
					if r.dueWhileBusy() {
						yields++
					}
				}
				return yields
			}
			if got := due(superframesPerGosched - 2); got != 0 {
				t.Errorf("%d yields before superframesPerGosched superframes", got)
			}
			if got := due(1); got > 0 != c.yields {
				t.Errorf("%d yields at the last of superframesPerGosched superframes", got)
			}
			due(superframesPerGosched - 1)
			r.Received(false) // now an empty read yields
			r.bulk = c.bulk
			if got := r.decide(now); got != gosched {
				t.Errorf("action %d at an empty read after frames, want %d", got, gosched)
			}
			if got := due(superframesPerGosched - 1); got != 0 {
				t.Errorf("%d yields soon after one at an empty read", got)
			}
		})
	}
}

// TestReaderAdapts checks that a reader sleeps at once after some spins that found nothing. It then
// does not yield first if it sleeps in Go's scheduler. When frames are frequent, it spins again.
func TestReaderAdapts(t *testing.T) {
	const us = time.Microsecond
	for _, spinner := range []*Spinner{&DeviceReader, &SocketReader} {
		r := NewReader(spinner, WaitAdaptive)
		now := time.Unix(1000, 0)
		spins := func(gap time.Duration, frames int) (spins, yields int) {
			for range frames {
				r.Received(false)
				next := now.Add(gap)
				spun := false
				for ; now.Before(next); now = now.Add(us) {
					switch r.decide(now) {
					case readAgain:
						spun = true
						continue
					case gosched:
						yields++
						continue
					}
					now = next
				}
				now = next
				if spun {
					spins++
				}
			}
			return spins, yields
		}
		for _, c := range []struct {
			gap               time.Duration
			frames, min, most int
		}{{15 * us, 100, 100, 100}, {200 * us, 1000, 30, 40}, {15 * us, 100, 60, 100}} {
			got, yields := spins(c.gap, c.frames)
			if got < c.min || got > c.most {
				t.Errorf("%d frames, one per %v: %d spins, want %d to %d", c.frames, c.gap, got, c.min, c.most)
			}
			want := map[bool]int{true: got, false: c.frames}[spinner.Parks]
			if yields < want || yields > want+5 { // one in readsPerGosched reads yields too
				t.Errorf("%d frames, one per %v: %d yields, want %d", c.frames, c.gap, yields, want)
			}
		}
	}
}

// TestYieldBeforeSleep checks that with one P every runnable goroutine has run when the call
// returns.
func TestYieldBeforeSleep(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	var ran atomic.Int32
	for asked := int32(1); asked <= 1000; asked++ {
		go ran.Add(1)
		if YieldBeforeSleep(); ran.Load() != asked {
			t.Fatalf("%d goroutines were runnable, and %d have run", asked, ran.Load())
		}
	}
}
