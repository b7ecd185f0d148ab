package iwarptransport

// Send path of responses to the peer's READs and atomics, in the order of the requests (RFC 5040
// §5.5, RFC 7306 §5).

import (
	"sync"

	"github.com/softrnic/softrnic/rdmatransport/ddp"
	"github.com/softrnic/softrnic/rdmatransport/internal/memory"
	"github.com/softrnic/softrnic/rdmatransport/rdmap"
	"github.com/softrnic/softrnic/verbs"
)

// response is the response to one request, or the part of it that is not sent yet.
type response struct {
	atomic   bool
	done     bool                      // atomic: it is executed
	begun    bool                      // READ: a part of it is sent
	rtr      bool                      // READ: it is the ready-to-receive message
	read     rdmap.ReadRequestHeader   // READ: the part that is not sent
	update   rdmap.AtomicRequestHeader // atomic: the request
	updating *updating                 // atomic in a backend: it has started
	previous uint64                    // atomic: the previous content of memory
	placed   uint64                    // what the peer has written before: see verbs.QPHandle.PlacedBy
	ddp      [ddp.UntaggedLen]byte     // the request's DDP header, for a Terminate message
}

// responses is a ring of at most depth responses; depth is the IRD.
type responses struct {
	ring         []response // nil before the first: most QPs never receive a READ
	depth        uint8
	head, n      uint8
	responseNext bool // the next segment is one of a response
}

// reset empties the ring, and sets its depth.
func (r *responses) reset(depth uint8) { *r = responses{depth: depth} }

// pushRead queues the response to a READ with the DDP header at the start of b. It returns false if
// the peer exceeds the IRD. placed is the mark of what the peer has written before. rtr says that
// the READ is the ready-to-receive message.
func (r *responses) pushRead(b []byte, h *rdmap.ReadRequestHeader, placed uint64, rtr bool) bool {
	p := r.push(b)
	if p != nil {
		p.read, p.placed, p.rtr = *h, placed, rtr
	}
	return p != nil
}

// pushAtomic does the same for an atomic.
func (r *responses) pushAtomic(b []byte, h *rdmap.AtomicRequestHeader, placed uint64) bool {
	p := r.push(b)
	if p != nil {
		p.atomic, p.placed, p.update = true, placed, *h
	}
	return p != nil
}

// push takes the next slot; nil if there is none.
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

// oldest returns the next response to be sent. There must be one.
func (r *responses) oldest() *response { return &r.ring[r.head] }

// inData reports whether a part of a READ response's data is sent.
func (r *responses) inData() bool { return r.n > 0 && r.oldest().begun }

// alternate alternates between responses and requests.
func (r *responses) alternate() { r.responseNext = !r.responseNext }

func (r *responses) pop() {
	r.head = uint8((int(r.head) + 1) % len(r.ring))
	r.n--
}

// sendResponse sends the next segment of the oldest response, if there is one.
func (q *qp) sendResponse() bool {
	s := &q.sending
	if s.responses.n == 0 {
		return false
	}
	w := s.responses.oldest()
	if w.atomic {
		if err := q.executeAtomic(w); err != nil {
			q.failResponse(w, err)
			return false
		}
		if !w.done || !q.h.Arrived(w.placed) {
			return false
		}
		s.segment.untagged(&ddp.Untagged{
			Last: true, RsvdULP: rdmap.AtomicResponse.Control(),
			QN: rdmap.QueueAtomicResponse, MSN: s.numbers.next(rdmap.QueueAtomicResponse),
		})
		h := rdmap.AtomicResponseHeader{ID: w.update.ID, Original: w.previous}
		h.Encode(s.segment.rdmapHeader(rdmap.AtomicResponseLen))
		if !q.send() {
			return false
		}
		s.numbers.advance(rdmap.QueueAtomicResponse)
		s.responses.pop()
		return true
	}
	if q.inWrite() || !q.h.Arrived(w.placed) {
		return false
	}
	n, step, last := q.cut(w.read.Size, 0, ddp.TaggedLen, s.cursor.unsent(q.h.SendLen()) == 0)
	// The source is looked up for every piece, so that memory is not sent after its deregistration.
	from, denial := q.e.regions.Remote(q.h, w.read.SourceSTag, w.read.SourceTO, uint64(n), verbs.AccessRemoteRead)
	if step > 0 && from.InBackend() { // a backend fetches one segment at a time
		n, step, last = step, 0, false
		from, denial = q.e.regions.Remote(q.h, w.read.SourceSTag, w.read.SourceTO, uint64(n), verbs.AccessRemoteRead)
	}
	if denial != memory.Allowed {
		q.failResponse(w, remoteCause(denial))
		return false
	}
	if from.InBackend() {
		var state verbs.Fetched
		switch from, state = from.Fetch(q.h, int(w.read.Size)-n); state {
		case verbs.FetchFailed:
			q.failResponse(w, rdmap.OperationError)
			return false
		case verbs.FetchPending:
			return false
		}
	}
	s.segment.tagged(&ddp.Tagged{
		Last: last, RsvdULP: rdmap.ReadResponse.Control(), STag: w.read.SinkSTag, TO: w.read.SinkTO,
	})
	s.segment.run(step)
	if n > 0 {
		s.segment.add(from.Bytes())
	}
	if !q.send() {
		if s.segment.faulted {
			q.failResponse(w, rdmap.OperationError)
		}
		return false
	}
	w.begun = true
	w.read.Advance(uint32(n))
	switch {
	case !last:
		q.h.CountRemote(verbs.CompCntrRemoteRead, 0, uint64(n))
		return true
	case !w.rtr:
		q.h.CountRemote(verbs.CompCntrRemoteRead, 1, uint64(n))
	}
	q.h.EndFetch()
	s.responses.pop()
	return true
}

// executeAtomic executes an atomic once, when its response is the next to be sent. Earlier READs
// thus return the previous content of memory. An atomic in a backend takes time, and w.done is
// false meanwhile.
func (q *qp) executeAtomic(w *response) error {
	if w.done {
		return nil
	}
	word, err := q.atomicWord(&w.update)
	if err != nil {
		return err
	}
	if word.InBackend() {
		if w.updating == nil {
			w.updating = newUpdating(&w.update)
			word.Change(q.h, &w.updating.Update, 0)
		}
		if w.previous, w.done = w.updating.Result(); w.done {
			updates.Put(w.updating)
			w.updating = nil
		}
		return nil
	}
	found, ok := word.Update(w.update.Apply)
	if !ok {
		return rdmap.OperationError
	}
	w.previous, w.done = found, true
	return nil
}

// updating is an atomic in a backend. The backend may still use it after the ring was reset.
type updating struct {
	verbs.Update
	request rdmap.AtomicRequestHeader
}

// updates has those that are done, for their next use.
var updates sync.Pool

func newUpdating(h *rdmap.AtomicRequestHeader) *updating {
	u, ok := updates.Get().(*updating)
	if !ok {
		u = new(updating)
		u.Update = verbs.Update{Apply: u.request.Apply}
	}
	u.request = *h
	return u
}

// failResponse ends the connection because an accepted request can no longer be answered.
func (q *qp) failResponse(w *response, err error) {
	var bad [ddp.UntaggedLen + rdmap.AtomicRequestLen]byte
	n := copy(bad[:], w.ddp[:])
	if w.atomic {
		w.update.Encode(bad[n:])
		n += rdmap.AtomicRequestLen
	} else {
		q.h.CountRemoteError(verbs.CompCntrRemoteRead)
		w.read.Encode(bad[n:])
		n += rdmap.ReadRequestLen
	}
	q.h.Event(asyncEvent(err)) // no completion reports it
	q.fail(err, bad[:n])
}

// remoteCause returns the RDMAP cause for a denied access (RFC 5040 §4.8).
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
