package roce

// On the path: what is sent later, to share a frame. A small request that is posted while others
// are in flight is corked: it leaves with those that are posted after it, as soon as they fill a
// frame, an acknowledgement comes, or the application has nothing more to post, which it shows by
// polling twice without posting, or by sleeping. An acknowledgement that falls due while an
// application polls is delayed for one poll: the answer that the application may post takes it
// along.

import (
	"sync/atomic"
	"time"

	"github.com/softrnic/softrnic/rdmatransport/internal/roce/send"
	"github.com/softrnic/softrnic/rdmatransport/internal/timers"
)

// delayed is the QPs that have something delayed: a stack that takes no lock.
type delayed struct {
	head  atomic.Pointer[qp]
	timer timers.Timer // for applications that stop polling
}

// delay puts q, which is locked, among those that have something delayed.
func (e *Engine) delay(q *qp) {
	if !q.isDelayed {
		q.isDelayed = true
		e.delayAgain(q)
	}
}

// delayAgain puts q, which is locked and was taken off, back. The timer may have gone off
// meanwhile, and is set again.
func (e *Engine) delayAgain(q *qp) {
	e.delayed.push(q)
	if !e.delayed.timer.Armed() {
		e.timers.Arm(&e.delayed.timer, time.Now().Add(maxDelay))
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

// remove takes off q, which is on it and locked, if it is the first. While that is so, what is
// behind it cannot change.
func (d *delayed) remove(q *qp) bool {
	return d.head.Load() == q && d.head.CompareAndSwap(q, q.nextDelayed)
}

// none is asked before take, which takes the cache line from the others.
func (d *delayed) none() bool { return d.head.Load() == nil }

// take takes all off.
func (d *delayed) take() *qp { return d.head.Swap(nil) }

// sendDelayed sends all that is delayed.
func (e *Engine) sendDelayed() {
	if e.delayed.none() {
		return
	}
	for q := e.delayed.take(); q != nil; {
		next := q.nextDelayed
		q.h.Lock()
		q.sendItsDelayed()
		q.h.Unlock()
		q = next
	}
}

// sendUnlessPosted sends what is delayed of the QPs to which nothing was posted since the last
// call; false if there was none.
func (e *Engine) sendUnlessPosted() (sent bool) {
	if e.delayed.none() {
		return false
	}
	for q := e.delayed.take(); q != nil; {
		next := q.nextDelayed
		q.h.Lock()
		if q.posted {
			q.posted = false
			e.delayAgain(q)
		} else {
			q.sendItsDelayed()
			sent = true
		}
		q.h.Unlock()
		q = next
	}
	return sent
}

// sendItsDelayed sends what is delayed of a QP that was taken off.
func (q *qp) sendItsDelayed() {
	q.isDelayed, q.posted = false, false
	q.sendPending()
}

// SendDelayed sends what is delayed of a QP, if there is one with the number, before its peer is
// asked to disconnect: a peer that hears of the end before the acknowledgement of its last message
// flushes that message, though it has arrived.
func (e *Engine) SendDelayed(qpn uint32) {
	if q := e.qps.Get(qpn); q != nil {
		q.h.Lock()
		q.h.TellLater() // the connection manager is locked
		q.sendPending()
		q.h.UnlockLater()
	}
}

// Progress implements verbs.Provider's for this half of the device.
func (e *Engine) Progress() bool {
	sent := e.sendUnlessPosted()
	received := false
	for _, nic := range e.nics {
		received = nic.Poll() || received
	}
	return received || sent
}

// EndProgress implements verbs.Provider's: nothing is delayed any more.
func (e *Engine) EndProgress() {
	e.sendDelayed()
	for _, nic := range e.nics {
		nic.EndPoll()
	}
}

// mayCork reports whether what was just posted may be delayed: not the first, while nothing is on
// its way.
func (q *qp) mayCork() bool {
	if q.sending.IdleUncorked() {
		return false
	}
	q.describe()
	return q.sending.Corked()
}

// staysCorked reports whether what is delayed stays so, though an acknowledgement has come: the
// application that polls has its say first.
func (q *qp) staysCorked() bool {
	return q.isDelayed && q.sending.Mode() != send.Selective && q.sending.Corked()
}

// mayDelayAck reports whether the responder owes nothing but an acknowledgement.
func (q *qp) mayDelayAck() bool { return q.receiving.OnlyAck() }

// sendDelayedAck sends the acknowledgement that is delayed, if one is, as the QP ends: whoever has
// seen its last message complete may end it at once, and the peer would ask in vain for word of
// that message.
func (q *qp) sendDelayedAck() {
	if q.reliable() && !q.destroyed && receives(q.h.State()) && q.mayDelayAck() {
		q.respond()
		q.flush()
	}
}
