// Package completion waits for completions and fails unless all are successful.
package completion

import (
	"context"

	"github.com/softrnic/softrnic/verbs"
)

// Waiter waits for the completions of one CQ.
type Waiter struct {
	CQ *verbs.CQ
}

// Waiting is a way to wait for completions.
type Waiting string

const (
	Adaptive Waiting = "adaptive" // poll for a while, then sleep
	Poll     Waiting = "poll"     // never sleep
	Event    Waiting = "event"    // sleep at once
)

// onCQ is the verbs.Wait of each Waiting.
var onCQ = map[Waiting]verbs.Wait{Adaptive: verbs.WaitAdaptive, Poll: verbs.WaitPoll, Event: verbs.WaitEvent}

// NewWaiter creates a CQ.
func NewWaiter(dev *verbs.Device, cqe int, how Waiting) (*Waiter, error) {
	cq, err := dev.CreateCQ(cqe, &verbs.CQInitAttr{Wait: onCQ[how]})
	if err != nil {
		return nil, err
	}
	return &Waiter{cq}, nil
}

// Close closes the CQ. No QP may use it.
func (w *Waiter) Close() error { return w.CQ.Close() }

// Wait waits for completions and returns the number stored in wcs, at least one. If a work request
// has failed, the error is a *verbs.WCError.
func (w *Waiter) Wait(ctx context.Context, wcs []verbs.WC) (int, error) {
	n, err := w.CQ.Wait(ctx, wcs)
	return succeeded(wcs, n, err)
}

// Poll is Wait without waiting. It may return 0.
func (w *Waiter) Poll(wcs []verbs.WC) (int, error) {
	n, err := w.CQ.Poll(wcs)
	return succeeded(wcs, n, err)
}

func succeeded(wcs []verbs.WC, n int, err error) (int, error) {
	if err != nil {
		return 0, err
	}
	for i := range wcs[:n] {
		if err := wcs[i].Err(); err != nil {
			return 0, err
		}
	}
	return n, nil
}
