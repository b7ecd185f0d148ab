package idle

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// TestPollerIdles checks that a poller is idle after a millisecond of empty polls, until a poll
// finds something.
func TestPollerIdles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p Poller
		p.Init(Ring)
		for round := range 2 {
			if p.idling() {
				t.Errorf("round %d: idle at the first empty poll", round)
			}
			time.Sleep(backoffAfter - 1)
			if p.idling() {
				t.Errorf("round %d: idle too soon", round)
			}
			time.Sleep(time.Nanosecond)
			if !p.idling() {
				t.Errorf("round %d: not idle after %v", round, backoffAfter)
			}
			p.Found()
		}
	})
}

// TestPollerActions checks what empty polls do on each medium: how many of 4096 yield to
// goroutines, and how many yield the thread.
func TestPollerActions(t *testing.T) {
	for _, c := range []struct {
		name            string
		medium          Medium
		procs           uint32
		idle            bool
		goscheds, yield int
	}{
		{"device", Device, procsNormal, false, 8, 128},
		{"device, one P", Device, procsOne, false, 1024, 128},
		{"device, idle", Device, procsNormal, true, 128, 0},
		{"ring", Ring, procsNormal, false, 1, 128},
		{"ring, one P", Ring, procsOne, false, 128, 128},
		{"ring, spare Ps", Ring, procsSpare, false, 0, 128},
		{"ring, spare Ps, idle", Ring, procsSpare, true, 0, 0},
		{"hub", Hub, procsNormal, false, 1, 512},
		{"hub, one P", Hub, procsOne, false, 512, 512},
	} {
		p := Poller{medium: c.medium}
		goscheds, yields := 0, 0
		for n := uint32(1); n <= 4096; n++ {
			if n%p.interval(c.procs) != 0 {
				continue
			}
			a := p.decide(n, c.procs, c.idle)
			if a.gosched {
				goscheds++
			}
			if a.yield {
				yields++
			}
			if a.sleep != c.idle {
				t.Errorf("%s: sleep %t, want %t", c.name, a.sleep, c.idle)
			}
		}
		if goscheds != c.goscheds || yields != c.yield {
			t.Errorf("%s: %d yields to goroutines and %d of the thread, want %d and %d", c.name, goscheds, yields, c.goscheds, c.yield)
		}
	}
}

// TestOneP checks that with GOMAXPROCS 1 a goroutine that waits without sleeping lets other
// goroutines run.
func TestOneP(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	poller := func(m Medium) func() {
		p := new(Poller)
		p.Init(m)
		p.SleepAfter(time.Hour)
		return p.Empty
	}
	for name, empty := range map[string]func(){
		"device": poller(Device), "ring": poller(Ring), "hub": poller(Hub),
		"reader": func() func() {
			r := NewReader(&DeviceReader, WaitPoll)
			return func() { r.Empty() }
		}(),
	} {
		t.Run(name, func(t *testing.T) {
			var n atomic.Int64
			var over atomic.Bool
			var polling sync.WaitGroup
			polling.Go(func() {
				for !over.Load() {
					n.Add(1)
					empty()
				}
			})
			const turns = 100
			runtime.Gosched()
			before := n.Load()
			for range turns {
				runtime.Gosched()
			}
			if n := n.Load() - before; n > 40*turns {
				t.Errorf("%d empty polls while another goroutine ran %d times", n, turns)
			}
			over.Store(true)
			polling.Wait()
		})
	}
}

func BenchmarkPollerEmpty(b *testing.B) {
	b.ReportAllocs()
	var p Poller
	p.Init(Ring)
	p.SleepAfter(time.Hour)
	for b.Loop() {
		p.Empty()
	}
}
