// Package completion waits for completions of a CQ: by polling, by sleeping until an event comes, or by each in turn.
package completion

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/softrnic/softrnic/verbs"
)

// An adaptive waiter polls for LeastSpin before it sleeps. That is a few round trips, so that a ping-pong seldom pays for
// waking up, and an idle node costs nothing. If the waiter is woken soon after it went to sleep, it polls longer the next time,
// up to mostSpin. Otherwise two programs that wait for each other would both go to sleep in each round trip.
const (
	LeastSpin = 50 * time.Microsecond
	mostSpin  = time.Millisecond
)

// Waiter waits for the completions of one CQ.
type Waiter struct {
	CQ      *verbs.CQ
	channel *verbs.CompChannel
	how     Waiting
	spinFor time.Duration
}

// Waiting is how to wait for completions.
type Waiting string

const (
	Adaptive Waiting = "adaptive" // poll for a while, then sleep
	Poll     Waiting = "poll"     // never sleep
	Event    Waiting = "event"    // sleep at once
)

// onCQ is the verbs.Wait of each Waiting.
var onCQ = map[Waiting]verbs.Wait{Adaptive: verbs.WaitAdaptive, Poll: verbs.WaitPoll, Event: verbs.WaitEvent}

// NewWaiter makes a CQ with a completion channel of its own.
func NewWaiter(dev *verbs.Device, cqe int, how Waiting) (*Waiter, error) {
	channel, err := dev.CreateCompChannel()
	if err != nil {
		return nil, err
	}
	cq, err := dev.CreateCQ(cqe, &verbs.CQInitAttr{Channel: channel, Wait: onCQ[how]})
	if err != nil {
		return nil, errors.Join(err, channel.Destroy())
	}
	return &Waiter{CQ: cq, channel: channel, how: how, spinFor: LeastSpin}, nil
}

// Close destroys the CQ and its channel; no QP may use it.
func (w *Waiter) Close() error { return errors.Join(w.CQ.Destroy(), w.channel.Destroy()) }

// Wait waits for completions and returns how many it has put into wcs: at least one. If a completion has not succeeded, the
// error is a *FailedError.
func (w *Waiter) Wait(ctx context.Context, wcs []verbs.WC) (int, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	n, err := w.spin(ctx, wcs)
	if n == 0 && err == nil {
		began := time.Now()
		n, err = w.sleep(ctx, wcs)
		if time.Since(began) < mostSpin {
			w.spinFor = min(2*w.spinFor, mostSpin)
		} else {
			w.spinFor = LeastSpin
		}
	}
	return succeeded(wcs, n, err)
}

// Poll is Wait without waiting: it may return 0.
func (w *Waiter) Poll(wcs []verbs.WC) (int, error) {
	n, err := w.CQ.Poll(wcs)
	return succeeded(wcs, n, err)
}

func succeeded(wcs []verbs.WC, n int, err error) (int, error) {
	if err != nil {
		return 0, err
	}
	for i := range wcs[:n] {
		if s := wcs[i].Status; s != verbs.WCSuccess {
			return 0, &FailedError{wcs[i].WRID, s}
		}
	}
	return n, nil
}

// FailedError is a completion that has not succeeded.
type FailedError struct {
	id     uint64
	Status verbs.WCStatus
}

func (e *FailedError) Error() string {
	return fmt.Sprintf("work request %d failed with %v: %s", e.id, e.Status, e.Status.Description())
}

// spin polls, which lets other goroutines run.
func (w *Waiter) spin(ctx context.Context, wcs []verbs.WC) (n int, err error) {
	if w.how == Event {
		return 0, nil
	}
	var began time.Time
	for spins := 1; ; spins++ {
		if n, err = w.CQ.Poll(wcs); n > 0 || err != nil {
			return n, err
		}
		switch {
		case spins%SpinsBetween != 0:
		case w.how == Poll:
			if err := ctx.Err(); err != nil {
				return 0, err
			}
		case began.IsZero():
			began = time.Now()
		case time.Since(began) > w.spinFor:
			return 0, nil
		}
	}
}

// SpinsBetween is how often a waiter polls before it looks at the clock or the context.
const SpinsBetween = 8

// sleep waits for an event. It arms the CQ and then polls once more, so that it does not miss a completion that came before.
func (w *Waiter) sleep(ctx context.Context, wcs []verbs.WC) (int, error) {
	for {
		if err := w.CQ.RequestNotify(false); err != nil {
			return 0, err
		}
		if n, err := w.CQ.Poll(wcs); n > 0 || err != nil {
			return n, err
		}
		cq, err := w.channel.GetEvent(ctx)
		if err != nil {
			return 0, err
		}
		if err := cq.AckEvents(1); err != nil {
			return 0, err
		}
	}
}
