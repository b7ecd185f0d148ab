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
