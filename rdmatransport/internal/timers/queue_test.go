package timers_test

import (
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/softrnic/softrnic/link/clock"
	"github.com/softrnic/softrnic/rdmatransport/internal/timers"
	"github.com/softrnic/softrnic/tests/stacktest"
)

// run calls f with a queue in a bubble of virtual time. The bubble fails if the queue leaks a
// goroutine.
func run(t *testing.T, f func(q *timers.Queue)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		q := timers.New(clock.Clock{})
		f(q)
		q.Close()
	})
}

func in(d time.Duration) time.Time { return time.Now().Add(d) }

func TestThousandsFireAtTheirTimes(t *testing.T) {
	run(t, func(q *timers.Queue) {
		const count = 20_000
		random := rand.New(rand.NewPCG(1, 2))
		ts := make([]timers.Timer, count)
		due := make([]time.Time, count) // zero: not armed
		fired := 0
		var mu sync.Mutex // protects due and fired
		for i := range ts {
			ts[i].Init(func() {
				mu.Lock()
				defer mu.Unlock()
				if now := time.Now(); !now.Equal(due[i]) {
					t.Errorf("timer %d, due %v, fired %v late", i, due[i], now.Sub(due[i]))
				}
				due[i] = time.Time{}
				fired++
			})
		}
		arm := func(i int) {
			due[i] = in(time.Duration(random.Int64N(int64(10 * time.Second))))
			q.Arm(&ts[i], due[i])
		}
		mu.Lock()
		for i := range ts {
			arm(i)
		}
		// Before any of them is due: earlier, later, stopped, stopped and armed, removed, removed
		// and armed.
		for i := range ts {
			switch random.IntN(8) {
			case 0, 1:
				arm(i)
			case 2:
				q.Stop(&ts[i])
				due[i] = time.Time{}
			case 3:
				q.Stop(&ts[i])
				arm(i)
			case 4:
				q.Remove(&ts[i])
				due[i] = time.Time{}
			case 5:
				q.Remove(&ts[i])
				arm(i)
			}
		}
		want := 0
		for i := range due {
			if ts[i].Armed() != !due[i].IsZero() {
				t.Fatalf("timer %d: Armed %v", i, ts[i].Armed())
			}
			if !due[i].IsZero() {
				want++
			}
		}
		mu.Unlock()
		time.Sleep(11 * time.Second)
		synctest.Wait()
		if fired != want {
			t.Errorf("%d fired, want %d", fired, want)
		}
	})
}

func TestArmAgain(t *testing.T) {
	run(t, func(q *timers.Queue) {
		start := time.Now()
		var fired []time.Duration
		var a timers.Timer
		a.Init(func() { fired = append(fired, time.Since(start)) })
		q.Arm(&a, in(time.Second))
		for range 10 { // each time before it is due, as acknowledgements arrive
			time.Sleep(500 * time.Millisecond)
			q.Arm(&a, in(time.Second))
		}
		time.Sleep(10 * time.Second)
		q.Arm(&a, in(2*time.Second))
		q.Arm(&a, in(time.Second))
		time.Sleep(10 * time.Second)
		q.Arm(&a, in(-time.Hour))
		synctest.Wait()
		q.Arm(&a, time.Time{})
		synctest.Wait()
		want := []time.Duration{6 * time.Second, 16 * time.Second, 25 * time.Second, 25 * time.Second}
		if len(fired) != len(want) {
			t.Fatalf("fired at %v, want %v", fired, want)
		}
		for i := range want {
			if fired[i] != want[i] {
				t.Fatalf("fired at %v, want %v", fired, want)
			}
		}
	})
}

func TestFarFuture(t *testing.T) {
	run(t, func(q *timers.Queue) {
		var a, b timers.Timer
		a.Init(func() { t.Error("fired, though due in centuries") })
		fired := false
		b.Init(func() { fired = true })
		q.Arm(&a, time.Now().AddDate(1000, 0, 0))
		q.Arm(&b, in(time.Hour))
		time.Sleep(2 * time.Hour)
		synctest.Wait()
		if !fired || !a.Armed() {
			t.Errorf("fired %v, far one armed %v", fired, a.Armed())
		}
	})
}

func TestStopBeforeDue(t *testing.T) {
	run(t, func(q *timers.Queue) {
		var a timers.Timer
		a.Init(func() { t.Error("fired after Stop") })
		q.Stop(&a)
		q.Remove(&a)
		q.Arm(&a, in(time.Second))
		time.Sleep(999 * time.Millisecond)
		q.Stop(&a)
		time.Sleep(time.Hour)
		q.Arm(&a, in(time.Second))
		q.Remove(&a)
		time.Sleep(time.Hour)
	})
}

// TestCallbackTakesTheArmersLock: callbacks wait for the lock that is held in calls of Arm and
// Stop.
func TestCallbackTakesTheArmersLock(t *testing.T) {
	run(t, func(q *timers.Queue) {
		type owner struct {
			mu    sync.Mutex
			timer timers.Timer
			runs  int
		}
		owners := make([]owner, 100)
		for i := range owners {
			o := &owners[i]
			o.timer.Init(func() {
				o.mu.Lock()
				defer o.mu.Unlock()
				if o.runs++; o.runs < 100 {
					q.Arm(&o.timer, in(time.Millisecond)) // periodic, from the callback itself
				}
			})
		}
		for range 50 {
			for i := range owners {
				o := &owners[i]
				o.mu.Lock()
				q.Stop(&o.timer)
				q.Arm(&o.timer, in(time.Microsecond))
				o.mu.Unlock()
			}
			time.Sleep(time.Millisecond)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		for i := range owners {
			if n := owners[i].runs; n < 100 {
				t.Fatalf("owner %d ran %d times", i, n)
			}
		}
	})
}

func TestCloseWaitsForTheCallback(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := timers.New(clock.Clock{})
		running, finish := make(chan struct{}), make(chan struct{})
		var a, b timers.Timer
		a.Init(func() { close(running); <-finish })
		b.Init(func() { t.Error("fired after Close") })
		q.Arm(&a, in(time.Second))
		q.Arm(&b, in(time.Second+1))
		<-running
		closed := false
		go func() { q.Close(); closed = true }()
		time.Sleep(time.Hour) // b is due too
		synctest.Wait()
		if closed {
			t.Error("Close returned while a callback ran")
		}
		close(finish)
		synctest.Wait()
		if !closed {
			t.Error("Close did not return after the callback")
		}
		q.Arm(&a, in(0))
		q.Arm(&b, in(0))
		q.Remove(&b)
		q.Close() // again
		time.Sleep(time.Hour)
	})
}

// TestRemovedTimerIsForgotten: the queue holds no reference, even if the timer was due in a year.
func TestRemovedTimerIsForgotten(t *testing.T) {
	q := timers.New(clock.Clock{})
	defer q.Close()
	type owner struct{ timer timers.Timer }
	freed := make(chan struct{})
	func() {
		o := new(owner)
		o.timer.Init(func() {})
		q.Arm(&o.timer, in(365*24*time.Hour))
		q.Remove(&o.timer)
		runtime.AddCleanup(o, func(struct{}) { close(freed) }, struct{}{})
	}()
	for range 100 {
		runtime.GC()
		runtime.Gosched()
		select {
		case <-freed:
			return
		default:
		}
	}
	t.Error("still referenced")
}

// TestNoneIsLost stresses the lock-free paths in real time: an armed timer fires.
func TestNoneIsLost(t *testing.T) {
	q := timers.New(clock.Clock{})
	defer q.Close()
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			var a timers.Timer
			var fired atomic.Bool
			done := make(chan struct{}, 1)
			a.Init(func() {
				fired.Store(true)
				select {
				case done <- struct{}{}:
				default:
				}
			})
			for i := range 2000 {
				q.Arm(&a, in(time.Duration(i%7)*time.Microsecond))
				q.Stop(&a)
				q.Arm(&a, in(time.Duration(i%11)*time.Microsecond))
				fired.Store(false)
				q.Arm(&a, in(time.Duration(i%5)*time.Microsecond))
				for !fired.Load() {
					<-done
				}
			}
		})
	}
	wg.Wait()
}

func BenchmarkArm(b *testing.B) {
	idle := func(b *testing.B, q *timers.Queue) {
		ts := make([]timers.Timer, 100_000)
		for i := range ts {
			ts[i].Init(func() {})
			q.Arm(&ts[i], in(time.Hour+time.Duration(i)*time.Millisecond))
		}
	}
	b.Run("later", func(b *testing.B) { // a retransmission timer that an acknowledgement postpones
		q := timers.New(clock.Clock{})
		defer q.Close()
		idle(b, q)
		var t timers.Timer
		t.Init(func() {})
		at := in(time.Hour)
		b.ReportAllocs()
		for b.Loop() {
			at = at.Add(time.Nanosecond)
			q.Arm(&t, at)
		}
	})
	b.Run("stop", func(b *testing.B) {
		q := timers.New(clock.Clock{})
		defer q.Close()
		idle(b, q)
		var t timers.Timer
		t.Init(func() {})
		at := in(time.Hour)
		b.ReportAllocs()
		for b.Loop() {
			at = at.Add(time.Nanosecond)
			q.Arm(&t, at)
			q.Stop(&t)
		}
	})
	b.Run("remove", func(b *testing.B) { // among 100,000 others
		q := timers.New(clock.Clock{})
		defer q.Close()
		idle(b, q)
		ts := make([]timers.Timer, 1024)
		for i := range ts {
			ts[i].Init(func() {})
		}
		at := in(time.Hour + time.Minute)
		b.ReportAllocs()
		i := 0
		for b.Loop() {
			t := &ts[i%len(ts)]
			q.Arm(t, at.Add(time.Duration(i%len(ts))*time.Microsecond))
			q.Remove(t)
			i++
		}
	})
}

func BenchmarkFire(b *testing.B) {
	q := timers.New(clock.Clock{})
	defer q.Close()
	var t timers.Timer
	fired := make(chan struct{}, 1)
	t.Init(func() { fired <- struct{}{} })
	b.ReportAllocs()
	for b.Loop() {
		q.Arm(&t, time.Time{})
		<-fired
	}
}

// TestOwnClock: on a clock other than the machine's, callbacks run when its time passes, at their
// times, and Close ends them.
func TestOwnClock(t *testing.T) {
	sim := stacktest.NewClock(1)
	q := timers.New(clock.New(sim))
	start := sim.Now()
	var at []time.Duration
	var again, later timers.Timer
	again.Init(func() {
		if at = append(at, sim.Now().Sub(start)); len(at) < 3 {
			q.ArmAt(&again, q.Now()+time.Second)
		}
	})
	later.Init(func() { t.Error("a callback after Close") })
	q.ArmAt(&later, time.Hour)
	q.Arm(&again, start.Add(time.Millisecond))
	sim.Advance(time.Minute)
	if want := []time.Duration{1e6, 1e6 + 1e9, 1e6 + 2e9}; !slices.Equal(at, want) {
		t.Errorf("callbacks at %v, want %v", at, want)
	}
	q.Close()
	sim.Advance(2 * time.Hour)
}
