// Package rest is what a program does that polls and finds nothing.
package rest

import (
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Vain knows since when polls have found nothing. Any goroutine may call its methods.
//
// After a while a poller sleeps, a part of the time, rather than yield. To yield is not enough where processors are scarce:
// the kernel asks who yields first, and may choose it again. On Linux 6.18 with CONFIG_SCHED_AUTOGROUP two programs that polled
// and yielded kept both processors for tens of seconds, while the hubs of theirs were ready to run and connections broke:
// the time of the session of those two did not count, as /sys/kernel/debug/sched/debug showed. To spin without yielding
// broke nothing in 180 s, where to sleep took 50 s for the whole.
type Vain struct {
	After time.Duration // how long polls find nothing before In tells; 0 is a millisecond
	since atomic.Int64  // as of time.Since(birth); 0: not known
	slept atomic.Int64  // when Sleep last did
}

var birth = time.Now().Add(-1) // of this program: no time since then is 0

// Found is called when a poll has found something.
func (v *Vain) Found() {
	if v.since.Load() != 0 {
		v.since.Store(0)
	}
}

// In tells, when a poll has found nothing, whether none has for After.
func (v *Vain) In() bool {
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

// restTime is how long Sleep is, and as much again, which is what the kernel adds to sleeps by default. pollTime is how long polls go
// on before the next: as long, so that a poller looks half of the time.
const (
	restTime = 50 * time.Microsecond
	pollTime = 100 * time.Microsecond
)

// Sleep sleeps, unless it has done so a moment ago. The thread is not given up to other goroutines: nothing that this one waits
// for is late by more.
func (v *Vain) Sleep() {
	slept := v.slept.Load()
	if int64(time.Since(birth))-slept < int64(pollTime) && slept != 0 {
		return
	}
	t := unix.NsecToTimespec(int64(restTime))
	_ = unix.Nanosleep(&t, nil)
	v.slept.Store(int64(time.Since(birth)))
}

// Yield lets another thread run on this processor. It is a system call that returns at once, so the runtime need not know of it.
func Yield() { _, _, _ = unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }
