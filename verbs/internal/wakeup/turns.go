package wakeup

import (
	"context"
	"sync"
	"sync/atomic"
)

// Clock is the part of verbs.Clock that waits need. See its methods there.
type Clock interface {
	Virtual() bool
	Go(f func())
	Park(ready func() bool)
}

// Await waits until done returns true. The lock of cond is held, also while done is called.
func Await(c Clock, cond *sync.Cond, done func() bool) {
	for !done() {
		if c.Virtual() {
			Unlocked(cond.L, func() {
				c.Park(func() bool {
					cond.L.Lock()
					defer cond.L.Unlock()
					return done()
				})
			})
			if done() {
				return
			}
		}
		cond.Wait()
	}
}

// Unlocked calls f without l, which is held before and afterwards, also if f panics: that is how a
// simulation ends the goroutines that wait.
func Unlocked(l sync.Locker, f func()) {
	l.Unlock()
	defer l.Lock()
	f()
}

// Receive waits until ch, on which nothing is sent, is closed.
func Receive[T any](c Clock, ch <-chan T) {
	if c.Virtual() {
		c.Park(func() bool { return Closed(ch) })
	}
	<-ch
}

// Take waits until ch has an element, which it takes, or done is closed, and reports whether it was
// the former. If both happen, select would choose at random. In turns, ch is first.
func Take[T any](c Clock, ch <-chan T, done <-chan struct{}) (v T, ok bool) {
	if c.Virtual() {
		c.Park(func() bool { return len(ch) > 0 || Closed(done) })
		select {
		case v = <-ch:
			return v, true
		default:
		}
	}
	select {
	case v = <-ch:
		return v, true
	case <-done:
		return v, false
	}
}

// Either waits until ch or done is closed, and reports whether ch is. On neither anything is sent.
func Either[T any](c Clock, ch <-chan T, done <-chan struct{}) bool {
	if c.Virtual() {
		c.Park(func() bool { return Closed(ch) || Closed(done) })
	}
	select {
	case <-ch:
		return true
	case <-done:
		return Closed(ch)
	}
}

// ReceiveContext is Receive within ctx, whose error it returns if that ends first.
func ReceiveContext[T any](ctx context.Context, c Clock, ch <-chan T) error {
	if Either(c, ch, ctx.Done()) {
		return nil
	}
	return ctx.Err()
}

// Closed reports whether ch, on which nothing is sent, is closed.
func Closed[T any](ch <-chan T) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

// Lock locks l, which others may hold while they wait.
func Lock(c Clock, l *sync.Mutex) {
	if c.Virtual() {
		c.Park(func() bool {
			if !l.TryLock() {
				return false
			}
			l.Unlock()
			return true
		})
	}
	l.Lock()
}

// Group is a group of goroutines, as a [sync.WaitGroup].
type Group struct {
	all     sync.WaitGroup
	running atomic.Int64
}

// Go runs f on a goroutine of the group.
func (g *Group) Go(c Clock, f func()) {
	g.Add()
	c.Go(func() {
		defer g.Done()
		f()
	})
}

// Add adds what others do, on any goroutine, until Done is called.
func (g *Group) Add() {
	g.running.Add(1)
	g.all.Add(1)
}

// Done ends what Add has begun.
func (g *Group) Done() {
	g.running.Add(-1)
	g.all.Done()
}

// Wait waits until the functions of all goroutines have returned, and Done was called for each Add.
func (g *Group) Wait(c Clock) {
	if c.Virtual() {
		c.Park(func() bool { return g.running.Load() == 0 })
	}
	g.all.Wait()
}

// Once calls a function once, as [sync.Once].
type Once struct {
	once         sync.Once
	begun, ended atomic.Bool
}

// Do calls f if it is the first call. The others wait until f has returned.
func (o *Once) Do(c Clock, f func()) {
	if c.Virtual() && !o.begun.CompareAndSwap(false, true) {
		c.Park(o.ended.Load)
	}
	o.once.Do(func() {
		defer o.ended.Store(true)
		f()
	})
}
