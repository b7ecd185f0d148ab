package idle

import (
	"runtime"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Poller decides what an empty poll does, on the goroutine of an application that polls a medium.
// Any goroutine may call its methods.
//
// A poller that has been idle for a while sleeps part of the time. Yielding is not enough where
// processors are scarce: the kernel may choose the yielding thread again. See README.md.
type Poller struct {
	medium Medium
	after  time.Duration // backoffAfter
	empty  atomic.Uint32 // polls that found nothing
	procs  atomic.Uint32 // procsUnknown, ...
	// When the first of the last empty polls was noticed, relative to birth; 0: the last poll found
	// something.
	since atomic.Int64
	slept atomic.Int64 // when the last sleep began, relative to birth
}

// Init sets the medium, before the first poll.
func (p *Poller) Init(m Medium) { p.medium, p.after = m, backoffAfter }

// SleepAfter replaces backoffAfter, for tests.
func (p *Poller) SleepAfter(d time.Duration) { p.after = d }

// Found is called when a poll has found something.
func (p *Poller) Found() {
	if p.since.Load() != 0 {
		p.since.Store(0)
	}
}

// Empty is called when a poll has found nothing. It yields or sleeps if that is due.
func (p *Poller) Empty() {
	n := p.empty.Add(1)
	procs := p.processors(n)
	if n%p.interval(procs) != 0 {
		return
	}
	a := p.decide(n, procs, p.idling())
	if a.gosched {
		runtime.Gosched()
	}
	if a.yield {
		yieldThread()
	}
	if a.sleep {
		p.sleep()
	}
}

// actions are what an empty poll does, in this order.
type actions struct{ gosched, yield, sleep bool }

// interval returns the number of empty polls between decisions.
func (p *Poller) interval(procs uint32) uint32 {
	if procs == procsOne {
		return p.medium.PollsPerGoschedOneP
	}
	return p.medium.PollsPerYield
}

func (p *Poller) decide(n, procs uint32, idling bool) (a actions) {
	m := &p.medium
	a.sleep = idling
	a.gosched = procs == procsOne || procs == procsNormal && (idling || n%m.PollsPerGosched == 0)
	a.yield = !idling && n%m.PollsPerYield == 0
	return a
}

// Values of Poller.procs. With procsSpare, GOMAXPROCS exceeds the number of CPUs. The engine of the
// drop-in libraries sets it so, because every C thread in Go counts as one. Then no goroutine needs
// the poller's P. On such a thread runtime.Gosched costs a sleep: the runtime hands the P to
// another thread, which must wake this one.
const (
	procsUnknown = iota
	procsOne
	procsNormal
	procsSpare
)

// processors returns the kind of GOMAXPROCS. Reading it takes a lock of the runtime, so it is read
// in one of 512 polls.
func (p *Poller) processors(n uint32) uint32 {
	procs := p.procs.Load()
	if procs == procsUnknown || n%512 == 0 {
		switch max := runtime.GOMAXPROCS(0); {
		case max == 1:
			procs = procsOne
		case max > runtime.NumCPU():
			procs = procsSpare
		default:
			procs = procsNormal
		}
		p.procs.Store(procs)
	}
	return procs
}

// idling reports whether no poll has found anything for p.after.
func (p *Poller) idling() bool {
	now := int64(time.Since(birth))
	since := p.since.Load()
	if since == 0 {
		p.since.Store(now)
	}
	return since != 0 && now-since >= int64(p.after)
}

// sleep blocks the thread for SleepTime, unless the last sleep began less than sleepInterval ago.
// The runtime does not give the P to other goroutines meanwhile: the sleep is too short to matter
// to them.
func (p *Poller) sleep() {
	now := int64(time.Since(birth))
	if slept := p.slept.Load(); slept != 0 && now-slept < int64(sleepInterval) {
		return
	}
	p.slept.Store(now)
	t := unix.NsecToTimespec(int64(SleepTime))
	_ = unix.Nanosleep(&t, nil)
}

// yieldThread lets another thread run on this processor. sched_yield returns at once, so the
// runtime need not know of the system call.
func yieldThread() { _, _, _ = unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }
