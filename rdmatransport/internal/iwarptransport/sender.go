package iwarptransport

// Send path. Posted requests, and responses to the peer's READs and atomics, become DDP segments,
// one FPDU each (RFC 5040 §5, RFC 5041 §5). This happens on the goroutine that posted the request
// or made the response due.

// transmit sends as much as the stream has room for, unless requests are corked. Segments of
// requests and responses alternate, so that neither waits for a whole message of the other. But a
// tagged message is sent completely before the next tagged message begins: siw aborts a stream in
// which segments of a WRITE and of a READ response alternate.
func (q *qp) transmit() {
	switch {
	case q.conn == nil || q.tx.output.full:
	case q.conn.peerConn.Load() == nil && q.corked():
		q.conn.stream.CallOnAnswer()
	default:
		q.transmitNow()
	}
}

// transmitNow is transmit without corking.
func (q *qp) transmitNow() {
	t := &q.tx
loop:
	for !t.output.full {
		switch t.lifecycle.phase {
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
		if t.responses.n == 0 && t.cursor.unsent(q.h.SendLen()) == 0 {
			break
		}
		if q.sendOne(t.responses.responseNext) {
			t.responses.alternate()
		} else if t.lifecycle.ended() || !q.sendOne(!t.responses.responseNext) {
			break // keep the order if a segment could not be sent now
		}
	}
	if q.conn != nil && !t.output.full && t.output.n > 0 {
		q.flush()
	}
}

// corked reports whether small requests wait for others to share a piece. The send queue must have
// room for more requests, and several pieces must be unacknowledged. The requests are sent when
// data arrives from the peer, or when the queue is full. If very many pieces are unacknowledged, a
// full queue does not end the wait. Otherwise small pieces would fill the queues on the path.
func (q *qp) corked() bool {
	t := &q.tx
	if !q.mayCork() || q.h.Send(t.cursor.index(t.cursor.next)).Length() > smallMessage {
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
	t := &q.tx
	idle := t.output.n == 0 && t.responses.n == 0
	return t.lifecycle.is(open) && idle && t.cursor.is(notStarted) && t.cursor.unsent(q.h.SendLen()) > 0
}

// sendOne sends the next segment of a response or of a request, or moves requests directly. It
// returns false if it sent nothing, or ended the connection.
func (q *qp) sendOne(response bool) bool {
	if response {
		return q.sendResponse()
	}
	c := &q.tx.cursor
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

// sender is the send state of a QP. Each field of its parts is written only in the file that
// declares it.
type sender struct {
	cursor    cursor
	lifecycle lifecycle
	reads     reads
	responses responses
	numbers   messageNumbers
	segment   segment
	output    output
}

// init allocates the state for up to depth posted requests.
func (t *sender) init(depth int) { t.cursor.init(slots(depth)) }

// reset clears the state, because the QP has no stream.
func (t *sender) reset() {
	t.lifecycle.reset()
	t.cursor.reset()
	t.reads.reset()
	t.responses.reset(0)
	t.numbers.reset()
	t.output.reset()
}

// begin starts sending on a stream.
func (t *sender) begin(c *conn) {
	t.reset()
	t.responses.reset(c.ird)
	t.lifecycle.begin(c.initiator, c.rtr)
}
