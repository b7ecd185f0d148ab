// Package timers is a queue of timers for a whole device: any number of timers, one goroutine, one
// runtime timer.
package timers

import (
	"container/heap"
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// Queue runs the callbacks of its timers, one at a time, on a goroutine of its own that sleeps
// until the first of them is due. It holds no lock while it runs one, so a callback may take a lock
// that Arm and Stop are called under, and may call them itself.
//
// Timers that are armed again and again before they are due, such as retransmission timers, take no
// lock: Stop, and Arm with a later deadline, leave the timer's entry in the queue where it is, and
// the goroutine moves or removes it when its old time comes.
type Queue struct {
	start time.Time
	quit  chan struct{}
	done  chan struct{}

	mu      sync.Mutex
	entries entries
	wake    *time.Timer // for the first entry; set and reset under mu
	closed  bool
}

// Timer is one timer; it may be part of a larger struct. It belongs to one queue and must not be
// copied after Init.
type Timer struct {
	f        func()
	deadline atomic.Int64 // nanoseconds after Queue.start; 0: not armed
	entry    atomic.Int64 // when the queue will next look at the timer; noEntry: never. Written under Queue.mu.
	index    int          // of the entry; under Queue.mu
}

const noEntry = math.MaxInt64

// Init sets the callback. It is called once, before anything else.
func (t *Timer) Init(f func()) {
	t.f = f
	t.entry.Store(noEntry)
}

// Due is when the callback is to run, as Queue.Now counts; 0 if it is not.
func (t *Timer) Due() time.Duration { return time.Duration(t.deadline.Load()) }

// Armed reports whether the callback has still to run.
func (t *Timer) Armed() bool { return t.deadline.Load() != 0 }

// New makes a queue and starts its goroutine, which runs until Close.
func New() *Queue {
	q := &Queue{
		start: time.Now(),
		quit:  make(chan struct{}),
		done:  make(chan struct{}),
		wake:  time.NewTimer(math.MaxInt64),
	}
	go q.run()
	return q
}

// Close waits for the callback that is running. Afterwards none runs. It must not be called from a
// callback, nor with a lock held that one takes.
func (q *Queue) Close() {
	q.mu.Lock()
	if !q.closed {
		q.closed = true
		close(q.quit)
	}
	q.mu.Unlock()
	<-q.done
}

// Arm makes the timer's callback run once, at the given time, or at once if that is past, and at no
// time set before. Like Stop it does not wait: a callback that has already started, and perhaps
// waits for a lock that the caller holds, runs all the same. So a callback first looks whether
// there is something for it to do.
func (q *Queue) Arm(t *Timer, at time.Time) { q.arm(t, max(q.since(at), 1)) }

// ArmAt is Arm at a time that Now counts.
func (q *Queue) ArmAt(t *Timer, at time.Duration) { q.arm(t, max(int64(at), 1)) }

func (q *Queue) arm(t *Timer, deadline int64) {
	t.deadline.Store(deadline)
	// If there is an entry that is due no later, the goroutine will take the deadline from there:
	// it unsets entry before it reads deadline, and here it is the other way round.
	if t.entry.Load() <= deadline {
		return
	}
	q.mu.Lock()
	q.schedule(t)
	q.mu.Unlock()
}

// Stop disarms the timer. It keeps a place in the queue, and with it a reference to the timer,
// until its time would have come; see Remove.
func (q *Queue) Stop(t *Timer) { t.deadline.Store(0) }

// Remove disarms the timer and takes it off the queue, for when its owner goes away.
func (q *Queue) Remove(t *Timer) {
	t.deadline.Store(0)
	q.mu.Lock()
	if t.entry.Load() != noEntry {
		heap.Remove(&q.entries, t.index)
		t.entry.Store(noEntry)
	}
	q.mu.Unlock()
}

// since is the time from start to at. It counts from 1, as 0 stands for "not armed", and stays
// below noEntry.
func (q *Queue) since(at time.Time) int64 { return min(int64(at.Sub(q.start)), noEntry-2) + 1 }

// Now is the time since the queue was made. It is never 0.
func (q *Queue) Now() time.Duration { return time.Since(q.start) + 1 }

func (q *Queue) now() int64 { return q.since(time.Now()) }

// schedule gives an armed timer an entry that is due no later than its deadline; with mu held.
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

func (q *Queue) run() {
	defer close(q.done)
	for {
		select {
		case <-q.quit:
			q.wake.Stop()
			return
		case <-q.wake.C:
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
		// If it fails, the timer has just been armed anew or stopped; schedule sees to either.
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
