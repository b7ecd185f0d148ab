package rocetransport

// Send path: requests and acknowledgements that are delayed to share a frame. A small request is
// corked (delayed) if others are in flight. It is sent with later requests when they fill a frame,
// when an acknowledgement arrives, or when the application has nothing more to post. That is
// assumed after two calls of Progress without a post in between, or when the application waits. An
// acknowledgement that becomes due while an application polls is delayed for one poll. It can then
// share a frame with the application's answer.

import (
	"sync/atomic"

	"github.com/softrnic/softrnic/rdmatransport/internal/rocetransport/send"
	"github.com/softrnic/softrnic/rdmatransport/internal/timers"
)

// delayed is a lock-free stack of QPs with delayed packets.
type delayed struct {
	head  atomic.Pointer[qp]
	timer timers.Timer // bounds the delay
}

// addDelayed adds q, which is locked, to the stack of QPs with delayed packets.
func (e *Engine) addDelayed(q *qp) {
	if !q.isDelayed {
		q.isDelayed = true
		e.pushDelayed(q)
	}
}

// pushDelayed is addDelayed for a QP that is not on the stack. It arms the timer if that is not
// armed, so that the timer fires at most maxSendDelay after a packet was delayed.
func (e *Engine) pushDelayed(q *qp) {
	e.delayed.push(q)
	if !e.delayed.timer.Armed() {
		e.timers.ArmAt(&e.delayed.timer, e.now()+maxSendDelay)
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

// remove removes q, which is locked and on the stack, if it is the first element. While it is, its
// successor cannot change.
func (d *delayed) remove(q *qp) bool {
	return d.head.Load() == q && d.head.CompareAndSwap(q, q.nextDelayed)
}

// empty reports whether the stack is empty. Callers ask before they call takeAll, because takeAll
// writes, and thereby invalidates the cache line of other processors.
func (d *delayed) empty() bool { return d.head.Load() == nil }

// takeAll removes all QPs.
func (d *delayed) takeAll() *qp { return d.head.Swap(nil) }

// sendDelayedOfAllQPs sends all delayed packets: the timer has fired, or the application stops
// polling.
func (e *Engine) sendDelayedOfAllQPs() {
	if e.delayed.empty() {
		return
	}
	for q := e.delayed.takeAll(); q != nil; {
		next := q.nextDelayed
		q.h.Lock()
		q.endDelay()
		q.unlockOnly()
		q = next
	}
}

// sendDelayedOfIdleQPs sends the delayed packets of QPs without a corked request since the last
// call. It is called by each poll, and returns false if it sent nothing.
func (e *Engine) sendDelayedOfIdleQPs() (sent bool) {
	if e.delayed.empty() {
		return false
	}
	for q := e.delayed.takeAll(); q != nil; {
		next := q.nextDelayed
		q.h.Lock()
		if q.corkedSincePoll {
			q.corkedSincePoll = false
			e.pushDelayed(q)
		} else {
			q.endDelay()
			sent = true
		}
		q.unlockOnly()
		q = next
	}
	return sent
}

// endDelay sends the packets of a QP that was just removed from the stack of delayed QPs.
func (q *qp) endDelay() {
	q.isDelayed, q.corkedSincePoll = false, false
	q.sendAllNow()
}

// SendBeforeDisconnect sends the delayed packets of a QP, if it exists, before a DREQ is sent.
// Otherwise the DREQ could arrive before the acknowledgement of the peer's last message. The peer
// would then flush that message, although it has arrived.
func (e *Engine) SendBeforeDisconnect(qpn uint32) {
	if q := e.qps.Get(qpn); q != nil {
		q.h.Lock()
		q.h.DeferEvents() // the connection manager is locked
		q.sendAllNow()
		q.h.UnlockDeferred()
	}
}

// Progress implements verbs.Provider for RoCE.
func (e *Engine) Progress() bool {
	sent := e.sendDelayedOfIdleQPs()
	received := false
	for _, nic := range e.nics {
		received = nic.Poll() || received
	}
	return received || sent
}

// EndProgress implements verbs.Provider for RoCE: nothing stays delayed.
func (e *Engine) EndProgress() {
	e.sendDelayedOfAllQPs()
	for _, nic := range e.nics {
		nic.EndPoll()
	}
}

// mayCork reports whether the request just posted may be delayed. It is sent at once if nothing is
// in flight and no other request is corked.
func (q *qp) mayCork() bool {
	if q.sending.IdleUncorked() {
		return false
	}
	q.describe()
	return q.sending.Corked()
}

// staysCorked reports whether requests stay corked although an acknowledgement has arrived, so that
// the polling application can post first.
func (q *qp) staysCorked() bool {
	return q.isDelayed && q.sending.Mode() != send.Selective && q.sending.Corked()
}

// mayDelayAck reports whether an acknowledgement is due, and nothing else.
func (q *qp) mayDelayAck() bool { return q.receiving.OnlyAck() }

// sendAckBeforeEnd sends a delayed acknowledgement before the QP is closed, or enters ERR or RESET.
// An application may do so as soon as it has the completion of the last message. Without the
// acknowledgement, the peer would retransmit that message until its retries are exceeded.
func (q *qp) sendAckBeforeEnd() {
	if q.reliable() && !q.destroyed && receives(q.h.State()) && q.mayDelayAck() {
		q.respond()
		q.sendGathered()
	}
}
