package stacktest

import (
	"encoding/binary"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/clock"
)

// Clock is a time that stands until Advance. It is a clock.Source for tests.
type Clock struct {
	mu     sync.Mutex
	now    time.Time
	order  uint64
	timers map[*timer]struct{} // those that are set
	random *rand.ChaCha8
}

// NewClock returns a clock that stands at the start of the year 2000.
func NewClock(seed uint64) *Clock {
	var key [32]byte
	binary.LittleEndian.PutUint64(key[:], seed)
	return &Clock{now: time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC), timers: map[*timer]struct{}{}, random: rand.NewChaCha8(key)}
}

// Now implements clock.Source.
func (c *Clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// Read implements clock.Source.
func (c *Clock) Read(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.random.Read(b)
}

// AfterFunc implements clock.Source.
func (c *Clock) AfterFunc(d time.Duration, f func()) clock.Timer {
	t := &timer{c: c, f: f}
	t.Reset(d)
	return t
}

// Advance lets time pass. It calls the functions that are due, each at its time.
func (c *Clock) Advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	end := c.now.Add(d)
	for {
		var next *timer
		for t := range c.timers {
			if !t.due.After(end) && (next == nil || t.due.Before(next.due) || t.due.Equal(next.due) && t.order < next.order) {
				next = t
			}
		}
		if next == nil {
			c.now = end
			return
		}
		delete(c.timers, next)
		if next.due.After(c.now) {
			c.now = next.due
		}
		c.mu.Unlock()
		next.f()
		c.mu.Lock()
	}
}

// timer is a timer of a Clock.
type timer struct {
	c     *Clock
	f     func()
	due   time.Time
	order uint64
}

// Stop implements clock.Timer.
func (t *timer) Stop() bool {
	t.c.mu.Lock()
	defer t.c.mu.Unlock()
	_, set := t.c.timers[t]
	delete(t.c.timers, t)
	return set
}

// Reset implements clock.Timer.
func (t *timer) Reset(d time.Duration) bool {
	t.c.mu.Lock()
	defer t.c.mu.Unlock()
	_, set := t.c.timers[t]
	t.c.order++
	t.due, t.order = t.c.now.Add(d), t.c.order
	t.c.timers[t] = struct{}{}
	return set
}

// On returns l with a clock of its own.
func (c *Clock) On(l link.Link) link.Link { return &clocked{l, clock.New(c)} }

// clocked is a link with a clock.
type clocked struct {
	link.Link
	clock clock.Clock
}

// Clock implements link.Clocked.
func (l *clocked) Clock() clock.Clock { return l.clock }
