package clock_test

import (
	"bytes"
	"context"
	"errors"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/softrnic/softrnic/link/clock"
	"github.com/softrnic/softrnic/tests/stacktest"
)

// over runs a test with the machine's clock, in virtual time, and with a Source.
func over(t *testing.T, f func(t *testing.T, c clock.Clock, pass func(time.Duration))) {
	t.Run("machine", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f(t, clock.Clock{}, func(d time.Duration) {
				time.Sleep(d)
				synctest.Wait()
			})
		})
	})
	t.Run("source", func(t *testing.T) {
		s := stacktest.NewClock(1)
		f(t, clock.New(s), s.Advance)
	})
}

func TestTime(t *testing.T) {
	over(t, func(t *testing.T, c clock.Clock, pass func(time.Duration)) {
		start, calls := c.Now(), 0
		timer := c.AfterFunc(time.Second, func() { calls++ })
		pass(time.Second)
		if d := c.Since(start); d != time.Second || c.Until(start) != -d || calls != 1 {
			t.Errorf("%v since the start, %d calls", d, calls)
		}
		if timer.Reset(time.Second) || !timer.Stop() {
			t.Error("a timer that has fired, or was set again")
		}
		pass(2 * time.Second)
		if calls != 1 {
			t.Errorf("%d calls after Stop", calls)
		}
	})
}

// came reports whether an alarm has rung.
func came(alarm <-chan time.Time) bool {
	select {
	case <-alarm:
		return true
	default:
		return false
	}
}

func TestTimer(t *testing.T) {
	over(t, func(t *testing.T, c clock.Clock, pass func(time.Duration)) {
		alarm, timer := c.NewTimer(time.Second)
		pass(999 * time.Millisecond)
		early := came(alarm)
		pass(time.Millisecond)
		if early || !came(alarm) || came(alarm) {
			t.Error("the alarm did not ring once, at its time")
		}
		timer.Reset(time.Second)
		pass(time.Second)
		timer.Reset(time.Second)
		if came(alarm) {
			t.Error("the old ring is left after Reset")
		}
		pass(time.Second)
		timer.Stop()
		if came(alarm) {
			t.Error("the old ring is left after Stop")
		}
	})
}

func TestTicker(t *testing.T) {
	over(t, func(t *testing.T, c clock.Clock, pass func(time.Duration)) {
		tick, ticker := c.NewTicker(time.Second)
		for i := range 3 {
			if pass(time.Second); !came(tick) {
				t.Errorf("no tick %d", i)
			}
		}
		ticker.Stop()
		if pass(5 * time.Second); came(tick) {
			t.Error("a tick after Stop")
		}
	})
}

// lateSource is a Source whose timers fire when the test says so, as if on a goroutine that is
// late.
type lateSource struct {
	clock.Source
	fire func()
	sets int
}

func (s *lateSource) AfterFunc(_ time.Duration, f func()) clock.Timer {
	s.fire = f
	return s
}

func (s *lateSource) Now() time.Time { return time.Unix(1e9, 0) }
func (s *lateSource) Stop() bool     { return false }
func (s *lateSource) Reset(time.Duration) bool {
	s.sets++
	return false
}

// TestStopLate: a timer that has fired when Stop or Reset is called does not ring, nor is it set
// again.
func TestStopLate(t *testing.T) {
	for _, stop := range []struct {
		call func(clock.Timer)
		sets int
	}{{func(t clock.Timer) { t.Stop() }, 0}, {func(t clock.Timer) { t.Reset(time.Minute) }, 1}} {
		s := new(lateSource)
		tick, ticker := clock.New(s).NewTicker(0)
		stop.call(ticker)
		s.fire()
		if came(tick) || s.sets != stop.sets {
			t.Errorf("a tick, or set %d times, want %d", s.sets, stop.sets)
		}
	}
}

// eagerSource is a Source whose timers fire before AfterFunc returns, on another goroutine.
type eagerSource struct{ lateSource }

func (s *eagerSource) AfterFunc(_ time.Duration, f func()) clock.Timer {
	go f()
	for range 1000 {
		runtime.Gosched()
	}
	return s
}

// TestFireAtOnce: a timer may fire before its AfterFunc has returned.
func TestFireAtOnce(t *testing.T) {
	tick, _ := clock.New(new(eagerSource)).NewTicker(0)
	<-tick
}

var errSlow = errors.New("slow")

func TestTimeout(t *testing.T) {
	over(t, func(t *testing.T, c clock.Clock, pass func(time.Duration)) {
		outer, cancelOuter := c.WithTimeoutCause(t.Context(), 3*time.Second, errSlow)
		defer cancelOuter()
		inner, cancelInner := c.WithTimeout(outer, 5*time.Second)
		defer cancelInner()
		short, cancelShort := c.WithTimeout(outer, time.Second)
		defer cancelShort()
		stopped, stop := c.WithTimeout(outer, time.Second)
		if at, ok := inner.Deadline(); !ok || !at.Equal(c.Now().Add(3*time.Second)) {
			t.Errorf("deadline %v", at)
		}
		if stop(); !errors.Is(stopped.Err(), context.Canceled) {
			t.Errorf("error %v after cancel", stopped.Err())
		}
		pass(time.Second)
		if short.Err() != context.DeadlineExceeded || context.Cause(short) != context.DeadlineExceeded || outer.Err() != nil {
			t.Errorf("after one second: %v, %v", short.Err(), outer.Err())
		}
		pass(2 * time.Second)
		<-inner.Done()
		for _, ctx := range []context.Context{outer, inner} {
			if ctx.Err() != context.DeadlineExceeded || context.Cause(ctx) != errSlow {
				t.Errorf("after three seconds: %v, %v", ctx.Err(), context.Cause(ctx))
			}
		}
		cancelInner()
		cancelOuter()
		if outer.Err() != context.DeadlineExceeded || inner.Err() != context.DeadlineExceeded ||
			!errors.Is(stopped.Err(), context.Canceled) {
			t.Error("cancel has changed an error")
		}
	})
}

func TestRandom(t *testing.T) {
	read := func(seed uint64) []byte {
		c, b := clock.New(stacktest.NewClock(seed)), make([]byte, 100)
		_, _ = c.Rand().Read(b)
		b[0] = byte(c.Uint32())
		return b
	}
	if !bytes.Equal(read(1), read(1)) || bytes.Equal(read(1), read(2)) {
		t.Error("random numbers do not follow from the seed")
	}
	b := make([]byte, 16)
	if _, err := (clock.Clock{}).Rand().Read(b); err != nil || bytes.Equal(b, make([]byte, 16)) {
		t.Errorf("%x, %v from the machine", b, err)
	}
}
