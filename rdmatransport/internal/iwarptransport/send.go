package iwarptransport

// Send path. Posted requests, and responses to the peer's READs and atomics, become DDP segments,
// one FPDU each (RFC 5040 §5, RFC 5041 §5). This happens on the goroutine that posted the request
// or made the response due.

// PostSend implements verbs.ProviderQP.
func (q *qp) PostSend() { q.transmitPosted() }

// transmitPosted is transmit after a post, on a goroutine that serves only this QP (see
// direct.Mover).
func (q *qp) transmitPosted() {
	q.mover.SetPosting(true)
	q.transmit()
	q.mover.SetPosting(false)
}

// resumeSending is called when the stream's send buffer has room again.
func (q *qp) resumeSending() {
	q.h.Lock()
	defer q.h.Unlock()
	if q.conn == nil {
		return
	}
	q.sending.output.onRoom()
	q.transmit()
}

// transmit sends as much as the stream has room for, unless requests are corked. Segments of
// requests and responses alternate, so that neither waits for a whole message of the other. But a
// tagged message is sent completely before the next tagged message begins: siw aborts a stream in
// which segments of a WRITE and of a READ response alternate.
func (q *qp) transmit() {
	switch {
	case q.conn == nil || q.sending.output.full:
	case q.conn.peerConn.Load() == nil && q.corked():
		q.conn.stream.CallOnAnswer()
	default:
		q.transmitNow()
	}
}

// transmitNow is transmit without corking.
func (q *qp) transmitNow() {
	s := &q.sending
loop:
	for !s.output.full {
		switch s.lifecycle.phase {
		case terminating:
			q.finish()
			return
		case sendingRTR:
			if !q.sendRTR() {
				return
			}
			continue
		case open:
		default:
			break loop
		}
		if s.responses.n == 0 && s.cursor.unsent(q.h.SendLen()) == 0 {
			break
		}
		if q.sendOne(s.responses.responseNext) {
			s.responses.alternate()
		} else if s.lifecycle.ended() || !q.sendOne(!s.responses.responseNext) {
			break // keep the order if a segment could not be sent now
		}
	}
	if q.conn != nil && !s.output.full && s.output.n > 0 {
		q.flush()
	}
}

// corked reports whether small requests wait for others to share a piece. The send queue must have
// room for more requests, and several pieces must be unacknowledged. The requests are sent when
// data arrives from the peer, or when the queue is full. If very many pieces are unacknowledged, a
// full queue does not end the wait. Otherwise small pieces would fill the queues on the path.
func (q *qp) corked() bool {
	s := &q.sending
	if !q.mayCork() || q.h.Send(s.cursor.index(s.cursor.next)).Length() > smallMessage {
		return false
	}
	pieces := corkFrom
	if q.h.SendLen() >= int(q.depth) {
		pieces = corkAlways
	}
	return q.conn.stream.Unanswered() >= pieces
}

// mayCork reports whether only requests are to be sent, and the next one is not started.
func (q *qp) mayCork() bool {
	s := &q.sending
	idle := s.output.n == 0 && s.responses.n == 0
	return s.lifecycle.is(open) && idle && s.cursor.is(notStarted) && s.cursor.unsent(q.h.SendLen()) > 0
}

// sendOne sends the next segment of a response or of a request, or moves requests directly. It
// returns false if it sent nothing, or ended the connection.
func (q *qp) sendOne(response bool) bool {
	if response {
		return q.sendResponse()
	}
	c := &q.sending.cursor
	if c.unsent(q.h.SendLen()) == 0 {
		return false
	}
	if c.mayMove() {
		if done, wait := q.sendDirect(); done || wait {
			return done
		}
		c.useStream()
	}
	return q.sendRequest()
}
