package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/softrnic/softrnic/verbs"
)

// spinFor is how long a waiter polls before it sleeps: a few round trips, so that a ping-pong seldom pays for waking
// up, and an idle node costs nothing.
const spinFor = 50 * time.Microsecond

// waiter waits for the completions of one CQ.
type waiter struct {
	cq      *verbs.CQ
	channel *verbs.CompChannel
	// eventsOnly never spins.
	eventsOnly bool
}

// newWaiter makes a CQ with a completion channel of its own.
func newWaiter(dev *verbs.Device, cqe int) (*waiter, error) {
	channel, err := dev.CreateCompChannel()
	if err != nil {
		return nil, err
	}
	cq, err := dev.CreateCQ(cqe, &verbs.CQInitAttr{Channel: channel})
	if err != nil {
		return nil, errors.Join(err, channel.Destroy())
	}
	return &waiter{cq: cq, channel: channel}, nil
}

// Close destroys the CQ and its channel; no QP may use it.
func (w *waiter) Close() error { return errors.Join(w.cq.Destroy(), w.channel.Destroy()) }

// wait returns at least one completion, at most len(wcs). Each has succeeded: the first that has not is the error.
func (w *waiter) wait(ctx context.Context, wcs []verbs.WC) (int, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	n, err := w.spin(wcs)
	if n == 0 && err == nil {
		n, err = w.sleep(ctx, wcs)
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

// spin polls for a while, and lets other goroutines run between.
func (w *waiter) spin(wcs []verbs.WC) (n int, err error) {
	for start := time.Now(); ; runtime.Gosched() {
		if n, err = w.cq.Poll(wcs); n > 0 || err != nil || w.eventsOnly || time.Since(start) > spinFor {
			return n, err
		}
	}
}

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
