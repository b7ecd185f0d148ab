// Package clock has the time and the random numbers of a link, and of all that runs on it: the
// stack, the device, and its programs. They are those of the machine, or of a simulation.
//
// The zero Clock is the machine's. It costs one comparison more than package time. A link with a
// time of its own returns another one; see link.Clocked. It is for tests of applications: in the
// time of a simulation, minutes pass in milliseconds, and each run takes the same course.
package clock

import (
	"crypto/rand"
	"encoding/binary"
	"io"
	mathrand "math/rand/v2"
	"sync"
	"time"
)

// Source is a time in place of the machine's. Its methods may be called from any goroutine.
type Source interface {
	// Now returns the time. It has no monotonic reading, and never goes back.
	Now() time.Time
	// AfterFunc calls f when d has passed, as [time.AfterFunc] does: later, and not from AfterFunc or
	// Reset themselves. Unlike there, the functions of one Source may be called on one goroutine,
	// after each other, so f must not wait for what another of them does.
	AfterFunc(d time.Duration, f func()) Timer
	// Read fills b with random numbers. It does not fail.
	Read(b []byte) (int, error)
}

// Scheduler is a Source whose goroutines take turns, so that the time stands while one of them
// runs.
type Scheduler interface {
	Source
	// Go runs f on a goroutine that takes part in the turns.
	Go(f func())
	// Park lets others run until ready returns true. Any goroutine may call ready, at any time that
	// the caller's turn could begin. ready does not wait.
	Park(ready func() bool)
}

// Timer is a timer. Its methods are those of a [time.Timer].
type Timer = interface {
	Stop() bool
	Reset(d time.Duration) bool
}

// Clock is the machine's clock, or a Source.
type Clock struct{ source Source }

// New returns the clock of a source. With nil it is the machine's.
func New(s Source) Clock { return Clock{s} }

// Virtual reports whether this is not the machine's clock. The time may then stand while a
// goroutine spins.
func (c Clock) Virtual() bool { return c.source != nil }

// Now returns the time.
func (c Clock) Now() time.Time {
	if c.source != nil {
		return c.source.Now()
	}
	return time.Now()
}

// Since returns the time that has passed since t.
func (c Clock) Since(t time.Time) time.Duration {
	if c.source != nil {
		return c.source.Now().Sub(t)
	}
	return time.Since(t)
}

// Until returns the time until t.
func (c Clock) Until(t time.Time) time.Duration { return -c.Since(t) }

// AfterFunc calls f after d; see [Source].
func (c Clock) AfterFunc(d time.Duration, f func()) Timer {
	if c.source != nil {
		return c.source.AfterFunc(d, f)
	}
	return time.AfterFunc(d, f)
}

// NewTimer returns a timer that sends the time on a channel when d has passed, as a [time.Timer].
// After Stop and Reset, nothing older is on the channel.
func (c Clock) NewTimer(d time.Duration) (<-chan time.Time, Timer) {
	if c.source == nil {
		t := time.NewTimer(d)
		return t.C, t
	}
	return c.newAlarm(d, 0)
}

// NewTicker returns a timer that sends the time on a channel every d, as a [time.Ticker].
func (c Clock) NewTicker(d time.Duration) (<-chan time.Time, Timer) {
	if c.source == nil {
		t := time.NewTicker(d)
		return t.C, ticker{t}
	}
	return c.newAlarm(d, d)
}

// ticker is a time.Ticker as a Timer.
type ticker struct{ *time.Ticker }

func (t ticker) Stop() bool {
	t.Ticker.Stop()
	return true
}

func (t ticker) Reset(d time.Duration) bool {
	t.Ticker.Reset(d)
	return true
}

// alarm is a timer of a Source with a channel.
type alarm struct {
	source Source
	again  time.Duration // 0: it rings once
	passed chan time.Time

	mu      sync.Mutex
	timer   Timer
	running bool
	at      time.Time // when it rings next
}

func (c Clock) newAlarm(d, again time.Duration) (<-chan time.Time, Timer) {
	a := &alarm{source: c.source, again: again, passed: make(chan time.Time, 1), running: true, at: c.source.Now().Add(d)}
	a.mu.Lock()
	defer a.mu.Unlock() // ring may be called before timer is set
	a.timer = c.source.AfterFunc(d, a.ring)
	return a.passed, a
}

// ring is called when the timer has fired. Meanwhile, Stop or Reset may have been called.
func (a *alarm) ring() {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := a.source.Now()
	if !a.running || now.Before(a.at) {
		return
	}
	if a.running = a.again > 0; a.running {
		a.start(a.again)
	}
	select {
	case a.passed <- now:
	default:
	}
}

// start sets the timer. mu is held.
func (a *alarm) start(d time.Duration) {
	a.at = a.source.Now().Add(d)
	a.timer.Reset(d)
}

// stop stops the timer, and reports whether it was running. mu is held.
func (a *alarm) stop() bool {
	running := a.running
	a.running = false
	a.timer.Stop()
	select {
	case <-a.passed:
	default:
	}
	return running
}

// Stop implements Timer.
func (a *alarm) Stop() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.stop()
}

// Reset implements Timer. It changes the period of a ticker.
func (a *alarm) Reset(d time.Duration) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	running := a.stop()
	a.running = true
	if a.again > 0 {
		a.again = d
	}
	a.start(d)
	return running
}

// Go runs f on a goroutine of its own.
func (c Clock) Go(f func()) {
	if s, ok := c.source.(Scheduler); ok {
		s.Go(f)
	} else {
		go f()
	}
}

// Park is called before a wait that ready ends. It waits in place of the caller if the clock's
// source is a [Scheduler], and returns at once if not.
func (c Clock) Park(ready func() bool) {
	if s, ok := c.source.(Scheduler); ok {
		s.Park(ready)
	}
}

// Rand returns a source of random numbers that peers must not be able to guess: crypto/rand, or the
// clock's source.
func (c Clock) Rand() io.Reader {
	if c.source != nil {
		return c.source
	}
	return rand.Reader
}

// Uint32 returns a random number that need not be secret.
func (c Clock) Uint32() uint32 {
	if c.source == nil {
		return mathrand.Uint32()
	}
	var b [4]byte
	_, _ = c.source.Read(b[:])
	return binary.LittleEndian.Uint32(b[:])
}
