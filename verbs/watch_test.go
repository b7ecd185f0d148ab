package verbs_test

import (
	"context"
	"errors"
	"slices"
	"syscall"
	"testing"

	"github.com/softrnic/softrnic/verbs"
)

// eventLog has the events that a watcher got.
type eventLog []verbs.AsyncEvent

func (s *eventLog) add(t verbs.AsyncEventType, port uint8) {
	*s = append(*s, verbs.AsyncEvent{Type: t, PortNum: port})
}

func (s *eventLog) want(t *testing.T, what string, events ...verbs.AsyncEvent) {
	t.Helper()
	if !slices.Equal(*s, events) {
		t.Errorf("%s: %v, want %v", what, *s, events)
	}
}

// TestWatch: each watcher gets the events of ports and of the device until it stops or after
// EventDeviceFatal. GetAsyncEvent returns the same events.
func TestWatch(t *testing.T) {
	l := newLoop()
	dev := must(verbs.Open(l))(t)
	var one, two eventLog
	stop := must(dev.Watch(one.add))(t)
	must(dev.Watch(two.add))(t)
	down := verbs.AsyncEvent{Type: verbs.EventPortErr, PortNum: 1}
	changed := verbs.AsyncEvent{Type: verbs.EventGIDChange, PortNum: 1}
	fatal := verbs.AsyncEvent{Type: verbs.EventDeviceFatal}
	l.event(down.Type, down.PortNum)
	stop()
	l.event(changed.Type, changed.PortNum)
	l.event(fatal.Type, fatal.PortNum)
	l.event(fatal.Type, fatal.PortNum) // not twice
	l.event(changed.Type, changed.PortNum)
	if _, err := dev.Watch(one.add); !errors.Is(err, syscall.ENODEV) {
		t.Errorf("Watch after the end: %v", err)
	}
	one.want(t, "stopped after the first", down)
	two.want(t, "to the end", down, changed, fatal)
	for _, want := range []verbs.AsyncEvent{down, changed, fatal} {
		if e := must(dev.GetAsyncEvent(t.Context()))(t); e != want {
			t.Errorf("GetAsyncEvent: %v, want %v", e, want)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if e, err := dev.GetAsyncEvent(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("another event: %v, %v", e, err)
	}
}

// TestCloseIsWatched: Close raises EventDeviceFatal, unless it fails because objects are left.
func TestCloseIsWatched(t *testing.T) {
	dev := must(verbs.Open(newLoop()))(t)
	var events eventLog
	must(dev.Watch(events.add))(t)
	pd := must(dev.AllocPD())(t)
	if err := dev.Close(); !errors.Is(err, verbs.ErrBusy) {
		t.Errorf("Close with a PD left: %v", err)
	}
	events.want(t, "still open")
	check(t, pd.Close())
	check(t, dev.Close())
	events.want(t, "closed", verbs.AsyncEvent{Type: verbs.EventDeviceFatal})
	if _, err := dev.GetAsyncEvent(t.Context()); !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("GetAsyncEvent: %v", err)
	}
}

// TestDeviceFatal: EventDeviceFatal moves all QPs to ERR and flushes them, except those in RESET.
func TestDeviceFatal(t *testing.T) {
	r := newRig(t)
	r.moveTo(t, verbs.StateRTS)
	x := must(r.dev.OpenXRCD(nil, 0))(t)
	target := must(x.CreateQP(&verbs.QPInitAttr{Type: verbs.XRCRecv}))(t)
	init := steps[verbs.StateInit]
	init.QPState = verbs.StateInit
	check(t, target.Modify(&init, needs[verbs.StateInit]|verbs.QPAttrState))
	check(t, r.qp.PostRecv(&verbs.RecvWR{WRID: 7}))
	idle := must(r.pd.CreateQP(&verbs.QPInitAttr{Type: verbs.RC, SendCQ: r.cq, RecvCQ: r.cq}))(t)
	r.l.event(verbs.EventDeviceFatal, 0)
	var wcs [2]verbs.WC
	if n := must(r.cq.Poll(wcs[:]))(t); n != 1 || wcs[0].WRID != 7 || wcs[0].Status != verbs.WCWRFlushErr {
		t.Errorf("%d completions, %+v; want the receive flushed", n, wcs[0])
	}
	for _, qp := range []*verbs.QP{r.qp, target} {
		if s := qp.State(); s != verbs.StateErr {
			t.Errorf("a QP of type %v is in %v", qp.Type(), s)
		}
	}
	if s := idle.State(); s != verbs.StateReset {
		t.Errorf("the QP that was in RESET is in %v", s)
	}
}

// TestShutdown: Shutdown returns the provider's error, with the name of the operation once.
func TestShutdown(t *testing.T) {
	l := newLoop()
	l.shutdown = context.DeadlineExceeded
	dev := must(verbs.Open(l))(t)
	const want = "shut down device: context deadline exceeded"
	if err := dev.Shutdown(t.Context()); !errors.Is(err, context.DeadlineExceeded) || err.Error() != want {
		t.Errorf("the provider's error: %v", err)
	}
	l.shutdown = nil
	check(t, dev.Shutdown(t.Context()))
	check(t, dev.Close())
}
