package idle

import (
	"sync/atomic"
	"time"
)

// Watch tells the goroutines of a medium whether an application polls it. While it does, they leave
// reception to it. One goroutine calls Look every PollTimeout.
type Watch struct {
	polls atomic.Uint32 // notPolled, polled or pollStale
}

const (
	notPolled = iota
	polled
	pollStale // no poll since the last Look
)

// Poll is called by each poll. It reports whether polling begins. A poll writes only if it must: a
// store would take the cache line from other pollers.
func (w *Watch) Poll() (began bool) {
	return w.polls.Load() != polled && w.polls.Swap(polled) == notPolled
}

// Polled reports whether an application polls.
func (w *Watch) Polled() bool { return w.polls.Load() != notPolled }

// End ends polling. It reports whether an application polled.
func (w *Watch) End() bool { return w.polls.Swap(notPolled) != notPolled }

// Look reports whether an application has polled since the last Look. If it has not, polling has
// ended, and ended reports whether this call ended it.
func (w *Watch) Look() (polls, ended bool) {
	if w.polls.CompareAndSwap(polled, pollStale) {
		return true, false
	}
	return false, w.polls.CompareAndSwap(pollStale, notPolled)
}

// SharedWatch is a Watch for any number of goroutines that look, and polls that take so long that
// reading the clock does not matter.
type SharedWatch struct {
	last atomic.Int64 // when the last poll was, relative to birth; 0: polling has ended
}

// Poll is called by each poll.
func (w *SharedWatch) Poll() { w.last.Store(int64(time.Since(birth))) }

// Polled reports whether an application has polled within PollTimeout.
func (w *SharedWatch) Polled() bool {
	last := w.last.Load()
	return last != 0 && int64(time.Since(birth))-last < int64(PollTimeout)
}

// End ends polling. It reports whether an application has polled.
func (w *SharedWatch) End() bool { return w.last.Swap(0) != 0 }

var birth = time.Now().Add(-1) // before the program started, so that no later time is 0
