package ring

import (
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestPollsInVainSleep: a program whose polls find nothing for long sleeps between them, rather than only yield: a kernel may give
// the processor to one who yields again and again, and never to those who would fill the rings.
func TestPollsInVainSleep(t *testing.T) {
	old := runtime.GOMAXPROCS(runtime.NumCPU() + 1) // so that the runtime has no reason to put this thread to sleep
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
		min, max int64 // sleeps: a signal may end one, and others may put the thread to sleep
	}{
		{"at first", true, time.Hour, 0, polls / 100},
		{"later", true, 1, 2, polls / hubYieldPolls},
		{"later, without a hub", false, 1, 2, polls / yieldPolls},
	} {
		g := NewGroup()
		g.vain.After = c.after
		if c.hub {
			g.FilledByHub()
		}
		before := sleeps()
		for range polls {
			g.Poll()
		}
		if n := sleeps() - before; n < c.min || n > c.max {
			t.Errorf("%s: %d sleeps in %d polls that found nothing, want %d to %d", c.name, n, polls, c.min, c.max)
		}
	}
}
