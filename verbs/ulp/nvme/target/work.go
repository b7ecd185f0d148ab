package target

import (
	"net/netip"
	"sync"
	"sync/atomic"
)

// Limits of operations that may block in the kernel. Each occupies a thread there, and Go ends a
// process with 10,000 threads. A disk with 64 operations at a time is mostly at its limit.
const (
	maxHostWork = 64  // of the hosts at one address
	maxWork     = 512 // of a target
)

// work runs operations of backends that may block. What waits are parts of commands, whose number
// the depth of queues bounds. Hosts take turns.
type work struct {
	mu      sync.Mutex // no other lock is taken meanwhile
	running int
	turns   []*hostWork   // those with waiting operations that may run
	waited  atomic.Uint64 // operations that had to wait
}

// hostWork is the work of the hosts at one address.
type hostWork struct {
	at      netip.Addr
	queues  int          // connections; protected by the target's lock
	lent    atomic.Int64 // pages of backends in use
	running int
	waiting []operation
	turn    bool // it is in turns
}

// operation is a part of a command.
type operation struct {
	q *queue
	f func()
}

// add runs an operation on another goroutine, now or later.
func (w *work) add(op operation) {
	w.mu.Lock()
	op.q.host.waiting = append(op.q.host.waiting, op)
	w.queue(op.q.host)
	first, ok := w.next()
	if !ok {
		w.waited.Add(1)
	}
	w.mu.Unlock()
	if ok {
		op.q.t.clock.Go(func() { w.run(first) })
	}
}

// run runs an operation, and others as long as they wait.
func (w *work) run(op operation) {
	for ok := true; ok; {
		if op.q.ctx.Err() == nil { // otherwise nobody waits for it
			op.f()
		}
		h := op.q.host
		op.q.workers.Done()
		w.mu.Lock()
		w.running--
		h.running--
		w.queue(h)
		op, ok = w.next()
		w.mu.Unlock()
	}
}

// queue gives a host a turn, if it has work that may run. mu is held.
func (w *work) queue(h *hostWork) {
	if !h.turn && len(h.waiting) > 0 && h.running < maxHostWork {
		h.turn = true
		w.turns = append(w.turns, h)
	}
}

// next returns the operation that runs next, if one may run. mu is held.
func (w *work) next() (op operation, ok bool) {
	if len(w.turns) == 0 || w.running == maxWork {
		return op, false
	}
	h := w.turns[0]
	w.turns = w.turns[1:]
	op = h.waiting[0]
	h.waiting = h.waiting[1:]
	h.turn = false
	h.running++
	w.running++
	w.queue(h)
	return op, true
}

// join returns the work of the hosts at an address, for one more queue.
func (t *Target) join(at netip.Addr) *hostWork {
	t.mu.Lock()
	defer t.mu.Unlock()
	h := t.working[at]
	if h == nil {
		h = &hostWork{at: at}
		t.working[at] = h
	}
	h.queues++
	return h
}

// leave undoes join.
func (t *Target) leave(h *hostWork) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if h.queues--; h.queues == 0 {
		delete(t.working, h.at)
	}
}
