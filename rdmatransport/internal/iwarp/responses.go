package iwarp

// On the path: the responses to the peer's READs and atomics, in the order of the requests (RFC
// 5040 §5.5, RFC 7306 §5).

import (
	"github.com/softrnic/softrnic/rdmatransport/internal/memory"
	"github.com/softrnic/softrnic/rdmatransport/iwarp/ddp"
	"github.com/softrnic/softrnic/rdmatransport/iwarp/rdmap"
	"github.com/softrnic/softrnic/verbs"
)

// response is what is still to be sent for one request.
type response struct {
	atomic bool
	done   bool                      // of an atomic: it was executed
	begun  bool                      // of a READ: some of it is sent
	read   rdmap.ReadRequestHeader   // of a READ: what is still to be sent
	update rdmap.AtomicRequestHeader // of an atomic: the request
	found  uint64                    // of an atomic: what memory held before
	ddp    [ddp.UntaggedLen]byte     // the request's DDP header, to be quoted in a Terminate
}

// responses is a ring of at most depth responses, the IRD.
type responses struct {
	ring    []response // nil before the first: most QPs never receive a READ
	depth   uint8
	head, n uint8
	turn    bool // the oldest goes before a request
}

// reset empties the ring, and sets its depth.
func (r *responses) reset(depth uint8) { *r = responses{depth: depth} }

// pushRead queues the response to a READ whose DDP header b begins with; false if the peer has more
// requests outstanding than it was granted.
func (r *responses) pushRead(b []byte, h *rdmap.ReadRequestHeader) bool {
	p := r.push(b)
	if p != nil {
		p.read = *h
	}
	return p != nil
}

// pushAtomic is pushRead for an atomic.
func (r *responses) pushAtomic(b []byte, h *rdmap.AtomicRequestHeader) bool {
	p := r.push(b)
	if p != nil {
		p.atomic, p.update = true, *h
	}
	return p != nil
}

// push takes the next place; nil if there is none.
func (r *responses) push(b []byte) *response {
	if r.n == r.depth {
		return nil
	}
	if r.ring == nil {
		r.ring = make([]response, r.depth)
	}
	p := &r.ring[(int(r.head)+int(r.n))%len(r.ring)]
	*p = response{}
	copy(p.ddp[:], b)
	r.n++
	return p
}

// oldest is the response that is sent next. There is one.
func (r *responses) oldest() *response { return &r.ring[r.head] }

// inData reports whether some of a READ response's data is sent, and not all.
func (r *responses) inData() bool { return r.n > 0 && r.oldest().begun }

// takeTurns gives the turn to a request if a response had it, and else the other way round.
func (r *responses) takeTurns() { r.turn = !r.turn }

func (r *responses) pop() {
	r.head = uint8((int(r.head) + 1) % len(r.ring))
	r.n--
}

// sendResponse sends the next segment of the oldest response, if there is one.
func (q *qp) sendResponse() bool {
	t := &q.tx
	if t.responses.n == 0 {
		return false
	}
	w := t.responses.oldest()
	if w.atomic {
		if err := q.executeAtomic(w); err != nil {
			q.failResponse(w, err)
			return false
		}
		t.segment.untagged(&ddp.Untagged{
			Last: true, RsvdULP: rdmap.AtomicResponse.Control(),
			QN: rdmap.QueueAtomicResponse, MSN: t.numbers.next(rdmap.QueueAtomicResponse),
		})
		h := rdmap.AtomicResponseHeader{ID: w.update.ID, Original: w.found}
		h.Encode(t.segment.rdmapHeader(rdmap.AtomicResponseLen))
		if !q.send() {
			return false
		}
		t.numbers.advance(rdmap.QueueAtomicResponse)
		t.responses.pop()
		return true
	}
	if q.inWrite() {
		return false
	}
	n, last := ddp.Segment(w.read.Size, 0, ddp.TaggedLen, q.maxULPDU())
	// The source is looked up for every segment: what was deregistered meanwhile is not sent.
	from, denial := q.e.regions.Remote(q.h, w.read.SourceSTag, w.read.SourceTO, uint64(n), verbs.AccessRemoteRead)
	if denial != memory.Allowed {
		q.failResponse(w, remoteCause(denial))
		return false
	}
	t.segment.tagged(&ddp.Tagged{
		Last: last, RsvdULP: rdmap.ReadResponse.Control(), STag: w.read.SinkSTag, TO: w.read.SinkTO,
	})
	if n > 0 {
		t.segment.add(from.Bytes())
	}
	if !q.send() {
		if t.segment.faulted {
			q.failResponse(w, rdmap.OperationError)
		}
		return false
	}
	w.begun = true
	w.read.Advance(uint32(n))
	if last {
		t.responses.pop()
	}
	return true
}

// executeAtomic executes an atomic, once. That is done when its response is next, so that the READs
// before it return what memory held before.
func (q *qp) executeAtomic(w *response) error {
	if w.done {
		return nil
	}
	word, err := q.atomicWord(&w.update)
	if err != nil {
		return err
	}
	found, ok := word.Update(w.update.Apply)
	if !ok {
		return rdmap.OperationError
	}
	w.found, w.done = found, true
	return nil
}

// failResponse ends the connection where a request that was accepted can no longer be responded to.
func (q *qp) failResponse(w *response, err error) {
	var bad [ddp.UntaggedLen + rdmap.AtomicRequestLen]byte
	n := copy(bad[:], w.ddp[:])
	if w.atomic {
		w.update.Encode(bad[n:])
		n += rdmap.AtomicRequestLen
	} else {
		w.read.Encode(bad[n:])
		n += rdmap.ReadRequestLen
	}
	q.h.Event(asyncEvent(err)) // no completion reports it
	q.fail(err, bad[:n])
}

// remoteCause is the cause that RDMAP has for an access that is denied (RFC 5040 §4.8).
func remoteCause(d memory.Denial) rdmap.Cause {
	switch d {
	case memory.UnknownKey:
		return rdmap.InvalidSTag
	case memory.OtherPD:
		return rdmap.STagNotAssociated
	case memory.NoRight:
		return rdmap.AccessViolation
	}
	return rdmap.BoundsViolation
}
