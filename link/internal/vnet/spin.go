//go:build linux

package vnet

import (
	"time"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/rest"
)

// spin decides what the link's goroutine does when a read has found nothing: let other goroutines run, look again, or
// sleep. It is told what happened by received, empty, yielded, sleep and stop; its questions change nothing.
//
// After traffic, whoever the frames have woken should run before more frames are waited for. But each runtime.Gosched may
// wake a thread that looks for work and takes a processor from somebody, so that between superframes, which come by the
// thousand, it happens once in goschedInterval only.
type spin struct {
	traffic bool      // frames were received since the last yield
	bulk    bool      // the last of them was a superframe
	last    time.Time // when the goroutine last yielded
	until   time.Time // when it stops spinning; zero while traffic comes, and when it has stopped
	vigil   rest.Vigil
}

// received takes in that frames came; bulk says that the last was a superframe.
func (s *spin) received(bulk bool) {
	if !s.until.IsZero() {
		s.vigil.Looked(true)
	}
	s.traffic, s.bulk, s.until = true, bulk, time.Time{}
}

// empty takes in that a read found nothing. The first one after traffic starts the time for which to spin, if that has been worth it.
func (s *spin) empty(now time.Time) {
	if s.traffic && s.until.IsZero() && s.vigil.Due() {
		s.until = now.Add(spinTime)
	}
}

// yieldDue reports whether other goroutines are to run now.
func (s *spin) yieldDue(now time.Time, wait link.Wait) bool {
	if !s.traffic {
		return false
	}
	sleepsNext := wait == link.WaitEvent || !now.Before(s.until)
	return !s.bulk || sleepsNext || now.Sub(s.last) >= goschedInterval
}

// yielded takes in that they have run.
func (s *spin) yielded(now time.Time) { s.traffic, s.last = false, now }

// spinning reports whether more traffic is expected soon enough to look again rather than sleep.
func (s *spin) spinning(now time.Time) bool { return !s.until.IsZero() && now.Before(s.until) }

// sleep takes in that the goroutine sleeps.
func (s *spin) sleep() {
	if !s.until.IsZero() {
		s.vigil.Looked(false)
	}
	s.stop()
}

// stop takes in that the goroutine leaves reception to others.
func (s *spin) stop() { s.traffic, s.until = false, time.Time{} }
