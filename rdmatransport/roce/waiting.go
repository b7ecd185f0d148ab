package roce

// On the path: what waits for company. A small request that is posted while others are in flight leaves with those that
// are posted after it, as soon as they fill a frame, an acknowledgement comes, or whoever posts has nothing more to post:
// he polls twice without posting, or sleeps. An acknowledgement that falls due while the application drives the device
// waits for one poll: the answer that the application may have takes it along.

import (
	"sync/atomic"
	"time"

	"github.com/softrnic/softrnic/rdmatransport/internal/timers"
	"github.com/softrnic/softrnic/rdmatransport/roce/internal/send"
)

// waiting is the QPs that have something waiting: a stack that takes no lock.
type waiting struct {
	head  atomic.Pointer[qp]
	timer timers.Timer // for applications that stop polling
}

// wait puts q, which is locked, among those that have something waiting.
func (e *Engine) wait(q *qp) {
	if q.waits {
		return
	}
	q.waits = true
	e.keep(q)
}

// keep has q among those that wait, and the timer run: it may have gone off while q was in nobody's sight.
func (e *Engine) keep(q *qp) {
	e.waiting.push(q)
	if !e.waiting.timer.Armed() {
		e.timers.Arm(&e.waiting.timer, time.Now().Add(maxWait))
	}
}

func (w *waiting) push(q *qp) {
	for {
		h := w.head.Load()
		q.nextWaiting = h
		if w.head.CompareAndSwap(h, q) {
			return
		}
	}
}

// release sends what waits, but what was posted since the last call only if all is set; false if there was nothing.
func (e *Engine) release(all bool) bool {
	if e.waiting.head.Load() == nil {
		return false
	}
	sent := false
	for q := e.waiting.head.Swap(nil); q != nil; {
		next := q.nextWaiting
		q.h.Lock()
		if q.recent && !all {
			q.recent = false
			e.keep(q)
			q.h.Unlock()
		} else {
			q.waits, q.recent = false, false
			q.release()
			q.h.Unlock()
			sent = true
		}
		q = next
	}
	return sent
}

// Progress implements verbs.Provider's for this half of the device.
func (e *Engine) Progress() bool {
	sent := e.release(false)
	received := false
	for _, nic := range e.nics {
		received = nic.Poll() || received
	}
	return received || sent
}

// EndProgress implements verbs.Provider's: nothing waits any more.
func (e *Engine) EndProgress() {
	e.release(true)
	for _, nic := range e.nics {
		nic.EndPoll()
	}
}

// gathers tells whether what was just posted is to wait for company: not the first, while nothing is on its way.
func (q *qp) gathers() bool {
	if q.sending.Alone() {
		return false
	}
	q.describe()
	return q.sending.Corked()
}

// keepsWaiting tells whether an acknowledgement lets out nothing of what waits: the application drives the device, and
// has its say first.
func (q *qp) keepsWaiting() bool {
	return q.waits && q.sending.Mode() != send.Selective && q.sending.Corked()
}

// part sends the acknowledgement that waits, if one does, as the QP ends: whoever has seen its last message complete may
// end it at once, and the peer would ask in vain for word of that message.
func (q *qp) part() {
	if q.reliable() && !q.destroyed && receives(q.h.State()) && q.ackWaits() {
		q.respond()
		q.flush()
	}
}

// ackWaits tells whether what the responder owes is nothing but an acknowledgement that may wait for a poll.
func (q *qp) ackWaits() bool {
	return q.receiving.OnlyAck()
}
