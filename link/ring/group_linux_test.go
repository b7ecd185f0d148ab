package ring

import (
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softrnic/softrnic/link/idle"
)

// TestIdlePollsSleep checks that a poller sleeps when its polls have found nothing for long.
// Yielding is not enough: the kernel may choose the yielding thread again and starve the processes
// that fill the rings.
func TestIdlePollsSleep(t *testing.T) {
	// So that the runtime has no reason to put this thread to sleep.
	old := runtime.GOMAXPROCS(runtime.NumCPU() + 1)
	defer runtime.GOMAXPROCS(old)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	sleeps := func() int64 {
		var u unix.Rusage
		if err := unix.Getrusage(unix.RUSAGE_THREAD, &u); err != nil {
			t.Fatal(err)
		}
		return int64(u.Nvcsw)
	}
	const polls = 200000
	for _, c := range []struct {
		name     string
		hub      bool
		after    time.Duration
		min, max int64 // sleeps: a signal may end one early, and others may put the thread to sleep
	}{
		{"at first", true, time.Hour, 0, polls / int64(idle.Hub.PollsPerYield) / 2},
		{"later", true, 1, 2, polls / int64(idle.Hub.PollsPerYield)},
		{"later, without a hub", false, 1, 2, polls / int64(idle.Ring.PollsPerYield)},
	} {
		g := NewGroup()
		if c.hub {
			g.SetHub()
		}
		g.poller.SleepAfter(c.after)
		before := sleeps()
		for range polls {
			g.Poll()
		}
		if n := sleeps() - before; n < c.min || n > c.max {
			t.Errorf("%s: %d sleeps in %d polls that found nothing, want %d to %d", c.name, n, polls, c.min, c.max)
		}
	}
}
