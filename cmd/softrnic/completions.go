package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/softrnic/softrnic/verbs"
)

// An adaptive waiter polls before it sleeps for leastSpin: a few round trips, so that a ping-pong seldom pays for
// waking up, and an idle node costs nothing. Where it was woken so soon that it had better polled on, it polls longer
// the next time, up to mostSpin: two that wait for each other would otherwise put each other to sleep for good.
const (
	leastSpin = 50 * time.Microsecond
	mostSpin  = time.Millisecond
)

// waiter waits for the completions of one CQ.
type waiter struct {
	cq      *verbs.CQ
	channel *verbs.CompChannel
	how     waiting
	spinFor time.Duration
}

// waiting is how to wait for completions.
type waiting string

const (
	waitAdaptive waiting = "adaptive" // poll for a while, then sleep
	waitPoll     waiting = "poll"     // never sleep
	waitEvent    waiting = "event"    // sleep at once
)

// onCQ is what a CQ calls it.
var onCQ = map[waiting]verbs.Wait{waitAdaptive: verbs.WaitAdaptive, waitPoll: verbs.WaitPoll, waitEvent: verbs.WaitEvent}

// newWaiter makes a CQ with a completion channel of its own.
func newWaiter(dev *verbs.Device, cqe int, how waiting) (*waiter, error) {
	channel, err := dev.CreateCompChannel()
	if err != nil {
		return nil, err
	}
	cq, err := dev.CreateCQ(cqe, &verbs.CQInitAttr{Channel: channel, Wait: onCQ[how]})
	if err != nil {
		return nil, errors.Join(err, channel.Destroy())
	}
	return &waiter{cq: cq, channel: channel, how: how, spinFor: leastSpin}, nil
}

// Close destroys the CQ and its channel; no QP may use it.
func (w *waiter) Close() error { return errors.Join(w.cq.Destroy(), w.channel.Destroy()) }

// wait returns at least one completion, at most len(wcs). Each has succeeded: the first that has not is the error.
func (w *waiter) wait(ctx context.Context, wcs []verbs.WC) (int, error) {
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
			w.spinFor = leastSpin
		}
	}
	return succeeded(wcs, n, err)
}

// poll is wait that does not wait: there may be no completion.
func (w *waiter) poll(wcs []verbs.WC) (int, error) {
	n, err := w.cq.Poll(wcs)
	return succeeded(wcs, n, err)
}

func succeeded(wcs []verbs.WC, n int, err error) (int, error) {
	if err != nil {
		return 0, err
	}
	for i := range wcs[:n] {
		if s := wcs[i].Status; s != verbs.WCSuccess {
			return 0, &failedError{wcs[i].WRID, s}
		}
	}
	return n, nil
}

// failedError is a completion that is no success.
type failedError struct {
	id     uint64
	status verbs.WCStatus
}

func (e *failedError) Error() string {
	return fmt.Sprintf("work request %d failed with %v: %s", e.id, e.status, e.status.Description())
}

// spin polls, which lets others run.
func (w *waiter) spin(ctx context.Context, wcs []verbs.WC) (n int, err error) {
	if w.how == waitEvent {
		return 0, nil
	}
	var began time.Time
	for spins := 1; ; spins++ {
		if n, err = w.cq.Poll(wcs); n > 0 || err != nil {
			return n, err
		}
		switch {
		case spins%spinsBetween != 0:
		case w.how == waitPoll:
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

// spinsBetween is how often spin polls before it looks at anything else.
const spinsBetween = 8

// sleep waits for an event. It arms the CQ before it polls once more, so that no completion falls between.
func (w *waiter) sleep(ctx context.Context, wcs []verbs.WC) (int, error) {
	for {
		if err := w.cq.RequestNotify(false); err != nil {
			return 0, err
		}
		if n, err := w.cq.Poll(wcs); n > 0 || err != nil {
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
