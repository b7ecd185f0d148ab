package clock

import (
	"context"
	"sync/atomic"
	"time"
)

// WithTimeout is [context.WithTimeout] in the clock's time. With a source, contexts that package
// context derives from it end at the same time with the error Canceled. Their cause is
// DeadlineExceeded.
func (c Clock) WithTimeout(parent context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	return c.WithTimeoutCause(parent, d, context.DeadlineExceeded)
}

// WithTimeoutCause is [context.WithTimeoutCause] in the clock's time, as WithTimeout.
func (c Clock) WithTimeoutCause(parent context.Context, d time.Duration, cause error) (context.Context, context.CancelFunc) {
	if c.source == nil {
		return context.WithTimeoutCause(parent, d, cause)
	}
	inner, cancel := context.WithCancelCause(parent)
	t := &timeout{Context: inner, parent: parent, at: c.source.Now().Add(d)}
	timer := c.source.AfterFunc(d, func() {
		t.end(expired)
		cancel(cause)
	})
	return t, func() {
		timer.Stop()
		t.end(canceled)
		cancel(nil)
	}
}

// timeout is a context that ends at a time of a Source.
type timeout struct {
	context.Context // can be canceled
	parent          context.Context
	at              time.Time
	ended           atomic.Uint32 // 0: it has not ended, or with its parent
}

// The ends of a timeout.
const (
	expired = 1 + iota
	canceled
)

// end records an end before it happens.
func (t *timeout) end(how uint32) {
	if t.Context.Err() == nil {
		t.ended.CompareAndSwap(0, how)
	}
}

// Deadline implements context.Context.
func (t *timeout) Deadline() (time.Time, bool) {
	if outer, ok := t.parent.Deadline(); ok && outer.Before(t.at) {
		return outer, true
	}
	return t.at, true
}

// Err implements context.Context.
func (t *timeout) Err() error {
	err := t.Context.Err()
	switch {
	case err == nil:
		return nil
	case t.ended.Load() == expired:
		return context.DeadlineExceeded
	case t.ended.Load() == 0:
		return t.parent.Err()
	}
	return err
}
