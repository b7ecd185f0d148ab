package iwarp

// Beside the path: an initiator that sends first and hears nothing. When siw accepts, it gives its
// socket to the QP only after its reply has gone out, and bytes that arrive before that do not wake
// it. It then sleeps, with our first FPDUs in its receive buffer, until something more arrives. So
// we send an RDMA Write of no bytes, which is always allowed and changes nothing: a nudge.

import (
	"time"

	"github.com/softrnic/softrnic/rdmatransport/internal/timers"
)

// nudger sends such WRITEs until something comes from the peer. The time between them doubles.
type nudger struct {
	q         *qp
	c         *conn
	timer     timers.Timer
	after     time.Duration
	remaining int  // WRITEs to send
	opens     bool // it lets the accepting side send first, when the timer goes off for the first time
}

// nudge starts nudging the peer, unless it sends something soon.
func (q *qp) nudge(c *conn) { (&nudger{q: q, c: c, after: firstNudge, remaining: nudges}).start() }

// sendFirst lets the accepting side send if the initiator does not for a while. It waits because
// siw, as the initiator, breaks the connection off if there is more behind the reply when it reads
// that.
func (q *qp) sendFirst(c *conn) {
	(&nudger{q: q, c: c, after: sendFirstDelay, remaining: nudges, opens: true}).start()
}

func (n *nudger) start() {
	n.timer.Init(n.due)
	n.arm()
}

func (n *nudger) arm() { n.q.e.timers.Arm(&n.timer, time.Now().Add(n.after)) }

// due runs when the timer goes off.
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
		// In the middle of a message the rest of that will come anyway.
		if t.lifecycle.is(open) && t.cursor.is(untouched) {
			t.lifecycle.askRTR(rtrWrite)
			q.transmit()
		}
		if n.remaining--; n.remaining > 0 {
			n.after *= 2
			n.arm()
		}
	}
}
