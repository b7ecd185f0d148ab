package iwarp

// Beside the path: who sends first, and hears nothing. siw, when it accepts, turns its socket over to the QP only after its
// reply has gone out, and what arrives before that does not wake it; it then sleeps, with our first FPDUs in its
// buffer, until something more arrives. An RDMA Write of no bytes is always allowed and changes nothing.

import "time"

// nudge sends such a WRITE if nothing has come by then, and again after twice the time each, so many times.
func (q *qp) nudge(c *conn, after time.Duration, times int) {
	if times == 0 {
		return
	}
	time.AfterFunc(after, func() {
		q.h.Lock()
		defer q.h.Unlock()
		if q.conn != c || q.tx.ending || q.rx.heard {
			return
		}
		// In the middle of a message there is more to come anyway.
		if q.tx.ready == noReady && q.tx.off == 0 && !q.tx.wrote {
			q.tx.ready = readyWrite
			q.pump()
		}
		q.nudge(c, 2*after, times-1)
	})
}

// sendFirst lets an accepting side send that hears nothing for a while. As a client, siw breaks the connection off if it
// finds more behind the reply when it reads that.
func (q *qp) sendFirst(c *conn) {
	time.AfterFunc(sendFirstDelay, func() {
		q.h.Lock()
		defer q.h.Unlock()
		if q.conn == c && !q.tx.open {
			q.tx.open = true
			q.pump()
			q.nudge(c, firstNudge, nudges)
		}
	})
}
