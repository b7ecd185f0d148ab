package roce

import (
	"github.com/softrnic/softrnic/rdmatransport/roce/wire"
	"github.com/softrnic/softrnic/verbs"
)

// On the path: what a hold of the QP's lock ends with. All that it made due is sent, and gathered in one go.

// releasePosted is release on a goroutine that serves only this QP.
func (q *qp) releasePosted() {
	q.direct |= posting
	q.release()
	q.direct &^= posting
}

// release sends all that may be sent.
func (q *qp) release() {
	s := q.h.State()
	if q.destroyed || !receives(s) {
		return
	}
	if sends(s) {
		q.send()
	}
	if q.reliable() && !q.destroyed && q.h.State() == s { // not if a request could not be sent
		q.respond()
	}
	q.flush()
}

// send sends what is posted, as far as the service lets it.
func (q *qp) send() {
	switch q.service {
	case wire.RC, wire.XRC:
		q.transmit()
	case wire.UC:
		q.sendMessages()
	case wire.UD:
		q.sendDatagrams()
	}
	if !q.destroyed && q.draining() && !q.begun() {
		q.h.Drained()
	}
}

// leave ends a hold of the lock that brought packets: what they made due is sent, and the QP unlocked. Where an
// application drives the device, some of it waits for what that does next.
func (q *qp) leave(polled bool) {
	if s := q.h.State(); !q.destroyed && receives(s) {
		waits := polled && q.ackWaits()
		switch {
		case waits:
			q.e.wait(q)
		case q.reliable():
			q.respond()
		}
		if sends(s) && !(polled && s == verbs.StateRTS && q.keepsWaiting()) {
			q.send()
		}
		if waits && q.out != nil && q.h.State() == s {
			q.respond() // there is company
		}
	}
	q.flush()
	q.h.Unlock()
}

// flush sends what this hold of the lock has gathered, and then sets the timer, which the peer need not wait for.
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
