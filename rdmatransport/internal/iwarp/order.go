package iwarp

// Beside the set-up of connections. Programs open several connections to a peer and tell them apart
// by the order in which its rdma_cm reports them: perftest's -q does. Each is set up on a goroutine
// of its own; an order keeps them in line.

import (
	"sync"
	"time"
)

// order is who is in line, by key.
type order[K comparable] struct {
	mu   sync.Mutex
	last map[K]*turn[K]
}

// turn is a place in the line.
type turn[K comparable] struct {
	of     *order[K]
	key    K
	before *turn[K] // nil if none is
	over   chan struct{}
}

// enter takes the place behind those that are in line.
func (o *order[K]) enter(key K) *turn[K] {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.last == nil {
		o.last = map[K]*turn[K]{}
	}
	t := &turn[K]{of: o, key: key, before: o.last[key], over: make(chan struct{})}
	o.last[key] = t
	return t
}

// wait waits until the one before has ended, but not for longer than most: it may be slow.
func (t *turn[K]) wait(most time.Duration) {
	if t.before == nil {
		return
	}
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case <-t.before.over:
	case <-timer.C:
	}
	t.before = nil
}

// end leaves the line. It may be called again.
func (t *turn[K]) end() {
	t.of.mu.Lock()
	defer t.of.mu.Unlock()
	select {
	case <-t.over:
		return
	default:
	}
	close(t.over)
	t.before = nil // else one that is always followed by another would keep all before it
	if t.of.last[t.key] == t {
		delete(t.of.last, t.key)
	}
}
