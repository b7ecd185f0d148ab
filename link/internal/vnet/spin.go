//go:build linux

package vnet

import (
	"time"

	"github.com/softrnic/softrnic/internal/idle"
	"github.com/softrnic/softrnic/link"
)

// spin decides what the link's goroutine does after a read that found nothing: yield to other
// goroutines, read again, or sleep. The methods received, empty, yielded, sleep and stop record
// events; the others only query.
//
// After traffic, goroutines that the frames have woken should run before the next wait. But each
// runtime.Gosched may wake a thread that looks for work and takes a processor from somebody.
// Between superframes, which come by the thousand, the goroutine therefore yields only once in
// goschedInterval.
type spin struct {
	traffic  bool      // frames were received since the last yield
	bulk     bool      // the last frame was a superframe
	last     time.Time // when the goroutine last yielded
	until    time.Time // when to stop spinning; zero: not spinning
	adaptive idle.AdaptiveSpin
}

// received records that frames came. bulk says that the last was a superframe.
func (s *spin) received(bulk bool) {
	if !s.until.IsZero() {
		s.adaptive.Spun(true)
	}
	s.traffic, s.bulk, s.until = true, bulk, time.Time{}
}

// empty records that a read found nothing. The first one after traffic starts the spin, if spinning
// pays.
func (s *spin) empty(now time.Time) {
	if s.traffic && s.until.IsZero() && s.adaptive.ShouldSpin() {
		s.until = now.Add(spinTime)
	}
}

// yieldDue reports whether other goroutines should run now.
func (s *spin) yieldDue(now time.Time, wait link.Wait) bool {
	if !s.traffic {
		return false
	}
	sleepsNext := wait == link.WaitEvent || !now.Before(s.until)
	return !s.bulk || sleepsNext || now.Sub(s.last) >= goschedInterval
}

// yielded records that other goroutines have run.
func (s *spin) yielded(now time.Time) { s.traffic, s.last = false, now }

// spinning reports whether to read again rather than sleep.
func (s *spin) spinning(now time.Time) bool { return !s.until.IsZero() && now.Before(s.until) }

// sleep records that the goroutine is about to sleep.
func (s *spin) sleep() {
	if !s.until.IsZero() {
		s.adaptive.Spun(false)
	}
	s.stop()
}

// stop records that another goroutine receives from now on.
func (s *spin) stop() { s.traffic, s.until = false, time.Time{} }
