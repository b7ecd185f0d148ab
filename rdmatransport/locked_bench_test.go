package rdmatransport_test

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/verbs"
)

// BenchmarkPollLocked polls an empty CQ on a network in memory, on a goroutine that is locked to
// its thread, like one that C calls. It measures a Poll that calls Progress, and so yields, one
// that does not, and a read of CQInitAttr.Ready. 0 allocs/op.
func BenchmarkPollLocked(b *testing.B) {
	dev := newDevice(b, new(pipe.Switch).Port(), "10.0.0.1", nil).Device
	var wcs [16]verbs.WC
	for name, wait := range map[string]verbs.Wait{"WaitPoll": verbs.WaitPoll, "WaitEvent": verbs.WaitEvent} {
		b.Run(name, func(b *testing.B) {
			cq := made(dev.CreateCQ(16, &verbs.CQInitAttr{Wait: wait}))(b)
			defer cq.Close()
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			b.ReportAllocs()
			for b.Loop() {
				if n, err := cq.Poll(wcs[:]); n != 0 || err != nil {
					b.Fatal(n, err)
				}
			}
		})
	}
	b.Run("Ready", func(b *testing.B) {
		var ready atomic.Uint32
		cq := made(dev.CreateCQ(16, &verbs.CQInitAttr{Wait: verbs.WaitEvent, Ready: &ready}))(b)
		defer cq.Close()
		b.ReportAllocs()
		for b.Loop() {
			if ready.Load() != 0 {
				b.Fatal("the CQ is not empty")
			}
		}
	})
}

// BenchmarkPollersStall polls empty CQs of one device on four goroutines, each locked to its
// thread, with two processors. Another goroutine wakes up every 100 µs. It reports the largest
// delay of a wakeup in µs, and how many delays were longer than 2 ms.
func BenchmarkPollersStall(b *testing.B) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2))
	dev := newDevice(b, new(pipe.Switch).Port(), "10.0.0.1", nil).Device
	var stop atomic.Bool
	var pollers sync.WaitGroup
	for range 4 {
		cq := made(dev.CreateCQ(16, &verbs.CQInitAttr{Wait: verbs.WaitPoll}))(b)
		pollers.Go(func() {
			defer cq.Close()
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			var wcs [16]verbs.WC
			for !stop.Load() {
				if _, err := cq.Poll(wcs[:]); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	const every, stall = 100 * time.Microsecond, 2 * time.Millisecond
	var worst time.Duration
	stalls := 0
	for b.Loop() {
		start := time.Now()
		time.Sleep(every)
		late := time.Since(start) - every
		worst = max(worst, late)
		if late > stall {
			stalls++
		}
	}
	stop.Store(true)
	pollers.Wait()
	b.ReportMetric(float64(worst.Microseconds()), "worst-µs")
	b.ReportMetric(float64(stalls), "stalls")
}
