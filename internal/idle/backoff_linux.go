// Package idle is the backoff policy of loops that poll and find nothing.
package idle

import (
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Backoff measures for how long polls have found nothing. Any goroutine may call its methods.
//
// A poller that has been idle for a while sleeps part of the time. Yielding is not enough where
// processors are scarce: the kernel may choose the yielding thread again. On Linux 6.18 with
// CONFIG_SCHED_AUTOGROUP, two programs that polled and yielded kept both processors for tens of
// seconds. Their hubs were runnable meanwhile, and connections broke. /sys/kernel/debug/sched/debug
// showed that the CPU time of the programs' session did not count. Spinning without yielding broke
// no connection within 180 s; with sleeps the whole run took 50 s.
type Backoff struct {
	After time.Duration // how long polls find nothing before Idle reports true; 0 means 1 ms
	since atomic.Int64  // relative to birth; 0: the last poll found something
	slept atomic.Int64  // when Sleep last returned, relative to birth
}

var birth = time.Now().Add(-1) // before the program started, so that no later time is 0

// Reset is called when a poll has found something.
func (v *Backoff) Reset() {
	if v.since.Load() != 0 {
		v.since.Store(0)
	}
}

// Idle is called when a poll has found nothing. It reports whether no poll has found anything for
// After.
func (v *Backoff) Idle() bool {
	after := v.After
	if after == 0 {
		after = time.Millisecond
	}
	now := int64(time.Since(birth))
	since := v.since.Load()
	if since == 0 {
		v.since.Store(now)
	}
	return since != 0 && now-since >= int64(after)
}

// sleepTime is the time that Sleep asks for; the kernel's timer slack adds about as much. pollTime
// is how long polling continues before the next sleep. The two are about equal, so that an idle
// poller polls half of the time.
const (
	sleepTime = 50 * time.Microsecond
	pollTime  = 100 * time.Microsecond
)

// Sleep blocks the thread for sleepTime, unless the last Sleep was less than pollTime ago. The
// runtime does not give the P to other goroutines meanwhile: the sleep is too short to matter to
// them.
func (v *Backoff) Sleep() {
	slept := v.slept.Load()
	if int64(time.Since(birth))-slept < int64(pollTime) && slept != 0 {
		return
	}
	t := unix.NsecToTimespec(int64(sleepTime))
	_ = unix.Nanosleep(&t, nil)
	v.slept.Store(int64(time.Since(birth)))
}

// YieldThread lets another thread run on this processor. sched_yield returns at once, so the
// runtime need not know of the system call.
func YieldThread() { _, _, _ = unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }
