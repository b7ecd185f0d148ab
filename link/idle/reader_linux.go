package idle

import (
	"runtime"
	"time"
)

// Wait selects how a reader waits for frames. The values are those of link.Wait.
type Wait uint8

const (
	WaitAdaptive Wait = iota // spin after traffic, where that pays, then sleep
	WaitEvent                // sleep at once
	WaitPoll                 // never sleep
)

// Reader decides what a medium's own goroutine does after an empty read: yield to other goroutines,
// read again, or sleep. Only that goroutine may call its methods.
//
// After traffic, goroutines that the frames have woken should run before the next wait. But each
// runtime.Gosched may wake a thread that looks for work and takes a processor from another thread.
// Between superframes, which come by the thousand, the goroutine therefore yields only once in
// goschedInterval. With GOMAXPROCS 1 there is no other thread, and nothing else runs before it
// yields: it does so after every few superframes, also if more are waiting.
type Reader struct {
	wait    Wait
	spin    spin
	fresh   bool      // frames were received since the goroutine last spun or slept
	owed    bool      // frames were received since the goroutine last yielded
	bulk    bool      // the last frame was a superframe
	yielded time.Time // when the goroutine last yielded
	until   time.Time // when to stop spinning; zero: not spinning
	empty   uint32    // reads that found nothing
	oneP    bool      // GOMAXPROCS is 1
	busy    uint32    // superframes since the goroutine last yielded
}

// NewReader returns a Reader that spins as s says.
func NewReader(s *Spinner, wait Wait) *Reader { return &Reader{wait: wait, spin: spin{Spinner: s}} }

// Received records that frames came. bulk says that the last was a superframe. It may yield.
func (r *Reader) Received(bulk bool) {
	r.fresh, r.owed, r.bulk = true, true, bulk
	r.endSpin(true)
	if r.dueWhileBusy() {
		runtime.Gosched()
	}
}

// dueWhileBusy counts a superframe, and reports whether the goroutine yields although more may be
// waiting.
func (r *Reader) dueWhileBusy() bool {
	if r.spin.Parks || !r.oneP || !r.bulk {
		return false
	}
	if r.busy++; r.busy < superframesPerGosched {
		return false
	}
	r.busy, r.owed = 0, false
	return true
}

// Yielded records that other goroutines have run since Received.
func (r *Reader) Yielded() { r.owed = false }

// Stop records that another goroutine receives from now on.
func (r *Reader) Stop() { r.fresh, r.owed, r.until = false, false, time.Time{} }

// Empty is called when a read has found nothing. It yields if that is due, and reports whether the
// goroutine sleeps now. Otherwise it reads again.
func (r *Reader) Empty() (sleep bool) {
	switch r.decide(time.Now()) {
	case sleepNow:
		return true
	case gosched:
		runtime.Gosched()
		return false
	}
	switch r.spin.yield {
	case yieldThreads:
		yieldThread()
	case yieldGoroutines:
		runtime.Gosched()
	case yieldBoth:
		runtime.Gosched()
		if r.oneP {
			yieldThread()
		}
	}
	return false
}

// action is the result of a Reader's decision.
type action uint8

const (
	readAgain action = iota // the reader spins
	gosched                 // yield to other goroutines, then read again
	sleepNow
)

// decide records that a read found nothing at the given time.
func (r *Reader) decide(now time.Time) action {
	r.empty++
	if r.empty%readsPerGosched == 1 {
		r.oneP = runtime.GOMAXPROCS(0) == 1
	}
	if r.fresh && r.until.IsZero() && r.wait == WaitAdaptive {
		r.fresh = false
		if d := r.spin.next(); d > 0 {
			r.until = now.Add(d)
		}
	}
	spinning := r.wait == WaitPoll || now.Before(r.until)
	yieldsFirst := !r.spin.Parks // before it sleeps
	if spinning {
		yieldsFirst = !r.bulk || now.Sub(r.yielded) >= goschedInterval
	}
	switch {
	case r.owed && yieldsFirst:
		r.owed, r.yielded, r.busy = false, now, 0
		return gosched
	case spinning && (r.empty%readsPerGosched == 0 || r.oneP && r.empty%readsPerGoschedOneP == 0):
		return gosched
	case spinning:
		return readAgain
	}
	r.endSpin(false)
	return sleepNow
}

// endSpin ends a spin, if the goroutine spins.
func (r *Reader) endSpin(found bool) {
	if !r.until.IsZero() {
		r.spin.spun(found)
		r.until = time.Time{}
	}
}

// YieldBeforeSleep lets other goroutines run before the caller blocks in a raw system call, which
// keeps its P. With GOMAXPROCS above 1 another P runs them, and the call does nothing.
//
// One runtime.Gosched is not enough. On every 61st turn Go's scheduler takes the head of the global
// queue, and that may be the caller itself. The other goroutines would then wait until sysmon
// retakes the P, 10 ms or more later.
func YieldBeforeSleep() {
	if runtime.GOMAXPROCS(0) == 1 {
		runtime.Gosched()
		runtime.Gosched()
	}
}
