// Package wakeup lets goroutines wait for events in a queue. Completion channels, devices and
// rdma_cm use it.
package wakeup

import (
	"context"
	"errors"
	"sync/atomic"
)

// Notifier wakes goroutines that wait for a queue, one for each element that is added. The caller
// owns the queue and its lock.
type Notifier struct {
	// Holds a token if the queue may have an element that no goroutine is taking, or is closed.
	token  chan struct{}
	closed atomic.Bool
	clock  Clock
}

// New returns a new Notifier.
func New(c Clock) *Notifier { return &Notifier{token: make(chan struct{}, 1), clock: c} }

// Notify is called after an element was added to the queue. It does not block, and may be called
// with locks held.
func (n *Notifier) Notify() {
	select {
	case n.token <- struct{}{}:
	default: // one token represents any number of elements
	}
}

// Close makes Wait fail when the queue is empty. It must be called only once.
func (n *Notifier) Close() {
	n.closed.Store(true)
	n.Notify()
}

// Closed reports whether Close was called.
func (n *Notifier) Closed() bool { return n.closed.Load() }

// ErrClosed is the error of Wait after Close.
var ErrClosed = errors.New("closed")

// Wait calls take immediately and after each Notify, until take returns an element with ok set.
// Wait returns this element. If take reports more elements, Wait wakes another goroutine. The error
// is ErrClosed or that of ctx.
func Wait[T any](ctx context.Context, n *Notifier, take func() (v T, ok, more bool)) (T, error) {
	for {
		v, ok, more := take()
		if more {
			n.Notify() // the token may have represented several elements
		}
		if ok {
			return v, nil
		}
		if n.Closed() {
			n.Notify() // wake the next waiter
			return v, ErrClosed
		}
		if n.clock.Virtual() {
			n.clock.Park(func() bool { return len(n.token) > 0 || ctx.Err() != nil })
			select { // if both happen, the one below would choose at random
			case <-n.token:
				continue
			default:
			}
		}
		select {
		case <-n.token:
		case <-ctx.Done():
			return v, ctx.Err()
		}
	}
}
