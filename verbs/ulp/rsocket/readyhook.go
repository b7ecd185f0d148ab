package rsocket

import (
	"sync"

	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/internal/wakeup"
)

// readyHook calls the function of OnReady, on its own goroutine with no lock held. The socket's
// lock is held in set and changed. No other lock is taken while mu is held.
type readyHook struct {
	mu      sync.Mutex
	f       func(Ready)
	state   Ready
	pending bool
	calls   wakeup.Calls
	start   func() // run
}

// set sets the function and schedules a call of it. After unlocking the socket, the caller calls
// the returned function, which waits until a call of the previous function has returned.
func (h *readyHook) set(c verbs.Clock, f func(Ready), ready func() Ready) (wait func()) {
	h.mu.Lock()
	h.f, h.pending = f, false
	h.start = h.run
	returned := h.calls.Current()
	h.mu.Unlock()
	h.changed(c, ready)
	return func() {
		if returned != nil {
			wakeup.Receive(c, returned)
		}
	}
}

// changed schedules a call of the function, if there is one.
func (h *readyHook) changed(c verbs.Clock, ready func() Ready) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.f == nil {
		return
	}
	h.state, h.pending = ready(), true
	h.calls.Start(c, h.start)
}

func (h *readyHook) run() {
	h.mu.Lock()
	defer func() { // also if f panics
		h.calls.End()
		h.mu.Unlock()
	}()
	for h.f != nil && h.pending {
		f, state := h.f, h.state
		h.pending = false
		wakeup.Unlocked(&h.mu, func() { f(state) })
		h.calls.Returned()
	}
}
