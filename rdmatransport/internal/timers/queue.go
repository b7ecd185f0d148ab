// Package timers is a queue of timers for a whole device: any number of timers, one goroutine, one
// runtime timer. On a clock other than the machine's, that clock's timer takes the goroutine's
// place.
package timers

import (
	"container/heap"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/softrnic/softrnic/stack"
)

// Queue runs the callbacks of its timers, one at a time, on its own goroutine, which sleeps until
// the first is due. It holds no lock during a callback. A callback may therefore take a lock that
// is held in calls of Arm and Stop, and may call them itself.
//
// Timers that are armed repeatedly before they are due, such as retransmission timers, take no
// lock. Stop, and Arm with a later deadline, leave the timer's entry in the queue. The goroutine
// moves or removes it at its old time.
type Queue struct {
	clock stack.Clock
	start time.Time
	quit  chan struct{}
	done  chan struct{}

	turn sync.Mutex // without a goroutine: held by runDue

	mu      sync.Mutex
	entries entries
	wake    stack.Timer // for the first entry; set and reset under mu
	closed  bool
}

// Timer is one timer; it may be part of a larger struct. It belongs to one queue and must not be
// copied after Init.
type Timer struct {
	f        func()
	deadline atomic.Int64 // nanoseconds after Queue.start; 0: not armed
	// When the queue will next check the timer; noEntry: never. Written under Queue.mu.
	entry atomic.Int64
	index int // of the entry; under Queue.mu
}

const noEntry = math.MaxInt64

// Init sets the callback. It is called once, before all other methods.
func (t *Timer) Init(f func()) {
	t.f = f
	t.entry.Store(noEntry)
}

// Due returns when the callback is to run, in the time of Queue.Now; 0 if it is not armed.
func (t *Timer) Due() time.Duration { return time.Duration(t.deadline.Load()) }

// Armed reports whether the callback has yet to run.
func (t *Timer) Armed() bool { return t.deadline.Load() != 0 }

// New returns a queue on a clock. On the machine's clock it starts its goroutine, which runs until
// Close.
func New(c stack.Clock) *Queue {
	q := &Queue{clock: c, start: c.Now(), quit: make(chan struct{}), done: make(chan struct{})}
	if c.Virtual() {
		q.wake = c.AfterFunc(math.MaxInt64, func() {
			q.turn.Lock()
			defer q.turn.Unlock()
			q.runDue()
		})
		close(q.done)
		return q
	}
	wake, timer := c.NewTimer(math.MaxInt64)
	q.wake = timer
	go q.run(wake)
	return q
}

// Clock returns the queue's clock.
func (q *Queue) Clock() stack.Clock { return q.clock }

// Close waits for a running callback. No callback runs afterwards. It must not be called from a
// callback, or with a lock that a callback takes.
func (q *Queue) Close() {
	q.mu.Lock()
	if !q.closed {
		q.closed = true
		q.wake.Stop()
		close(q.quit)
	}
	q.mu.Unlock()
	<-q.done
	q.turn.Lock() // waits for runDue
	defer q.turn.Unlock()
}

// Arm makes the timer's callback run once, at the given time of the queue's clock, or at once if
// that has passed. It replaces any earlier time. Like Stop it does not wait: a callback that has
// already started, and may wait for a lock of the caller, still runs. A callback must therefore
// check whether it has work.
func (q *Queue) Arm(t *Timer, at time.Time) { q.arm(t, max(q.since(at), 1)) }

// ArmAt is Arm with a time of Now.
func (q *Queue) ArmAt(t *Timer, at time.Duration) { q.arm(t, max(int64(at), 1)) }

func (q *Queue) arm(t *Timer, deadline int64) {
	t.deadline.Store(deadline)
	// If there is an entry that is due no later, the goroutine will read the deadline then: it
	// unsets entry before it reads deadline, and this function uses the opposite order.
	if t.entry.Load() <= deadline {
		return
	}
	q.mu.Lock()
	q.schedule(t)
	q.mu.Unlock()
}

// Stop disarms the timer. The queue keeps its entry, and a reference to the timer, until its time;
// see Remove.
func (q *Queue) Stop(t *Timer) { t.deadline.Store(0) }

// Remove disarms the timer and removes it from the queue, before its owner is freed.
func (q *Queue) Remove(t *Timer) {
	t.deadline.Store(0)
	q.mu.Lock()
	if t.entry.Load() != noEntry {
		heap.Remove(&q.entries, t.index)
		t.entry.Store(noEntry)
	}
	q.mu.Unlock()
}

// since returns the time from start to at. It counts from 1, because 0 means "not armed", and stays
// below noEntry.
func (q *Queue) since(at time.Time) int64 { return min(int64(at.Sub(q.start)), noEntry-2) + 1 }

// Now returns the time since the queue was created. It is never 0.
func (q *Queue) Now() time.Duration { return q.clock.Since(q.start) + 1 }

func (q *Queue) now() int64 { return q.since(q.clock.Now()) }

// schedule gives an armed timer an entry that is due no later than its deadline. mu is held.
func (q *Queue) schedule(t *Timer) {
	deadline := t.deadline.Load()
	entry := t.entry.Load()
	if deadline == 0 || entry <= deadline || q.closed {
		return
	}
	t.entry.Store(deadline)
	if entry == noEntry {
		heap.Push(&q.entries, t)
	} else {
		heap.Fix(&q.entries, t.index)
	}
	if t.index == 0 {
		q.wake.Reset(time.Duration(deadline - q.now()))
	}
}

func (q *Queue) run(wake <-chan time.Time) {
	defer close(q.done)
	for {
		select {
		case <-q.quit:
			return
		case <-wake:
			q.runDue()
		}
	}
}

// runDue runs the callbacks that are due and sets wake for the first that is not.
func (q *Queue) runDue() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for !q.closed && len(q.entries) > 0 {
		t, now := q.entries[0], q.now()
		if due := t.entry.Load(); due > now {
			q.wake.Reset(time.Duration(due - now))
			return
		}
		heap.Pop(&q.entries)
		t.entry.Store(noEntry)
		deadline := t.deadline.Load()
		if deadline == 0 {
			continue
		}
		// If it fails, the timer was just armed again or stopped; schedule handles both.
		if deadline > now || !t.deadline.CompareAndSwap(deadline, 0) {
			q.schedule(t)
			continue
		}
		q.mu.Unlock()
		t.f()
		q.mu.Lock()
	}
}

// entries is a heap of timers by Timer.entry.
type entries []*Timer

func (e entries) Len() int           { return len(e) }
func (e entries) Less(i, j int) bool { return e[i].entry.Load() < e[j].entry.Load() }

func (e entries) Swap(i, j int) {
	e[i], e[j] = e[j], e[i]
	e[i].index, e[j].index = i, j
}

func (e *entries) Push(x any) {
	t := x.(*Timer)
	t.index = len(*e)
	*e = append(*e, t)
}

func (e *entries) Pop() any {
	n := len(*e) - 1
	t := (*e)[n]
	(*e)[n] = nil
	*e = (*e)[:n]
	return t
}
