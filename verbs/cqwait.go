package verbs

import (
	"context"
	"time"

	"github.com/softrnic/softrnic/verbs/internal/wakeup"
)

// Wait waits until the CQ has completions, and moves up to len(wcs) of them to wcs, oldest first.
// It returns their number, which is at least 1. It does not use a completion channel.
// CQInitAttr.Wait selects how it waits: WaitAdaptive polls for up to 1 ms, if polling found
// completions recently, and then sleeps; WaitEvent sleeps immediately, and WaitPoll never sleeps.
// WC.Err reports whether a work request has failed.
//
// The error is that of ctx, ErrCQOverrun or ErrClosed, as of Poll, or ErrInvalid if wcs is
// empty. Several goroutines may wait for one CQ: each completion wakes one of them.
func (cq *CQ) Wait(ctx context.Context, wcs []WC) (int, error) {
	const op = "wait for completions"
	if len(wcs) == 0 {
		return 0, Errorf(ErrInvalid, op, "wcs is empty")
	}
	if err := ctx.Err(); err != nil {
		return 0, wrap(op, err)
	}
	n, err := cq.spin(ctx, wcs)
	if n > 0 || err != nil {
		return n, err
	}
	began := cq.dev.clock.Now()
	defer func() { cq.endSleep(cq.dev.clock.Since(began)) }()
	notifier := cq.beginSleep()
	var failed error
	n, err = wakeup.Wait(ctx, notifier, func() (n int, ok, more bool) {
		if n, failed = cq.Poll(wcs); n > 0 || failed != nil {
			return n, true, cq.pollReady.Load() != 0 // more completions, or an error for all waiters
		}
		cq.dev.prov.EndProgress()
		return 0, false, false
	})
	switch {
	case failed != nil:
		return 0, failed
	case err != nil:
		return 0, wrap(op, err)
	}
	return n, nil
}

// spin polls before Wait sleeps. It returns 0 when the polling time is over.
func (cq *CQ) spin(ctx context.Context, wcs []WC) (n int, err error) {
	if cq.wait == WaitEvent || cq.dev.clock.Virtual() { // time stands while it spins
		return 0, nil
	}
	var began time.Time
	var spinFor time.Duration
	for spins := 1; ; spins++ {
		if n, err = cq.Poll(wcs); n > 0 || err != nil {
			return n, err
		}
		switch {
		case spins%pollsPerClock != 0:
		case cq.wait == WaitPoll:
			if err := ctx.Err(); err != nil {
				return 0, wrap("wait for completions", err)
			}
		case began.IsZero():
			spinFor, began = cq.spinTime(), cq.dev.clock.Now()
		case cq.dev.clock.Since(began) > spinFor || spins > maxSpins:
			return 0, nil
		}
	}
}

// spinTime returns the time that Wait polls before it sleeps.
func (cq *CQ) spinTime() time.Duration {
	cq.mu.Lock()
	defer cq.mu.Unlock()
	if cq.waiters == nil {
		return firstSpin
	}
	return cq.waiters.spin
}

// beginSleep makes add notify sleeping waiters.
func (cq *CQ) beginSleep() *wakeup.Notifier {
	cq.mu.Lock()
	defer cq.mu.Unlock()
	if cq.waiters == nil {
		cq.waiters = &waiters{notifier: wakeup.New(cq.dev.clock), spin: firstSpin}
	}
	cq.waiters.n++
	if cq.n > 0 {
		cq.ready.Store(1) // for a completion whose push has not set it yet
	}
	return cq.waiters.notifier
}

// endSleep ends a sleep, and sets the polling time of the next Wait from the time slept.
func (cq *CQ) endSleep(slept time.Duration) {
	cq.mu.Lock()
	defer cq.mu.Unlock()
	cq.waiters.n--
	cq.waiters.spin = nextSpin(cq.waiters.spin, slept)
}

// waiters is the shared state of the calls of CQ.Wait that sleep.
type waiters struct {
	notifier *wakeup.Notifier
	n        int
	spin     time.Duration // polling time of the next Wait
}

// nextSpin returns the polling time of the next Wait, after one that polled for the time spin and
// then slept. After a short sleep it is twice as long. After a long sleep it is half as long, down
// to none.
func nextSpin(spin, slept time.Duration) time.Duration {
	switch {
	case slept < shortSleep:
		return min(max(2*spin, firstSpin), longestSpin)
	case spin < firstSpin/8:
		return 0
	}
	return spin / 2
}
