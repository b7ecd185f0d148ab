package rocetransport

// Send path: requests and acknowledgements that are delayed to share a frame. A small request is
// corked if others are in flight. It is sent with later requests when they fill a frame, when an
// acknowledgement arrives, or when the application has nothing more to post. The application shows
// that by two calls of Progress without a post in between, or by waiting. An acknowledgement that
// becomes due while an application polls is delayed for one poll, so that it can share a frame with
// the application's answer.

import (
	"sync/atomic"
	"time"

	"github.com/softrnic/softrnic/internal/idle"
	"github.com/softrnic/softrnic/rdmatransport/internal/rocetransport/send"
	"github.com/softrnic/softrnic/rdmatransport/internal/timers"
)

// delayed is a lock-free stack of QPs with delayed packets.
type delayed struct {
	head  atomic.Pointer[qp]
	timer timers.Timer // bounds the delay
}

// delay adds q, which is locked.
func (e *Engine) delay(q *qp) {
	if !q.isDelayed {
		q.isDelayed = true
		e.delayAgain(q)
	}
}

// delayAgain adds q, which is locked and not on the stack. The timer is armed unless it is already:
// it fires at most PollTimeout after a packet was delayed.
func (e *Engine) delayAgain(q *qp) {
	e.delayed.push(q)
	if !e.delayed.timer.Armed() {
		e.timers.Arm(&e.delayed.timer, time.Now().Add(idle.PollTimeout))
	}
}

func (d *delayed) push(q *qp) {
	for {
		h := d.head.Load()
		q.nextDelayed = h
		if d.head.CompareAndSwap(h, q) {
			return
		}
	}
}

// remove removes q, which is locked and on the stack, if it is the first. While it is, the element
// behind it cannot change.
func (d *delayed) remove(q *qp) bool {
	return d.head.Load() == q && d.head.CompareAndSwap(q, q.nextDelayed)
}

// empty is called before takeAll, which would invalidate the cache line of other processors.
func (d *delayed) empty() bool { return d.head.Load() == nil }

// takeAll removes all QPs.
func (d *delayed) takeAll() *qp { return d.head.Swap(nil) }

// sendDelayed sends all delayed packets.
func (e *Engine) sendDelayed() {
	if e.delayed.empty() {
		return
	}
	for q := e.delayed.takeAll(); q != nil; {
		next := q.nextDelayed
		q.h.Lock()
		q.sendDelayed()
		q.unlockOnly()
		q = next
	}
}

// sendDelayedUnlessPosted sends the delayed packets of QPs without a post since the last call. It
// returns false if there were none.
func (e *Engine) sendDelayedUnlessPosted() (sent bool) {
	if e.delayed.empty() {
		return false
	}
	for q := e.delayed.takeAll(); q != nil; {
		next := q.nextDelayed
		q.h.Lock()
		if q.posted {
			q.posted = false
			e.delayAgain(q)
		} else {
			q.sendDelayed()
			sent = true
		}
		q.unlockOnly()
		q = next
	}
	return sent
}

// sendDelayed sends the delayed packets of a QP that was removed from the stack.
func (q *qp) sendDelayed() {
	q.isDelayed, q.posted = false, false
	q.sendPending()
}

// SendDelayed sends the delayed packets of a QP, if it exists, before its peer is asked to
// disconnect. Without it, a peer that gets the DREQ before the acknowledgement of its last message
// would flush that message, although it has arrived.
func (e *Engine) SendDelayed(qpn uint32) {
	if q := e.qps.Get(qpn); q != nil {
		q.h.Lock()
		q.h.DeferEvents() // the connection manager is locked
		q.sendPending()
		q.h.UnlockDeferred()
	}
}

// Progress implements verbs.Provider for RoCE.
func (e *Engine) Progress() bool {
	sent := e.sendDelayedUnlessPosted()
	received := false
	for _, nic := range e.nics {
		received = nic.Poll() || received
	}
	return received || sent
}

// EndProgress implements verbs.Provider for RoCE: nothing stays delayed.
func (e *Engine) EndProgress() {
	e.sendDelayed()
	for _, nic := range e.nics {
		nic.EndPoll()
	}
}

// mayCork reports whether the request just posted may be delayed. The first one is not, while
// nothing is in flight.
func (q *qp) mayCork() bool {
	if q.sending.IdleUncorked() {
		return false
	}
	q.describe()
	return q.sending.Corked()
}

// staysCorked reports whether delayed requests stay delayed after an acknowledgement, so that the
// polling application can post first.
func (q *qp) staysCorked() bool {
	return q.isDelayed && q.sending.Mode() != send.Selective && q.sending.Corked()
}

// mayDelayAck reports whether an acknowledgement is due, and nothing else.
func (q *qp) mayDelayAck() bool { return q.receiving.OnlyAck() }

// sendDelayedAck sends a delayed acknowledgement before the QP ends. An application that has seen
// the last message complete may end the QP at once. The peer would then retransmit that message in
// vain.
func (q *qp) sendDelayedAck() {
	if q.reliable() && !q.destroyed && receives(q.h.State()) && q.mayDelayAck() {
		q.respond()
		q.flush()
	}
}
