package rsocket

import (
	"sync"
	"time"

	"github.com/softrnic/softrnic/verbs/internal/wakeup"
)

// waiter is the state of a reader or writer that waits for a change of a connection.
type waiter struct {
	changed sync.Cond
	polls   bool // the last wait was short, so the next one starts with polling
}

// A wait is short if it takes less than shortWait. Polling lasts pollTime, and at most maxPolls
// polls. In tests with virtual time, only maxPolls ends it.
const (
	shortWait     = 100 * time.Microsecond
	pollTime      = 50 * time.Microsecond
	maxPolls      = 1000
	clockInterval = 8 // polls between readings of the clock
)

// waitFor waits until done returns true. done is called with mu held. mu is held.
func (c *Conn) waitFor(w *waiter, done func() bool) {
	if done() {
		return
	}
	now := c.clock()
	began := now.Now()
	if w.polls {
		c.mu.Unlock()
		c.poll(done)
		c.mu.Lock()
	}
	if !done() {
		c.cq.Device().EndProgress() // this goroutine receives no more packets
		wakeup.Await(now, &w.changed, done)
	}
	w.polls = now.Since(began) < shortWait && !now.Virtual() // time stands while it polls
}

// poll receives packets and takes completions on this goroutine until done returns true, or for
// pollTime.
func (c *Conn) poll(done func() bool) {
	c.polling.Add(1)
	now := c.clock()
	began := now.Now()
	for i := 1; i <= maxPolls; i++ {
		c.cq.Device().Progress()
		if !c.pollCQ(false) {
			break
		}
		c.mu.Lock()
		isDone := done()
		c.mu.Unlock()
		if isDone || i%clockInterval == 0 && now.Since(began) > pollTime {
			break
		}
	}
	c.polling.Add(-1)
	if c.events.Load() > 0 { // these did not wake run
		c.pollCQ(true)
	}
}
