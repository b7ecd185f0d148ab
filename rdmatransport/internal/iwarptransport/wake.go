package iwarptransport

// Waking the peer of an initiator. When siw accepts a connection, it first sends its reply, and
// then gives its socket to the QP. Bytes that arrive in between do not wake it. It then sleeps,
// with the first FPDUs in its receive buffer, until more bytes arrive. Therefore, if nothing
// arrives from the peer, this side sends zero-length RDMA Writes. They are always allowed and
// change nothing.

import (
	"time"

	"github.com/softrnic/softrnic/rdmatransport/ddp"
	"github.com/softrnic/softrnic/rdmatransport/internal/timers"
)

// waker sends these WRITEs until data arrives from the peer. The interval doubles each time.
type waker struct {
	q         *qp
	c         *conn
	timer     timers.Timer
	after     time.Duration
	remaining int  // WRITEs left to send
	sendFirst bool // the first timer lets the responder send first
}

// wakePeer starts to wake the peer, unless data arrives from it soon.
func (q *qp) wakePeer(c *conn) {
	(&waker{q: q, c: c, after: firstWakeWrite, remaining: maxWakeWrites}).start()
}

// sendFirst lets the responder send if the initiator does not send for a while. It waits because
// siw, as the initiator, aborts the connection if it finds data after the reply.
func (q *qp) sendFirst(c *conn) {
	(&waker{q: q, c: c, after: sendFirstDelay, remaining: maxWakeWrites, sendFirst: true}).start()
}

func (n *waker) start() {
	n.timer.Init(n.onTimer)
	n.arm()
}

func (n *waker) arm() { n.q.e.timers.ArmAt(&n.timer, n.q.e.timers.Now()+n.after) }

// onTimer runs when the timer fires.
func (n *waker) onTimer() {
	q := n.q
	q.h.Lock()
	defer q.h.Unlock()
	s := &q.sending
	switch {
	case q.conn != n.c, s.lifecycle.ended():
	case n.sendFirst && s.lifecycle.is(awaitingPeer):
		n.sendFirst, n.after = false, firstWakeWrite
		s.lifecycle.on(onPeerFPDU)
		q.transmit()
		n.arm()
	case !n.sendFirst && !q.receiving.gotFPDU:
		// In the middle of a message, the rest of the message wakes the peer.
		if s.lifecycle.is(open) && s.cursor.is(notStarted) {
			s.lifecycle.scheduleRTR(rtrWrite)
			q.transmit()
		}
		if n.remaining--; n.remaining > 0 {
			n.after *= 2
			n.arm()
		}
	}
}

// mayWake reports whether a WRITE without payload may be such a one. Completion counters leave it
// out, as they do the ready-to-receive message, which is the same WRITE. No region has the STag 0.
func mayWake(h *ddp.Tagged) bool { return h.STag == 0 && h.TO == 0 }
