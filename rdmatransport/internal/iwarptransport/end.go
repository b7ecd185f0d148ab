package iwarptransport

// The end of a QP's stream: by an orderly close, by a reset, or by a Terminate message after an
// error.

import (
	"github.com/softrnic/softrnic/verbs"
)

// detach takes the stream from the QP, and returns its connection, or nil if there is none.
func (q *qp) detach() *conn {
	c := q.conn
	if c != nil {
		q.conn = nil
		q.sending.output.clear()
		q.sending.lifecycle.on(onDetach)
		c.unpair()
		q.e.countStream(q.h.PD(), -1)
		q.e.Counters.sent.Add(c.sent)
		q.e.Counters.received.Add(c.received)
	}
	return c
}

// abortStream resets the stream.
func (q *qp) abortStream() {
	if c := q.detach(); c != nil {
		c.stream.Abort()
	}
}

// closeStream closes the stream in an orderly way. The contents of its send buffer and the
// coalesced FPDUs are still sent. The reader continues until the peer has closed too, or
// lingerTimeout is over.
func (q *qp) closeStream() {
	c := q.conn
	if c == nil {
		return
	}
	c.linger()
	if ok, err := q.sendCoalesced(); !ok && err == nil {
		rest := q.sending.output.takeCoalesced()
		q.e.work.Go(func() {
			_ = c.stream.SetWriteDeadline(c.e.timers.Clock().Now().Add(lingerTimeout))
			_, _ = c.stream.Write(rest)
			_ = c.stream.CloseWrite()
		})
	} else {
		_ = c.stream.CloseWrite()
	}
	q.detach()
}

// fail ends the connection after an error on this side: a Terminate message reports it to the peer,
// and all posted requests are flushed. bad is the segment with the error, or nil.
func (q *qp) fail(err error, bad []byte) {
	if q.sending.lifecycle.ended() {
		return
	}
	q.conn.linger()
	q.terminate(err, bad)
	q.failQP()
}

// failQP moves the QP to ERR.
func (q *qp) failQP() {
	q.traceState(q.h.State(), verbs.StateErr)
	q.h.Fail()
}

// linger limits the time for the peer to read everything and to close. The QP is locked, because
// its reader sets the deadline too.
func (c *conn) linger() {
	_ = c.stream.SetReadDeadline(c.e.timers.Clock().Now().Add(lingerTimeout))
}

// streamLost ends the connection after a failed write to the stream. The reader will get the same
// error.
func (q *qp) streamLost(err error) {
	q.conn.stream.Abort()
	if q.h.State() != verbs.StateRTS {
		return // the QP is about to enter RTS, and the reader ends the connection after that
	}
	q.e.Counters.StreamsLost.Add(1)
	q.traceLost(err)
	q.detach()
	q.failQP()
}
