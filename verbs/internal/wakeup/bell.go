// Package wakeup is how goroutines wait for a queue of events: those of completion channels, of devices and of rdma_cm.
package wakeup

import (
	"context"
	"errors"
)

// Bell wakes the goroutines that wait for a queue, one for each thing that is put in. The queue, and its lock, are the
// caller's.
type Bell struct {
	token chan struct{} // holds a token if there may be something in the queue and someone to take it
	done  chan struct{} // closed by Close
}

// New makes a Bell.
func New() *Bell { return &Bell{token: make(chan struct{}, 1), done: make(chan struct{})} }

// Ring says that something is in the queue. It does not wait, and may be called with locks held.
func (b *Bell) Ring() {
	select {
	case b.token <- struct{}{}:
	default: // the token that is there stands for several
	}
}

// Close ends all calls of Wait that find nothing in the queue. It is called once.
func (b *Bell) Close() { close(b.done) }

// ErrClosed is what Wait returns after Close.
var ErrClosed = errors.New("closed")

// Wait calls take, at first and after each Ring, until that finds something, and returns it. take also tells whether
// more is left, which is then for another goroutine that waits. The error is ErrClosed or that of ctx.
func Wait[T any](ctx context.Context, b *Bell, take func() (v T, ok, more bool)) (T, error) {
	for {
		v, ok, more := take()
		if more {
			b.Ring() // one token may have stood for several
		}
		if ok {
			return v, nil
		}
		select {
		case <-b.token:
		case <-b.done:
			return v, ErrClosed
		case <-ctx.Done():
			return v, ctx.Err()
		}
	}
}
