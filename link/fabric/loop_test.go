package fabric_test

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/clock"
	"github.com/softrnic/softrnic/link/fabric"
	"github.com/softrnic/softrnic/link/linktest"
)

// TestTimers: timers that are set, set again and stopped at random run when a list of them says so.
func TestTimers(t *testing.T) {
	f := newFabric(t, &fabric.Config{Topology: fabric.Star(2)})
	c := f.Hosts()[0].Clock()
	const timers = 3000
	type run struct {
		timer int
		at    time.Duration
	}
	var due [timers]time.Duration // 0: not set
	var ran, want []run
	var all [timers]clock.Timer
	x := rand.New(rand.NewPCG(1, 2))
	for i := range all {
		due[i] = time.Millisecond
		all[i] = c.AfterFunc(due[i], func() { ran = append(ran, run{i, f.Now()}) })
	}
	for range 2000 {
		for range 30 {
			i := x.IntN(timers)
			set := due[i] != 0
			if x.IntN(3) == 0 {
				due[i] = 0
				if all[i].Stop() != set {
					t.Fatalf("Stop returns %t", !set)
				}
				continue
			}
			d := 1 + time.Duration(x.ExpFloat64()*1e6)
			due[i] = f.Now() + d
			if all[i].Reset(d) != set {
				t.Fatalf("Reset returns %t", !set)
			}
		}
		f.Run(10 * time.Microsecond)
		for i := range due {
			if due[i] != 0 && due[i] <= f.Now() {
				want = append(want, run{i, due[i]})
				due[i] = 0
			}
		}
		order := func(a, b run) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.timer, b.timer)) }
		slices.SortFunc(ran, order)
		slices.SortFunc(want, order)
		if !slices.Equal(ran, want) {
			t.Fatalf("at %v: %v, want %v", f.Now(), ran, want)
		}
		ran, want = ran[:0], want[:0]
	}
}

// TestStoppedTimers: timers that were stopped take no memory, also if their time would come later.
func TestStoppedTimers(t *testing.T) {
	f := newFabric(t, &fabric.Config{Topology: fabric.Star(1)})
	c := f.Hosts()[0].Clock()
	heap := func() int64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	moved := c.AfterFunc(time.Hour, func() {})
	before := heap()
	for i := range 200000 {
		c.AfterFunc(time.Hour, func() {}).Stop()
		moved.Reset(time.Hour - time.Duration(i))
	}
	if grown := heap() - before; grown > 1<<20 {
		t.Errorf("400,000 timers that do not run have %d bytes", grown)
	}
	runtime.KeepAlive(f)
}

// TestOrder: what happens at one instant happens in the order of the hosts.
func TestOrder(t *testing.T) {
	f := newFabric(t, &fabric.Config{Topology: fabric.Star(4)})
	to, got := f.Hosts()[3], ""
	to.Attach(func(frames []link.Frame) { got += fmt.Sprint(frames[0].Data[11]) })
	for _, i := range []int{1, 2, 0} {
		h := f.Hosts()[i]
		must(h.Write([]link.Frame{linktest.Plain(to.MAC(), h.MAC(), 100, "")}))(t)
	}
	f.Run(time.Millisecond)
	if got != "123" {
		t.Errorf("frames of the hosts %s arrive, in this order", got)
	}
}

// TestNext: nothing happens before the time that Next returns.
func TestNext(t *testing.T) {
	f := newFabric(t, &fabric.Config{Topology: fabric.Star(2)})
	if at, ok := f.Next(); ok {
		t.Errorf("something happens at %v", at)
	}
	ran := false
	f.Hosts()[0].Clock().AfterFunc(time.Second, func() { ran = true })
	at, there := f.Next()
	if f.Run(at - 1); ran || !there || at != time.Second {
		t.Errorf("the next event is at %v: %t", at, there)
	}
	if f.Run(1); !ran {
		t.Error("nothing happens then")
	}
	f.Hosts()[1].Go(func(*fabric.Process) {})
	if at, there := f.Next(); !there || at != f.Now() {
		t.Errorf("a process begins at %v: %t", at, there)
	}
}

// TestNextStopped: timers that were stopped or set to a later time are no events, for Next and for
// a Wait that fails.
func TestNextStopped(t *testing.T) {
	for workers := range 3 {
		f := newFabric(t, &fabric.Config{Topology: fabric.Dumbbell(1), Workers: workers})
		var stopped, later [2]clock.Timer
		for i, h := range f.Hosts() {
			stopped[i] = h.Clock().AfterFunc(time.Millisecond, func() { t.Error("a timer runs that was stopped") })
			later[i] = h.Clock().AfterFunc(time.Millisecond, func() {})
		}
		for i := range f.Hosts() {
			stopped[i].Stop()
			later[i].Reset(time.Duration(5-i) * time.Millisecond)
		}
		if at, there := f.Next(); !there || at != 4*time.Millisecond {
			t.Errorf("with %d workers, the next event is at %v: %t", workers, at, there)
		}
		later[0].Stop()
		later[1].Stop()
		if at, there := f.Next(); there {
			t.Errorf("with %d workers, something happens at %v", workers, at)
		}
		f.Hosts()[0].Go(func(p *fabric.Process) { p.Until(func() bool { return false }) })
		stopped[1].Reset(2 * time.Millisecond)
		stopped[1].Stop()
		if err := f.Wait(10 * time.Millisecond); err == nil || f.Now() >= time.Millisecond {
			t.Errorf("with %d workers, Wait ends at %v: %v", workers, f.Now(), err)
		}
	}
}

// TestTimersOfOneInstant: timers that are due at one instant run in the order in which they were
// set, whatever stopped timers there are: which of those are forgotten, and when, depends on the
// workers.
func TestTimersOfOneInstant(t *testing.T) {
	for workers := range 3 {
		for _, others := range []int{0, 3000} {
			f := newFabric(t, &fabric.Config{Topology: fabric.Dumbbell(1), Workers: workers})
			a, b := f.Hosts()[0].Clock(), f.Hosts()[1].Clock()
			order := ""
			runs := func(name string) func() { return func() { order += name } }
			first, second := a.AfterFunc(10*time.Microsecond, runs("1")), a.AfterFunc(20*time.Microsecond, runs("2"))
			first.Stop()
			b.AfterFunc(500*time.Nanosecond, func() {
				for range others {
					b.AfterFunc(time.Hour, func() {}).Stop()
				}
			})
			f.Run(2 * time.Microsecond)
			first.Reset(18 * time.Microsecond) // also after 20 µs
			a.AfterFunc(18*time.Microsecond, runs("3"))
			second.Reset(18 * time.Microsecond)
			if f.Run(time.Millisecond); order != "132" {
				t.Errorf("with %d workers and %d stopped timers, timers run in the order %s", workers, others, order)
			}
		}
	}
}
