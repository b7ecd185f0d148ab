package iwarptransport

// Order of connections. Programs open several connections to a peer and identify them by the order
// in which the peer's rdma_cm reports them; perftest does so with -q. Each connection is set up on
// its own goroutine. A sequencer keeps the order.

import (
	"sync"
	"time"

	"github.com/softrnic/softrnic/stack"
)

// sequencer keeps connections with equal keys in order.
type sequencer[K comparable] struct {
	mu   sync.Mutex
	last map[K]*ticket[K]
}

// ticket is a position in the order.
type ticket[K comparable] struct {
	of    *sequencer[K]
	key   K
	prev  *ticket[K] // nil if there is none
	ended chan struct{}
}

// enter takes the position after all others.
func (o *sequencer[K]) enter(key K) *ticket[K] {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.last == nil {
		o.last = map[K]*ticket[K]{}
	}
	t := &ticket[K]{of: o, key: key, prev: o.last[key], ended: make(chan struct{})}
	o.last[key] = t
	return t
}

// wait waits until the previous ticket is released, but at most for the given time, because that
// connection may be slow.
func (t *ticket[K]) wait(c stack.Clock, most time.Duration) {
	if t.prev == nil {
		return
	}
	late, timer := c.NewTimer(most)
	defer timer.Stop()
	select {
	case <-t.prev.ended:
	case <-late:
	}
	t.prev = nil
}

// done releases the ticket. It may be called again.
func (t *ticket[K]) done() {
	t.of.mu.Lock()
	defer t.of.mu.Unlock()
	select {
	case <-t.ended:
		return
	default:
	}
	close(t.ended)
	t.prev = nil // to free all earlier tickets
	if t.of.last[t.key] == t {
		delete(t.of.last, t.key)
	}
}
