package host

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/internal/wakeup"
)

// waiter is a goroutine that waits for a response or a slot.
type waiter struct {
	ready atomic.Bool
	wake  chan struct{} // has an element when the waiter has to look again
	slot  *slot         // that it has been given; nil of a waiter for a response
}

// sleep waits for signal. It returns the error of ctx if that ends first.
func (w *waiter) sleep(ctx context.Context, c verbs.Clock) error {
	if _, ok := wakeup.Take(c, w.wake, ctx.Done()); !ok {
		return ctx.Err()
	}
	return nil
}

func (w *waiter) signal() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// wake makes a waiter ready. mu is held.
func (q *queue) wake(w *waiter) {
	w.ready.Store(true)
	if i := slices.Index(q.waiting, w); i >= 0 {
		q.forget(i)
	}
	w.signal()
}

// forget removes a waiter from waiting. mu is held.
func (q *queue) forget(i int) {
	last := len(q.waiting) - 1
	q.waiting[i] = q.waiting[last]
	q.waiting[last] = nil
	q.waiting = q.waiting[:last]
}

// await waits until a waiter is ready. It returns the error of ctx if that ends first.
//
// The goroutine that gets poll takes completions until its own is among them. It then wakes another
// waiter, which takes poll. A waiter enters waiting before it tries to get poll, so either it gets
// poll, or the holder finds it there.
func (q *queue) await(ctx context.Context, w *waiter) error {
	if q.poll.TryLock() { // likely alone
		err := q.lead(ctx, w)
		if err != nil || w.ready.Load() {
			return err
		}
	}
	q.mu.Lock()
	if w.ready.Load() {
		q.mu.Unlock()
		return nil
	}
	q.waiting = append(q.waiting, w)
	q.mu.Unlock()
	for {
		if q.poll.TryLock() {
			err := q.lead(ctx, w)
			if err != nil {
				return q.leave(w, err)
			}
		}
		if w.ready.Load() {
			return nil
		}
		if err := w.sleep(ctx, q.s.c.clock); err != nil {
			return q.leave(w, err)
		}
	}
}

// leave ends the wait of a waiter whose ctx has ended. It returns nil if the waiter has become
// ready meanwhile.
func (q *queue) leave(w *waiter, err error) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if w.ready.Load() {
		return nil
	}
	if i := slices.Index(q.waiting, w); i >= 0 {
		q.forget(i)
	}
	q.wakeNext() // w may be the one that was woken
	return err
}

// handOver unlocks poll, and wakes a waiter so that it takes it.
func (q *queue) handOver() {
	q.poll.Unlock()
	q.mu.Lock()
	defer q.mu.Unlock()
	q.attend()
	q.wakeNext()
}

// wakeNext wakes a waiter, which takes poll if nobody has it. mu is held.
func (q *queue) wakeNext() {
	if n := len(q.waiting); n > 0 {
		q.waiting[n-1].signal()
	}
}

// lead takes completions until a waiter is ready or the queue has ended. poll is held, and handed
// over at the end. It returns the error of ctx if that ends first.
func (q *queue) lead(ctx context.Context, w *waiter) error {
	defer q.handOver()
	for !w.ready.Load() && !q.ended() {
		if err := q.progress(ctx); err != nil {
			return err
		}
	}
	return nil
}

// progress waits for completions, and handles them. poll is held. The error is that of ctx: other
// errors end the queue.
func (q *queue) progress(ctx context.Context) error {
	n, err := q.cq.Wait(ctx, q.wcs[:])
	if err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		q.fail(err)
		return nil
	}
	q.handleAll(n)
	return nil
}

// handleAll handles the first completions of wcs.
func (q *queue) handleAll(n int) {
	for i := range q.wcs[:n] {
		if err := q.handle(&q.wcs[i]); err != nil {
			q.fail(err)
			return
		}
	}
}

// ended reports whether the queue has ended.
func (q *queue) ended() bool { return q.reason() != nil }

// reason returns why the queue has ended, or nil.
func (q *queue) reason() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.err
}

// acquire returns a free slot. If there is none it waits, or without wait returns nil. A goroutine
// that has slots must not wait for another one.
func (q *queue) acquire(ctx context.Context, wait bool) (*slot, error) {
	q.mu.Lock()
	s := q.take()
	if s != nil || q.err != nil || !wait {
		defer q.mu.Unlock()
		return s, q.err
	}
	w := q.spareWaiter()
	q.wanting = append(q.wanting, w)
	q.mu.Unlock()
	err := q.awaitSlot(ctx, w)
	q.mu.Lock()
	defer q.mu.Unlock()
	if i := slices.Index(q.wanting, w); i >= 0 {
		q.wanting = slices.Delete(q.wanting, i, i+1)
	}
	s, w.slot = w.slot, nil
	q.spare = append(q.spare, w)
	switch {
	case s == nil && err == nil:
		err = q.err
	case s != nil && err != nil:
		q.release(s)
		s = nil
	}
	q.attend()
	return s, err
}

// spareWaiter returns a waiter that nobody uses. mu is held.
func (q *queue) spareWaiter() *waiter {
	n := len(q.spare)
	if n == 0 {
		return &waiter{wake: make(chan struct{}, 1)}
	}
	w := q.spare[n-1]
	q.spare = q.spare[:n-1]
	w.ready.Store(false)
	return w
}

// attendInterval is the time for which a goroutine that waits for a slot takes completions.
const attendInterval = time.Millisecond

// awaitSlot waits until a waiter has a slot, or the queue has ended. It returns the error of ctx if
// that ends first. Slots come from goroutines that wait for responses, so it does not take
// completions, unless nobody else does.
func (q *queue) awaitSlot(ctx context.Context, w *waiter) error {
	for !w.ready.Load() {
		q.mu.Lock()
		attend := q.unattended() && q.wanting[0] == w
		q.mu.Unlock()
		if attend && q.poll.TryLock() {
			if q.attendFor(ctx, w); ctx.Err() != nil {
				return ctx.Err()
			}
			continue
		}
		if err := w.sleep(ctx, q.s.c.clock); err != nil {
			return err
		}
	}
	return nil
}

// attendFor takes completions for a short time, unless a waiter is ready or the queue has ended.
// poll is held, and handed over at the end.
func (q *queue) attendFor(ctx context.Context, w *waiter) {
	defer q.handOver()
	short, cancel := q.s.c.clock.WithTimeout(ctx, attendInterval)
	defer cancel()
	if !w.ready.Load() && !q.ended() {
		_ = q.progress(short)
	}
}

// unattended reports whether there may be completions that no goroutine waits for: those of
// abandoned commands, and of requests without which there is no room in the send queue. mu is held.
func (q *queue) unattended() bool {
	return q.err == nil && len(q.wanting) > 0 && (q.abandoned > 0 || len(q.free) > 0)
}

// attend makes the first goroutine that waits for a slot take completions, if nobody else does. mu
// is held.
func (q *queue) attend() {
	if q.unattended() {
		q.wanting[0].signal()
	}
}

// finish waits for the response of a slot, and returns the outcome of its command. If ctx ends
// first, the slot is abandoned. Otherwise it still belongs to the caller.
func (q *queue) finish(ctx context.Context, s *slot, application bool) (result uint64, had bool, err error) {
	if err := q.await(ctx, &s.waiter); err != nil {
		if application {
			q.fail(err)
		}
		q.abandon(s)
		return 0, false, err
	}
	return s.result, true, s.outcome()
}

// abandon leaves a slot to the response, or frees it if that has come.
func (q *queue) abandon(s *slot) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if s.ready.Load() {
		q.release(s)
		return
	}
	s.abandoned = true
	q.abandoned++
	q.attend()
}

// put frees a slot.
func (q *queue) put(s *slot) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.release(s)
}
