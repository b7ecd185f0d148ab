package verbs

import (
	"context"
	"time"

	"github.com/softrnic/softrnic/verbs/internal/wakeup"
)

// With WaitAdaptive, CQ.Wait polls for leastSpin before it sleeps. That is a few round trips, so that a ping-pong seldom pays for
// waking up, and an idle program costs nothing. A Wait that is woken soon after it went to sleep doubles the time of the next, up to
// mostSpin. Otherwise two programs that wait for each other would both go to sleep in each round trip.
const (
	leastSpin = 50 * time.Microsecond
	mostSpin  = time.Millisecond
	// spinsBetween is the number of Polls for one look at the clock or the context.
	spinsBetween = 8
	// mostSpins ends the polling where time stands still, as in a bubble of testing/synctest.
	mostSpins = 1 << 15
)

// waiters is what the calls of CQ.Wait that sleep share.
type waiters struct {
	notifier *wakeup.Notifier
	n        int
	spinFor  time.Duration // before the next sleep
}

// Wait waits until the CQ has completions, moves up to len(wcs) of them to wcs, oldest first, and returns their number, which is at
// least 1. It neither needs nor uses a completion channel. CQInitAttr.Wait says how it waits: WaitAdaptive polls for 50 µs to 1 ms and
// then sleeps, WaitEvent sleeps at once, WaitPoll never sleeps. WC.Err says whether a work request has failed.
//
// The error is that of ctx, ErrCQOverrun or ErrDestroyed, as of Poll, or ErrInvalid if wcs is empty. Several goroutines may wait
// for one CQ: each completion wakes one of them.
func (cq *CQ) Wait(ctx context.Context, wcs []WC) (int, error) {
	const op = "wait for completions"
	if len(wcs) == 0 {
		return 0, Errorf(ErrInvalid, op, "wcs has no room")
	}
	if err := ctx.Err(); err != nil {
		return 0, wrap(op, err)
	}
	n, err := cq.spin(ctx, wcs)
	if n > 0 || err != nil {
		return n, err
	}
	began := time.Now()
	defer func() { cq.endSleep(time.Since(began)) }()
	notifier := cq.beginSleep()
	var failed error
	n, err = wakeup.Wait(ctx, notifier, func() (n int, ok, more bool) {
		if n, failed = cq.Poll(wcs); n > 0 || failed != nil {
			return n, true, true // others that wait look for themselves
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

// spin polls for as long as Wait does before it sleeps. It returns 0 when that time is over.
func (cq *CQ) spin(ctx context.Context, wcs []WC) (n int, err error) {
	if cq.wait == WaitEvent {
		return 0, nil
	}
	var began time.Time
	var spinFor time.Duration
	for spins := 1; ; spins++ {
		if n, err = cq.Poll(wcs); n > 0 || err != nil {
			return n, err
		}
		switch {
		case spins%spinsBetween != 0:
		case cq.wait == WaitPoll:
			if err := ctx.Err(); err != nil {
				return 0, wrap("wait for completions", err)
			}
		case began.IsZero():
			spinFor, began = cq.spinTime(), time.Now()
		case time.Since(began) > spinFor || spins > mostSpins:
			return 0, nil
		}
	}
}

// spinTime is how long Wait polls before it sleeps.
func (cq *CQ) spinTime() time.Duration {
	cq.mu.Lock()
	defer cq.mu.Unlock()
	if cq.waiters == nil {
		return leastSpin
	}
	return cq.waiters.spinFor
}

// beginSleep makes add notify those that sleep.
func (cq *CQ) beginSleep() *wakeup.Notifier {
	cq.mu.Lock()
	defer cq.mu.Unlock()
	if cq.waiters == nil {
		cq.waiters = &waiters{notifier: wakeup.New(), spinFor: leastSpin}
	}
	cq.waiters.n++
	if cq.n > 0 {
		cq.ready.Store(1) // of a completion whose push has not set it yet
	}
	return cq.waiters.notifier
}

// endSleep ends a sleep of the given length, which decides how long the next Wait polls.
func (cq *CQ) endSleep(slept time.Duration) {
	cq.mu.Lock()
	defer cq.mu.Unlock()
	w := cq.waiters
	w.n--
	if slept < mostSpin {
		w.spinFor = min(2*w.spinFor, mostSpin)
	} else {
		w.spinFor = leastSpin
	}
}
