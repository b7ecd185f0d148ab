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

// A wait is short if it takes less than shortWait, or if it ends while it polls. Polling lasts
// pollTime, and at most maxPolls polls; completions prolong it, but not after longestPoll. In tests
// with virtual time, only maxPolls ends it.
const (
	shortWait     = 100 * time.Microsecond
	pollTime      = 50 * time.Microsecond
	longestPoll   = time.Millisecond
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
		if done() {
			return
		}
	}
	c.cq.Device().EndProgress() // this goroutine receives no more packets
	wakeup.Await(now, &w.changed, done)
	w.polls = now.Since(began) < shortWait && !now.Virtual() // time stands while it polls
}

// poll receives packets and takes completions on this goroutine until done returns true, or for
// pollTime after the last completions. While these come, the connection's data are moving. A writer
// that slept would leave them to goroutines that must be woken.
func (c *Conn) poll(done func() bool) {
	c.polling.Add(1)
	now := c.clock()
	began, handled := now.Now(), c.handled.Load()
	last := began
	for i := 1; i <= maxPolls; i++ {
		c.cq.Device().Progress()
		if !c.pollCQ(false) {
			break
		}
		c.mu.Lock()
		isDone := done()
		c.mu.Unlock()
		if isDone {
			break
		}
		if i%clockInterval != 0 {
			continue
		}
		t := now.Now()
		if news := c.handled.Load(); news != handled && t.Sub(began) < longestPoll && !now.Virtual() {
			last, handled, i = t, news, 0
		} else if t.Sub(last) > pollTime {
			break
		}
	}
	c.polling.Add(-1)
	if c.events.Load() > 0 { // these did not wake run
		c.pollCQ(true)
	}
}
