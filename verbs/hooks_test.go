package verbs_test

import (
	"errors"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/softrnic/softrnic/verbs"
)

// tokens adds up a hook's numbers, like an eventfd with EFD_SEMAPHORE.
type tokens struct {
	mu       sync.Mutex
	n, calls int
}

func (c *tokens) add(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n += n
	c.calls++
}

func (c *tokens) sum() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n
}

// want waits until the sum is n, because some calls of the hook are on goroutines of their own.
func (c *tokens) want(t *testing.T, what string, n int) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); c.sum() != n && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	if got := c.sum(); got != n {
		t.Errorf("%s: the hook's numbers add up to %d, want %d", what, got, n)
	}
}

// wantAgain fails the test unless the error is that of a queue without events.
func wantAgain(t *testing.T, err error) {
	t.Helper()
	if !errors.Is(err, verbs.ErrAgain) || !errors.Is(err, syscall.EAGAIN) {
		t.Errorf("no event: error %v, want ErrAgain", err)
	}
}

// waitsForAck fails the test unless destroy returns only after ack was called.
func waitsForAck(t *testing.T, what string, destroy, ack func() error) {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- destroy() }()
	synctest.Wait()
	select {
	case err := <-done:
		t.Fatalf("%s: Close returned %v before the event was acknowledged", what, err)
	default:
	}
	check(t, ack())
	check(t, <-done)
}

// complete adds a completion to the rig's CQ, which is armed for it.
func (r *rig) complete(t *testing.T) {
	t.Helper()
	check(t, r.cq.ReqNotify(false))
	check(t, r.qp.PostSend(&verbs.SendWR{Opcode: verbs.Send, Flags: verbs.SendSignaled}))
}

// TestCompChannelOnEvent: the hook is called when events are added or dropped, and TryGetEvent
// returns these events.
func TestCompChannelOnEvent(t *testing.T) {
	r := newRig(t)
	r.moveTo(t, verbs.StateRTS)
	_, err := r.ch.TryGetEvent()
	wantAgain(t, err)
	r.complete(t)
	r.complete(t)
	var hook, other tokens
	r.ch.OnEvent(hook.add)
	hook.want(t, "events before the hook was set", 2)
	r.complete(t)
	hook.want(t, "another event", 3)
	for range 2 {
		if cq := must(r.ch.TryGetEvent())(t); cq != r.cq {
			t.Error("an event of another CQ")
		}
	}
	hook.want(t, "events were taken", 3)
	r.ch.OnEvent(other.add)
	other.want(t, "one event is left", 1)
	check(t, r.cq.AckEvents(2))
	check(t, r.qp.Close())
	check(t, r.cq.Close())
	other.want(t, "the CQ is closed", 0)
	hook.want(t, "replaced", 3)
	_, err = r.ch.TryGetEvent()
	wantAgain(t, err)
	check(t, r.ch.Close())
	if _, err := r.ch.TryGetEvent(); !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("TryGetEvent of a closed channel: %v", err)
	}
}

// TestOnEventEnded: a nil function ends the calls.
func TestOnEventEnded(t *testing.T) {
	r := newRig(t)
	r.moveTo(t, verbs.StateRTS)
	var hook tokens
	r.ch.OnEvent(hook.add)
	r.ch.OnEvent(nil)
	r.complete(t)
	if hook.calls != 0 {
		t.Errorf("%d calls after OnEvent(nil)", hook.calls)
	}
}

// TestOnEventUnlocked: a goroutine that the function wakes can use the QP and the CQ before the
// function returns.
func TestOnEventUnlocked(t *testing.T) {
	r := newRig(t)
	r.moveTo(t, verbs.StateRTS)
	r.ch.OnEvent(func(int) {
		woken := make(chan error, 1)
		go func() {
			cq, err := r.ch.TryGetEvent()
			if err == nil {
				r.qp.State()
				err = errors.Join(cq.AckEvents(1), cq.ReqNotify(false))
			}
			woken <- err
		}()
		select {
		case err := <-woken:
			check(t, err)
		case <-time.After(10 * time.Second):
			t.Error("the woken goroutine waits for a lock")
		}
	})
	r.complete(t)
	if n := r.l.endedProgress.Load(); n != 0 {
		t.Errorf("EndProgress was called %d times, want 0: the program may continue to poll", n)
	}
	// The goroutine has armed the CQ.
	check(t, r.qp.PostSend(&verbs.SendWR{Opcode: verbs.Send, Flags: verbs.SendSignaled}))
}

// TestHookEndsProgress: a program that waits for its hook sleeps without a call of GetEvent. A
// TryGetEvent without an event therefore calls EndProgress. ReqNotify does not, because the program
// may continue to poll.
func TestHookEndsProgress(t *testing.T) {
	r := newRig(t)
	r.ch.OnEvent(func(int) {})
	check(t, r.cq.ReqNotify(false))
	if n := r.l.endedProgress.Load(); n != 0 {
		t.Errorf("ReqNotify called EndProgress %d times", n)
	}
	_, err := r.ch.TryGetEvent()
	wantAgain(t, err)
	if n := r.l.endedProgress.Load(); n != 1 {
		t.Errorf("EndProgress was called %d times after TryGetEvent, want 1", n)
	}
}

// TestTryGetEventIsAcknowledged: Close of a CQ waits for the acknowledgement of events that
// TryGetEvent returned.
func TestTryGetEventIsAcknowledged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.moveTo(t, verbs.StateRTS)
		r.complete(t)
		cq := must(r.ch.TryGetEvent())(t)
		check(t, r.qp.Close())
		waitsForAck(t, "CQ", r.cq.Close, func() error { return cq.AckEvents(1) })
	})
}

// TestOnAsyncEvent is like TestCompChannelOnEvent, for the events of a device.
func TestOnAsyncEvent(t *testing.T) {
	r := newRig(t)
	raise := func() { r.lq.locked(func() { r.lq.Event(verbs.EventCommEst) }) }
	_, err := r.dev.TryGetAsyncEvent()
	wantAgain(t, err)
	raise()
	var hook tokens
	r.dev.OnAsyncEvent(hook.add)
	hook.want(t, "an event before the hook was set", 1)
	raise()
	r.l.event(verbs.EventPortErr, 1)
	hook.want(t, "two more", 3)
	e := must(r.dev.TryGetAsyncEvent())(t)
	if e.Type != verbs.EventCommEst || e.QP != r.qp {
		t.Errorf("got %+v", e)
	}
	check(t, e.Ack())
	if err := e.Ack(); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("acknowledged twice: %v", err)
	}
	check(t, r.qp.Close())
	hook.want(t, "one was taken, another dropped with its QP", 2)
	e = must(r.dev.TryGetAsyncEvent())(t)
	if e != (verbs.AsyncEvent{Type: verbs.EventPortErr, PortNum: 1}) {
		t.Errorf("got %+v", e)
	}
	for range 2 {
		check(t, e.Ack()) // has no effect without an object
	}
	r.dev.OnAsyncEvent(nil)
	r.l.event(verbs.EventPortActive, 1)
	hook.want(t, "OnAsyncEvent(nil)", 2)
	must(r.dev.TryGetAsyncEvent())(t)

	check(t, r.cq.Close())
	check(t, r.ch.Close())
	check(t, r.pd.Close())
	check(t, r.dev.Close())
	if _, err := r.dev.TryGetAsyncEvent(); !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("TryGetAsyncEvent of a closed device: %v", err)
	}
}

// TestCloseWaitsForAsyncAck: Close of the object of an event that TryGetAsyncEvent returned
// waits for Ack; after GetAsyncEvent it does not.
func TestCloseWaitsForAsyncAck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, ackedByGet := range []bool{false, true} {
			r, srq, qps, lqs := sharedRig(t, verbs.SRQAttr{MaxWR: 8, MaxSGE: 1})
			cq := must(r.dev.CreateCQ(1, nil))(t)
			// Raises SRQ_LIMIT_REACHED.
			check(t, srq.Modify(&verbs.SRQAttr{Limit: 1}, verbs.SRQLimit))
			lqs[0].locked(func() { lqs[0].Event(verbs.EventCommEst) })
			for range 2 { // the second overruns it
				cq.Push(&verbs.WC{})
			}
			var acks [3]func() error
			for range acks {
				var e verbs.AsyncEvent
				if ackedByGet {
					e = must(r.dev.GetAsyncEvent(t.Context()))(t)
				} else {
					e = must(r.dev.TryGetAsyncEvent())(t)
				}
				switch {
				case e.QP == qps[0]:
					acks[0] = e.Ack
				case e.SRQ == srq:
					acks[1] = e.Ack
				case e.CQ == cq:
					acks[2] = e.Ack
				default:
					t.Fatalf("an event without a known object: %+v", e)
				}
			}
			check(t, qps[1].Close())
			for i, c := range []struct {
				what    string
				destroy func() error
			}{{"QP", qps[0].Close}, {"SRQ", srq.Close}, {"CQ", cq.Close}} {
				if ackedByGet {
					check(t, c.destroy())
				} else {
					waitsForAck(t, c.what, c.destroy, acks[i])
				}
			}
		}
	})
}

// TestTryGetAllocatesNothing: TryGetEvent and TryGetAsyncEvent do not allocate, with or without an
// event.
func TestTryGetAllocatesNothing(t *testing.T) {
	r := newRig(t)
	r.moveTo(t, verbs.StateRTS)
	var hook tokens
	r.ch.OnEvent(hook.add)
	wr := &verbs.SendWR{Opcode: verbs.Send, Flags: verbs.SendSignaled}
	wcs := make([]verbs.WC, 1)
	if n := testing.AllocsPerRun(100, func() {
		_, _ = r.ch.TryGetEvent()
		_, _ = r.dev.TryGetAsyncEvent()
		_ = r.cq.ReqNotify(false)
		_ = r.qp.PostSend(wr)
		if cq, err := r.ch.TryGetEvent(); err == nil {
			_ = cq.AckEvents(1)
		}
		_, _ = r.cq.Poll(wcs)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
	if hook.n != 101 { // AllocsPerRun runs it once more
		t.Errorf("%d events, want 101", hook.n)
	}
}

// TestReady: the Ready word is 1 exactly while Poll would return a completion or an error.
func TestReady(t *testing.T) {
	r := newRig(t)
	var word atomic.Uint32
	word.Store(7) // CreateCQ overwrites it
	cq := must(r.dev.CreateCQ(2, &verbs.CQInitAttr{Ready: &word, Wait: verbs.WaitEvent}))(t)
	want := func(what string, v uint32) {
		t.Helper()
		if got := word.Load(); got != v {
			t.Errorf("%s: Ready is %d, want %d", what, got, v)
		}
	}
	want("created", 0)
	cq.Push(&verbs.WC{WRID: 1})
	cq.Push(&verbs.WC{WRID: 2})
	want("two completions", 1)
	var wcs [1]verbs.WC
	for i := range 2 {
		want("before Poll", 1)
		if n := must(cq.Poll(wcs[:]))(t); n != 1 || wcs[0].WRID != uint64(i+1) {
			t.Errorf("Poll: %d completions, %+v", n, wcs[0])
		}
	}
	want("all were polled", 0)
	for range 3 {
		cq.Push(&verbs.WC{})
	}
	must(cq.Poll(make([]verbs.WC, 2)))(t)
	want("overrun: Poll returns an error", 1)
	if n := r.l.progressed.Load(); n != 0 {
		t.Errorf("Poll with WaitEvent called Progress %d times", n)
	}
	check(t, cq.Close())
	want("closed: Poll returns an error", 1)
}

// TestProgress: Progress and EndProgress call the provider until the device is closed.
func TestProgress(t *testing.T) {
	l := newLoop()
	dev := must(verbs.Open(l))(t)
	for _, busy := range []bool{false, true} {
		if l.busy = busy; dev.Progress() != busy {
			t.Errorf("Progress does not return the provider's %v", busy)
		}
	}
	dev.EndProgress()
	check(t, dev.Close())
	if dev.Progress() {
		t.Error("Progress of a closed device")
	}
	dev.EndProgress()
	if p, e := l.progressed.Load(), l.endedProgress.Load(); p != 2 || e != 1 {
		t.Errorf("%d calls of the provider's Progress and %d of EndProgress, want 2 and 1", p, e)
	}
}
