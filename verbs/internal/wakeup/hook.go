package wakeup

import "sync"

// Hook is the function that an application wants to have called when the number of events in a queue changes other than by
// its taking one. It is called on a goroutine of its own, with no lock held, so that it may call what it likes: whoever adds an event may
// hold locks of the application's objects. No other lock is taken while mu is held.
type Hook struct {
	mu      sync.Mutex
	f       func(n int)
	untold  int
	running chan struct{} // closed when the call that is running has returned; nil if none is
}

// Set sets the function; nil ends the calls. pending is how many events there are. Set is called with the queue's lock held. When that is
// unlocked, the caller calls the function that Set returns: it waits until a call of the former function has returned.
func (h *Hook) Set(f func(n int), pending int) (wait func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.f, h.untold = f, 0
	running := h.running
	h.change(pending)
	return func() {
		if running != nil {
			<-running
		}
	}
}

// Changed has the function called, if there is one, with the number of events that were added, or the negative number of those that
// were dropped. Calls are made one at a time, and several changes may be one call.
func (h *Hook) Changed(n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.change(n)
}

// change is Changed. mu is held.
func (h *Hook) change(n int) {
	if h.f == nil || n == 0 {
		return
	}
	if h.untold += n; h.running == nil {
		h.running = make(chan struct{})
		go h.run()
	}
}

// Wait waits until the function has been called for all changes so far. It is not called by the function itself.
func (h *Hook) Wait() {
	for {
		h.mu.Lock()
		running := h.running
		h.mu.Unlock()
		if running == nil {
			return
		}
		<-running
	}
}

func (h *Hook) run() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for h.f != nil && h.untold != 0 {
		f, n := h.f, h.untold
		h.untold = 0
		h.mu.Unlock()
		f(n)
		h.mu.Lock()
		close(h.running)
		h.running = make(chan struct{})
	}
	close(h.running)
	h.running = nil
}
