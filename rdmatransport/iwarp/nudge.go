package iwarp

// Beside the path: who sends first, and hears nothing. siw, when it accepts, turns its socket over to the QP only after its
// reply has gone out, and what arrives before that does not wake it; it then sleeps, with our first FPDUs in its
// buffer, until something more arrives. An RDMA Write of no bytes is always allowed and changes nothing.

import (
	"time"

	"github.com/softrnic/softrnic/rdmatransport/internal/timers"
)

// nudger sends such WRITEs as long as nothing has come, each after twice the time of the one before.
type nudger struct {
	q     *qp
	c     *conn
	timer timers.Timer
	after time.Duration
	left  int  // WRITEs to send
	opens bool // the accepting side may send first, and begins when the timer goes off for the first time
}

func (q *qp) nudge(c *conn) { (&nudger{q: q, c: c, after: firstNudge, left: nudges}).start() }

// sendFirst lets an accepting side send that hears nothing for a while. As a client, siw breaks the connection off if it
// finds more behind the reply when it reads that.
func (q *qp) sendFirst(c *conn) {
	(&nudger{q: q, c: c, after: sendFirstDelay, left: nudges, opens: true}).start()
}

func (n *nudger) start() {
	n.timer.Init(n.due)
	n.arm()
}

func (n *nudger) arm() { n.q.e.timers.Arm(&n.timer, time.Now().Add(n.after)) }

func (n *nudger) due() {
	q := n.q
	q.h.Lock()
	defer q.h.Unlock()
	t := &q.tx
	switch {
	case q.conn != n.c, t.lifecycle.ended():
	case n.opens && t.lifecycle.is(awaitingPeer):
		n.opens, n.after = false, firstNudge
		t.lifecycle.on(onPeerFPDU)
		q.transmit()
		n.arm()
	case !n.opens && !q.rx.heard:
		// In the middle of a message there is more to come anyway.
		if t.lifecycle.is(open) && t.cursor.is(untouched) {
			t.lifecycle.askRTR(rtrWrite)
			q.transmit()
		}
		if n.left--; n.left > 0 {
			n.after *= 2
			n.arm()
		}
	}
}
