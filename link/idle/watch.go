package idle

import (
	"sync/atomic"
	"time"
)

// Watch tells the goroutines of a medium whether an application polls the medium. While one does,
// they leave reception to it. One goroutine calls Look every PollingEndsAfter.
type Watch struct {
	polls atomic.Uint32 // notPolled, polled or notSinceLook
}

const (
	notPolled = iota
	polled
	notSinceLook // polled before the last Look, and not since
)

// Poll is called by each poll. It reports whether polling begins. It writes only if the state
// changes, because a store would take the cache line from other pollers.
func (w *Watch) Poll() (began bool) {
	return w.polls.Load() != polled && w.polls.Swap(polled) == notPolled
}

// Polling reports whether an application polls.
func (w *Watch) Polling() bool { return w.polls.Load() != notPolled }

// End ends polling. It reports whether an application polled.
func (w *Watch) End() bool { return w.polls.Swap(notPolled) != notPolled }

// Look reports whether an application has polled since the last Look. If it has not, polling has
// ended, and ended reports whether this call ended it.
func (w *Watch) Look() (polls, ended bool) {
	if w.polls.CompareAndSwap(polled, notSinceLook) {
		return true, false
	}
	return false, w.polls.CompareAndSwap(notSinceLook, notPolled)
}

// SharedWatch is a Watch for any number of goroutines that ask. Each poll reads the clock. This is
// for media whose polls take much longer than that.
type SharedWatch struct {
	last atomic.Int64 // when the last poll was, relative to birth; 0: polling has ended
}

// Poll is called by each poll.
func (w *SharedWatch) Poll() { w.last.Store(int64(time.Since(birth))) }

// Polling reports whether an application has polled within PollingEndsAfter.
func (w *SharedWatch) Polling() bool {
	last := w.last.Load()
	return last != 0 && int64(time.Since(birth))-last < int64(PollingEndsAfter)
}

// End ends polling. It reports whether an application has polled.
func (w *SharedWatch) End() bool { return w.last.Swap(0) != 0 }

var birth = time.Now().Add(-1) // before the program started, so that no later time is 0
