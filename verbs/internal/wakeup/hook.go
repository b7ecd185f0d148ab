package wakeup

import "sync"

// Hook calls an application's function when the number of events in a queue changes for a reason
// other than the application taking one. The function runs on its own goroutine with no lock held,
// so it may call any method. A direct call would not allow that: the goroutine that adds an event
// may hold locks of the application's objects. No other lock is taken while mu is held.
type Hook struct {
	mu      sync.Mutex
	clock   Clock // set with f
	f       func(n int)
	pending int // the change since the last call
	calls   Calls
	start   func() // run
}

// Set sets the function; nil ends the calls. pending is the current number of events. The caller
// holds the queue's lock. After unlocking it, the caller calls the returned function, which waits
// until a call of the previous function has returned.
func (h *Hook) Set(c Clock, f func(n int), pending int) (wait func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.clock, h.f, h.pending = c, f, 0
	h.start = h.run
	returned := h.calls.Current()
	h.change(pending)
	return func() {
		if returned != nil {
			Receive(c, returned)
		}
	}
}

// Changed schedules a call of the function, if there is one. n is the number of events that were
// added, or minus the number that were dropped. Calls are made one at a time, and several changes
// may be coalesced into one call.
func (h *Hook) Changed(n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.change(n)
}

// change implements Changed. mu is held.
func (h *Hook) change(n int) {
	if h.f == nil || n == 0 {
		return
	}
	h.pending += n
	h.calls.Start(h.clock, h.start)
}

// Wait waits until the function has been called for all changes so far. The function itself must
// not call Wait.
func (h *Hook) Wait() {
	for {
		h.mu.Lock()
		returned, c := h.calls.Current(), h.clock
		h.mu.Unlock()
		if returned == nil {
			return
		}
		Receive(c, returned)
	}
}

func (h *Hook) run() {
	h.mu.Lock()
	defer func() { // also if f panics
		h.calls.End()
		h.mu.Unlock()
	}()
	for h.f != nil && h.pending != 0 {
		f, n := h.f, h.pending
		h.pending = 0
		Unlocked(&h.mu, func() { f(n) })
		h.calls.Returned()
	}
}
