package verbs_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/softrnic/softrnic/verbs"
)

// waitResult is the result of a call of CQ.Wait.
type waitResult struct {
	n   int
	err error
}

// startWait calls CQ.Wait on a goroutine of its own.
func startWait(ctx context.Context, cq *verbs.CQ, room int) chan waitResult {
	done := make(chan waitResult, 1)
	go func() {
		n, err := cq.Wait(ctx, make([]verbs.WC, room))
		done <- waitResult{n, err}
	}()
	return done
}

// waitRig creates a CQ for 4 completions on a device that does nothing.
func waitRig(t *testing.T, how verbs.Wait) (*loop, *verbs.CQ) {
	l := newLoop()
	dev := must(verbs.Open(l))(t)
	return l, must(dev.CreateCQ(4, &verbs.CQInitAttr{Wait: how}))(t)
}

// TestWait: Wait returns available completions immediately, and otherwise sleeps until a completion
// is added. Before it sleeps, it calls EndProgress.
func TestWait(t *testing.T) {
	for _, how := range []verbs.Wait{verbs.WaitEvent, verbs.WaitAdaptive} {
		synctest.Test(t, func(t *testing.T) {
			l, cq := waitRig(t, how)
			cq.Push(&verbs.WC{})
			cq.Push(&verbs.WC{})
			if got := <-startWait(t.Context(), cq, 4); got.n != 2 || got.err != nil {
				t.Errorf("wait %d: %+v, want 2 completions", how, got)
			}
			done := startWait(t.Context(), cq, 4)
			synctest.Wait()
			if l.endedProgress.Load() == 0 {
				t.Errorf("wait %d: EndProgress was not called before the program sleeps", how)
			}
			select {
			case got := <-done:
				t.Errorf("wait %d: %+v without a completion", how, got)
			default:
			}
			cq.Push(&verbs.WC{})
			if got := <-done; got.n != 1 || got.err != nil {
				t.Errorf("wait %d: %+v, want 1 completion", how, got)
			}
			if polled := l.progressed.Load() > 0; polled != (how == verbs.WaitAdaptive) {
				t.Errorf("wait %d: Progress was called: %v", how, polled)
			}
		})
	}
}

// TestWaitOfMany: each completion wakes one of the goroutines that wait for a CQ, and Close
// wakes all of them.
func TestWaitOfMany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, cq := waitRig(t, verbs.WaitEvent)
		ended := make(chan waitResult, 5)
		for range cap(ended) {
			go func() { ended <- <-startWait(t.Context(), cq, 1) }()
		}
		synctest.Wait()
		cq.Push(&verbs.WC{})
		cq.Push(&verbs.WC{})
		synctest.Wait()
		if len(ended) != 2 {
			t.Fatalf("%d goroutines have returned, want 2", len(ended))
		}
		for range 2 {
			if got := <-ended; got.n != 1 || got.err != nil {
				t.Errorf("%+v, want 1 completion", got)
			}
		}
		check(t, cq.Close())
		for range 3 {
			if got := <-ended; !errors.Is(got.err, verbs.ErrClosed) {
				t.Errorf("%+v after Close", got)
			}
		}
	})
}

// TestWaitFails: Wait returns an error when the context ends, before or while it waits, and after
// an overrun.
func TestWaitFails(t *testing.T) {
	for _, how := range []verbs.Wait{verbs.WaitEvent, verbs.WaitAdaptive, verbs.WaitPoll} {
		_, cq := waitRig(t, how)
		ctx, cancel := context.WithCancel(t.Context())
		done := startWait(ctx, cq, 1)
		select {
		case got := <-done:
			t.Errorf("wait %d: %+v", how, got)
		case <-time.After(time.Millisecond):
		}
		cancel()
		if got := <-done; !errors.Is(got.err, context.Canceled) {
			t.Errorf("wait %d: %+v when the context ends", how, got)
		}
		if got := <-startWait(ctx, cq, 1); !errors.Is(got.err, context.Canceled) {
			t.Errorf("wait %d: %+v of a context that has ended", how, got)
		}
		if got := <-startWait(t.Context(), cq, 0); !errors.Is(got.err, verbs.ErrInvalid) {
			t.Errorf("wait %d: %+v with an empty slice", how, got)
		}
		for range 5 {
			cq.Push(&verbs.WC{})
		}
		if got := <-startWait(t.Context(), cq, 9); got.n != 4 || got.err != nil {
			t.Errorf("wait %d: %+v, want the 4 completions before the overrun", how, got)
		}
		if got := <-startWait(t.Context(), cq, 9); !errors.Is(got.err, verbs.ErrCQOverrun) {
			t.Errorf("wait %d: %+v, want an overrun", how, got)
		}
	}
}

// TestWaitMissesNothing: completions that are added at any time around the start of a sleep wake
// the sleeper.
func TestWaitMissesNothing(t *testing.T) {
	_, cq := waitRig(t, verbs.WaitEvent)
	next := make(chan bool, 1)
	go func() {
		for range next {
			cq.Push(&verbs.WC{})
		}
	}()
	var wcs [4]verbs.WC
	for range 10_000 {
		next <- true
		if n, err := cq.Wait(t.Context(), wcs[:]); n != 1 || err != nil {
			t.Fatalf("%d completions (%v)", n, err)
		}
	}
	close(next)
}

// TestWCErr: the error of a completion has its status.
func TestWCErr(t *testing.T) {
	if err := (&verbs.WC{WRID: 1}).Err(); err != nil {
		t.Error(err)
	}
	err := (&verbs.WC{WRID: 7, QPNum: 0x11, Status: verbs.WCRemAccessErr}).Err()
	var failed *verbs.WCError
	if !errors.As(err, &failed) || failed.Status != verbs.WCRemAccessErr || failed.WRID != 7 {
		t.Errorf("got %v", err)
	}
	if want := "work request 7 of QP 0x11 failed with REM_ACCESS_ERR: the peer's memory does not allow this access"; err.Error() != want {
		t.Errorf("%q, want %q", err, want)
	}
}
