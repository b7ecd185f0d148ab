package rocetransport

import (
	"github.com/softrnic/softrnic/rdmatransport/wire"
	"github.com/softrnic/softrnic/stack"
	"github.com/softrnic/softrnic/verbs"
)

// End of the send and receive paths: packets that became due while the QP was locked are sent
// before it is unlocked, in as few frames as possible.

// sendAndUnlock sends due packets and unlocks the QP.
func (q *qp) sendAndUnlock() {
	if s := q.h.State(); !q.destroyed && receives(s) {
		if q.reliable() {
			q.respond()
		}
		if sends(s) {
			q.send()
		}
	}
	q.flush()
	q.unlockOnly()
}

// sendAndUnlockReceived is sendAndUnlock after the packets of a datagram. If an application
// received the datagram by polling, it will soon post or poll again. An acknowledgement and small
// requests may then be delayed until its next post (see delayed.go). If a medium's goroutine
// received the datagram, only the timer would end the delay. So they are sent at once.
func (q *qp) sendAndUnlockReceived(d *stack.Datagram) {
	if d.Polled {
		q.sendOrDelayAndUnlock()
	} else {
		q.sendAndUnlock()
	}
}

// sendOrDelayAndUnlock delays packets that may share a frame with the application's next post. It
// sends the others, and unlocks the QP.
func (q *qp) sendOrDelayAndUnlock() {
	if s := q.h.State(); !q.destroyed && receives(s) {
		delay := q.mayDelayAck()
		switch {
		case delay:
			q.e.addDelayed(q)
		case q.reliable():
			q.respond()
		}
		if sends(s) && !(s == verbs.StateRTS && q.staysCorked()) {
			q.send()
		}
		if delay && q.out != nil && q.h.State() == s {
			q.respond() // an open frame has room for it
		}
	}
	q.flush()
	q.unlockOnly()
}

// sendPosted is sendAllNow on a goroutine that serves only this QP (see [direct.Mover]).
func (q *qp) sendPosted() {
	q.mover.SetPosting(true)
	q.sendAllNow()
	q.mover.SetPosting(false)
}

// sendAllNow sends everything that may be sent, also if it was delayed. The QP stays locked.
func (q *qp) sendAllNow() {
	s := q.h.State()
	if q.destroyed || !receives(s) {
		return
	}
	if sends(s) {
		q.send()
	}
	if q.reliable() && !q.destroyed && q.h.State() == s { // false if a request could not be sent
		q.respond()
	}
	q.flush()
	if q.isDelayed && q.e.delayed.remove(q) { // nothing is delayed any more
		q.isDelayed, q.corkedSincePoll = false, false
	}
}

// send sends posted requests. The service determines how.
func (q *qp) send() {
	switch q.service {
	case wire.RC, wire.XRC:
		if q.sendDirect() {
			q.transmit()
		} else {
			q.sending.Uncork()
		}
	case wire.UC:
		q.sendMessages()
	case wire.UD:
		q.sendDatagrams()
	}
	if !q.destroyed && q.draining() && !q.begun() {
		q.h.Drained()
	}
}

// flush sends the packets gathered while the QP was locked. It sets the timer afterwards, so that
// the peer does not wait for that.
func (q *qp) flush() {
	if q.out != nil {
		q.out.Flush()
		q.out = nil
	}
	if q.reliable() {
		q.sending.SetAlarm(sends(q.h.State()))
	}
	q.arm()
}
