package iwarp

// On the path: what a peer's READs and atomics are owed, in the order in which they were asked for (RFC 5040 §5.5,
// RFC 7306 §5).

import (
	"github.com/softrnic/softrnic/rdmatransport/internal/memory"
	"github.com/softrnic/softrnic/rdmatransport/iwarp/ddp"
	"github.com/softrnic/softrnic/rdmatransport/iwarp/rdmap"
	"github.com/softrnic/softrnic/verbs"
)

// answer is what is still owed for one request.
type answer struct {
	atomic bool
	done   bool                      // atomic: it is carried out
	begun  bool                      // read: some of it is sent
	read   rdmap.ReadRequestHeader   // what is still to be sent
	update rdmap.AtomicRequestHeader // atomic
	found  uint64                    // atomic: what memory held
	ddp    [ddp.UntaggedLen]byte     // the request's DDP header, to be quoted in a Terminate
}

// answers is a ring of at most depth (IRD) of them.
type answers struct {
	ring    []answer // nil before the first: most QPs never answer a READ
	depth   int
	head, n int
}

// push queues an answer; false if the peer has more requests outstanding than it was granted.
func (a *answers) push(w answer) bool {
	if a.n == a.depth {
		return false
	}
	if a.ring == nil {
		a.ring = make([]answer, a.depth)
	}
	a.ring[(a.head+a.n)%len(a.ring)] = w
	a.n++
	return true
}

// halfway tells whether some, and not all, of a response is sent.
func (a *answers) halfway() bool { return a.n > 0 && a.ring[a.head].begun }

func (a *answers) pop() {
	a.head = (a.head + 1) % len(a.ring)
	a.n--
}

// sendAnswer sends the next segment of the oldest answer, if there is one.
func (q *qp) sendAnswer() bool {
	t := &q.tx
	if t.answers.n == 0 {
		return false
	}
	w := &t.answers.ring[t.answers.head]
	if w.atomic {
		if err := q.carryOut(w); err != nil {
			q.failAnswer(w, err)
			return false
		}
		t.segment.untagged(&ddp.Untagged{
			Last: true, RsvdULP: rdmap.AtomicResponse.Control(),
			QN: rdmap.QueueAtomicResponse, MSN: t.msn[rdmap.QueueAtomicResponse] + 1,
		})
		h := rdmap.AtomicResponseHeader{ID: w.update.ID, Original: w.found}
		h.Encode(t.segment.more(rdmap.AtomicResponseLen))
		if !q.send() {
			return false
		}
		t.msn[rdmap.QueueAtomicResponse]++
		t.answers.pop()
		return true
	}
	if t.writing {
		return false
	}
	n, last := ddp.Segment(w.read.Size, 0, ddp.TaggedLen, q.room())
	// The source is looked up for every segment: what was deregistered meanwhile is not sent.
	from, denial := q.e.regions.Remote(q.h, w.read.SourceSTag, w.read.SourceTO, uint64(n), verbs.AccessRemoteRead)
	if denial != memory.Allowed {
		q.failAnswer(w, remoteCause(denial))
		return false
	}
	b, ok := from.Bytes()
	if !ok {
		q.failAnswer(w, rdmap.OperationError)
		return false
	}
	t.segment.tagged(&ddp.Tagged{
		Last: last, RsvdULP: rdmap.ReadResponse.Control(), STag: w.read.SinkSTag, TO: w.read.SinkTO,
	})
	if n > 0 {
		t.segment.pieces = append(t.segment.pieces, b)
	}
	t.segment.length = n
	if !q.send() {
		return false
	}
	w.begun = true
	w.read.Advance(uint32(n))
	if last {
		t.answers.pop()
	}
	return true
}

// carryOut does what an atomic asks for, once. Its turn is that of its answer, so that the READs before it find what was
// there before.
func (q *qp) carryOut(w *answer) error {
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

// failAnswer ends the connection over a request that was accepted and cannot be served to its end.
func (q *qp) failAnswer(w *answer, err error) {
	var bad [ddp.UntaggedLen + rdmap.AtomicRequestLen]byte
	n := copy(bad[:], w.ddp[:])
	if w.atomic {
		w.update.Encode(bad[n:])
		n += rdmap.AtomicRequestLen
	} else {
		w.read.Encode(bad[n:])
		n += rdmap.ReadRequestLen
	}
	q.h.Event(asyncEvent(err)) // no completion tells
	q.fail(err, bad[:n])
}

// remoteCause is RDMAP's name for a denied access (RFC 5040 §4.8).
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
