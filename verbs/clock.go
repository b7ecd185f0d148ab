package verbs

import (
	"context"
	"math/rand/v2"
	"time"
)

// Clock is the time of a device, with timers and random numbers. It is the machine's, or that of a
// simulated network.
type Clock interface {
	Now() time.Time
	Since(t time.Time) time.Duration
	Until(t time.Time) time.Duration
	// AfterFunc calls f after d, as [time.AfterFunc]. In the time of a simulation, the functions of
	// one clock may be called on one goroutine, so f must not wait for what another of them does.
	AfterFunc(d time.Duration, f func()) Timer
	// NewTimer returns a timer that sends the time on a channel, as [time.NewTimer].
	NewTimer(d time.Duration) (<-chan time.Time, Timer)
	// NewTicker returns a timer that sends the time on a channel every d, as [time.NewTicker].
	NewTicker(d time.Duration) (<-chan time.Time, Timer)
	// WithTimeout is [context.WithTimeout] in the clock's time.
	WithTimeout(parent context.Context, d time.Duration) (context.Context, context.CancelFunc)
	// Uint32 returns a random number that need not be secret.
	Uint32() uint32
	// Virtual reports whether this is not the machine's clock. The time may then stand while a
	// goroutine spins.
	Virtual() bool
	// Go runs f on a goroutine of its own. If the goroutines of a simulation take turns, f takes
	// part.
	Go(f func())
	// Park is called before a wait that ready ends. If goroutines take turns it lets others run until
	// ready returns true, and returns at once if not. ready may be called from any goroutine, and
	// does not wait.
	Park(ready func() bool)
}

// Timer is a timer of a [Clock]. Its methods are those of a [time.Timer].
type Timer = interface {
	Stop() bool
	Reset(d time.Duration) bool
}

// Clocked is a Provider with a time of its own: that of its network.
type Clocked interface {
	// Clock returns the provider's clock, always the same.
	Clock() Clock
}

// machine is the machine's clock.
type machine struct{}

func (machine) Now() time.Time                            { return time.Now() }
func (machine) Since(t time.Time) time.Duration           { return time.Since(t) }
func (machine) Until(t time.Time) time.Duration           { return time.Until(t) }
func (machine) AfterFunc(d time.Duration, f func()) Timer { return time.AfterFunc(d, f) }
func (machine) Uint32() uint32                            { return rand.Uint32() }
func (machine) Go(f func())                               { go f() }
func (machine) Park(func() bool)                          {}
func (machine) Virtual() bool                             { return false }

func (machine) NewTimer(d time.Duration) (<-chan time.Time, Timer) {
	t := time.NewTimer(d)
	return t.C, t
}

func (machine) NewTicker(d time.Duration) (<-chan time.Time, Timer) {
	t := time.NewTicker(d)
	return t.C, ticker{t}
}

func (machine) WithTimeout(parent context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(parent, d)
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
