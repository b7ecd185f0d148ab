package iwarp

// On the path: the outgoing half. What is posted, and the responses to the peer's READs and
// atomics, become DDP segments here, one FPDU each, on the goroutine that posted or that brought
// what made them due. (RFC 5040 §5, RFC 5041 §5)

// sender is the state of a QP's outgoing half. Each field of its parts is written in the file that
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

// init sets how many requests can be posted.
func (t *sender) init(depth int) { t.cursor.init(slots(depth)) }

// reset forgets everything: the QP has no stream.
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

// transmit sends what the stream has room for, unless it is corked. Requests and responses take
// turns, segment by segment, so that neither waits for the other's whole message; but a tagged
// message is sent in full before the next tagged one begins, as siw gives up a stream where the
// segments of a WRITE and of a READ response alternate.
func (q *qp) transmit() {
	switch {
	case q.conn == nil || q.tx.output.full:
	case q.conn.other.Load() == nil && q.corked():
		q.conn.stream.CallOnAnswer()
	default:
		q.transmitNow()
	}
}

// transmitNow is transmit where nothing is corked.
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
		if q.sendOne(t.responses.turn) {
			t.responses.takeTurns()
		} else if t.lifecycle.ended() || !q.sendOne(!t.responses.turn) {
			break // the turn stays with the one that could not send now
		}
	}
	if q.conn != nil && !t.output.full && t.output.n > 0 {
		q.flush()
	}
}

// corked reports whether small requests wait for others to share a piece with: the queue has room
// for more, and the peer has not acknowledged several pieces. What comes from the peer, or a full
// queue, sends them; if very many pieces are not acknowledged only the former does, so that small
// pieces do not fill the queues on the way.
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

// mayCork reports whether nothing but requests is to be sent, from the start of one on.
func (q *qp) mayCork() bool {
	t := &q.tx
	idle := t.output.n == 0 && t.responses.n == 0
	return t.lifecycle.is(open) && idle && t.cursor.is(untouched) && t.cursor.unsent(q.h.SendLen()) > 0
}

// sendOne sends the next segment of a response or of a request; false if it did not, or ended the
// connection.
func (q *qp) sendOne(response bool) bool {
	if response {
		return q.sendResponse()
	}
	return q.sendRequest()
}
