package rsocket

import "sync"

// readyHook is the function of OnReady. It is called on a goroutine of its own, with no lock held. The socket's lock guards set and
// changed; no other lock is taken while mu is held.
type readyHook struct {
	mu      sync.Mutex
	f       func(Ready)
	state   Ready
	untold  bool
	running chan struct{} // closed when the call that is running has returned; nil if none is
}

// set sets the function, and has it called. When the socket is unlocked, the caller calls what set returns: it waits until a call of the
// former function has returned.
func (h *readyHook) set(f func(Ready), ready func() Ready) (wait func()) {
	h.mu.Lock()
	h.f, h.untold = f, false
	running := h.running
	h.mu.Unlock()
	h.changed(ready)
	return func() {
		if running != nil {
			<-running
		}
	}
}

// changed has the function called, if there is one.
func (h *readyHook) changed(ready func() Ready) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.f == nil {
		return
	}
	h.state, h.untold = ready(), true
	if h.running == nil {
		h.running = make(chan struct{})
		go h.run()
	}
}

func (h *readyHook) run() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for h.f != nil && h.untold {
		f, state := h.f, h.state
		h.untold = false
		h.mu.Unlock()
		f(state)
		h.mu.Lock()
		close(h.running)
		h.running = make(chan struct{})
	}
	close(h.running)
	h.running = nil
}
