package rocetransport

// What is due is sent here: posted requests, responses, acknowledgements, and packets that must be
// retransmitted. This happens at each post (PostSend), and before the QP is unlocked after anything
// else that made something due: a datagram, a timer, the end of a delay. As few frames as possible
// are used. What may wait is decided in delayed.go. How requests are sent is in requester.go,
// direct.go, uc.go and ud.go, and how responses are, in response.go.

import (
	"github.com/softrnic/softrnic/rdmatransport/wire"
	"github.com/softrnic/softrnic/stack"
	"github.com/softrnic/softrnic/verbs"
)

// PostSend implements verbs.ProviderQP: it sends posted requests, or delays them.
func (q *qp) PostSend() {
	q.prefetchPeer()
	switch {
	case q.reliable() && q.mayCork():
		q.corkedSincePoll = true
		q.e.addDelayed(q)
	case q.resumed: // other calls of Modify wait for this one
		q.resumed = false
		q.sendAllNow()
	default:
		q.sendPosted()
	}
}

// sendDueAndUnlock sends due packets and unlocks the QP.
func (q *qp) sendDueAndUnlock() {
	if s := q.h.State(); !q.destroyed && receives(s) {
		if q.reliable() {
			q.respond()
		}
		if sends(s) {
			q.sendRequests()
		}
	}
	q.sendGathered()
	q.unlockOnly()
}

// sendDueAndUnlockAfter is sendDueAndUnlock after the packets of a datagram. If an application
// received the datagram by polling, it will soon post or poll again. An acknowledgement and small
// requests may then be delayed until its next post (see delayed.go). If a medium's goroutine
// received the datagram, only the timer would end the delay. So they are sent at once.
func (q *qp) sendDueAndUnlockAfter(d *stack.Datagram) {
	if d.Polled {
		q.sendOrDelayAndUnlock()
	} else {
		q.sendDueAndUnlock()
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
			q.sendRequests()
		}
		if delay && q.out != nil && q.h.State() == s {
			q.respond() // an open frame has room for it
		}
	}
	q.sendGathered()
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
		q.sendRequests()
	}
	if q.reliable() && !q.destroyed && q.h.State() == s { // false if a request could not be sent
		q.respond()
	}
	q.sendGathered()
	if q.isDelayed && q.e.delayed.remove(q) { // nothing is delayed any more
		q.isDelayed, q.corkedSincePoll = false, false
	}
}

// sendRequests sends posted requests. The service determines how.
func (q *qp) sendRequests() {
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

// sendGathered sends the packets gathered while the QP was locked. It sets the timer afterwards, so
// that the peer does not wait for that.
func (q *qp) sendGathered() {
	if q.out != nil {
		q.out.Flush()
		q.out = nil
	}
	if q.reliable() {
		q.sending.SetAlarm(sends(q.h.State()))
	}
	q.arm()
}
