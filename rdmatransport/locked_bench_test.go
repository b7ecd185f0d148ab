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

// BenchmarkPollLocked is a look at an empty CQ on a network in memory, by a goroutine that is
// locked to its thread, as one that C calls is: with a Poll that makes the device progress, and so
// yields; with one that does not; at CQInitAttr.Ready. 0 allocs/op.
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

// BenchmarkPollersStall has four goroutines, each locked to its thread, poll empty CQs of one
// device on two processors, while another wakes up every 100 µs. It reports how late that was at
// worst, in µs, and how often more than 2 ms.
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
