package rsocket

import (
	"sync"
	"time"
)

// waiter is one who waits for a change of a connection.
type waiter struct {
	changed sync.Cond
	polls   bool // the last wait was so short that it is worth while to poll for the end of the next
}

// A wait is short if it takes less than shortWait. Who polls does so for pollFor, and at most maxPolls times, which is the only
// bound where the clock is a test's.
const (
	shortWait    = 100 * time.Microsecond
	pollFor      = 50 * time.Microsecond
	maxPolls     = 1000
	betweenLooks = 8 // polls, before the clock is looked at
)

// waitFor waits until over, which is called with mu held, is true. mu is held.
func (c *Conn) waitFor(w *waiter, over func() bool) {
	if over() {
		return
	}
	began := time.Now()
	if w.polls {
		c.mu.Unlock()
		c.poll(over)
		c.mu.Lock()
	}
	if !over() {
		c.cq.Device().EndProgress() // this goroutine receives no more packets
		for !over() {
			w.changed.Wait()
		}
	}
	w.polls = time.Since(began) < shortWait
}

// poll receives packets and takes completions on this goroutine until over is true, or for a while.
func (c *Conn) poll(over func() bool) {
	c.polling.Add(1)
	began := time.Now()
	for i := 1; i <= maxPolls; i++ {
		c.cq.Device().Progress()
		if !c.collect(false) {
			break
		}
		c.mu.Lock()
		done := over()
		c.mu.Unlock()
		if done || i%betweenLooks == 0 && time.Since(began) > pollFor {
			break
		}
	}
	c.polling.Add(-1)
	if c.events.Load() > 0 { // run was not woken for them
		c.collect(true)
	}
}
