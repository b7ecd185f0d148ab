package send

import "github.com/softrnic/softrnic/rdmatransport/roce/wire"

// Kind is what a work request takes to be complete.
type Kind uint8

const (
	Send     Kind = iota // SEND: an acknowledgement
	Write                // WRITE: an acknowledgement
	WriteImm             // WRITE with immediate: an acknowledgement; the last packet takes a receive request of the peer's
	Read                 // READ: as many response packets as it has PSNs
	Atomic               // an atomic and the like (FLUSH, ATOMIC WRITE): a response of one packet
	Local                // nothing from the peer: it has no packets and is executed in its turn
)

// hasData reports whether the request's packets carry its payload, and an acknowledgement completes
// it.
func (k Kind) hasData() bool { return k <= WriteImm }

// takesReceive reports whether the message takes a receive request of the peer's.
func (k Kind) takesReceive() bool { return k == Send || k == WriteImm }

// answered reports whether a response completes the request, and counts as one of the outstanding
// READs until then.
func (k Kind) answered() bool { return k == Read || k == Atomic }

// request is what is known of a posted work request.
type request struct {
	psn     uint32 // of its first packet, once it is started
	packets uint32 // how many PSNs it takes
	kind    Kind
	flags   requestFlags
	failed  uint8 // the engine's reason why it cannot be sent; 0: there is none
}

type requestFlags uint8

const (
	fenced  requestFlags = 1 << iota // it waits for the answers to all READs and atomics before it
	started                          // it has its PSNs, or was executed
)

func (r *request) is(f requestFlags) bool { return r.flags&f != 0 }

// past is the PSN behind its last packet.
func (r *request) past() uint32 { return wire.PSNAdd(r.psn, r.packets) }

// queue is the send queue and its cursor: which packet of which request is sent next. Requests are
// numbered from the QP's start, modulo 2^32; those from first up to end are posted and not
// complete, and those before next are sent.
type queue struct {
	requests   []request // by number modulo its length, a power of two; nil until one is posted, as many QPs only receive
	capacity   uint32    // that length
	first      uint32    // the oldest that is not complete
	next       uint32    // the one to send from
	end        uint32    // the one that is posted next
	packet     uint32    // of next, to be sent next
	unanswered uint32    // requests that are started and wait for an answer: a fence waits for them
}

// init sets how many requests the queue can hold.
func (q *queue) init(capacity uint32) { q.capacity = capacity }

// reset empties the queue. Its memory stays.
func (q *queue) reset() { *q = queue{requests: q.requests, capacity: q.capacity} }

func (q *queue) at(n uint32) *request { return &q.requests[n&uint32(len(q.requests)-1)] }
func (q *queue) oldest() *request     { return q.at(q.first) }
func (q *queue) current() *request    { return q.at(q.next) }

// index is a request's place behind the oldest.
func (q *queue) index(n uint32) int { return int(n - q.first) }

func (q *queue) post(kind Kind, packets uint32, fence bool) {
	r := request{packets: packets, kind: kind}
	if fence {
		r.flags = fenced
	}
	if q.requests == nil {
		q.requests = make([]request, q.capacity)
	}
	*q.at(q.end) = r
	q.end++
}

// begun reports whether the oldest request is under way.
func (q *queue) begun() bool { return q.first != q.end && q.oldest().is(started) }

// start gives the current request, r, its PSNs.
func (q *queue) start(r *request, psn uint32) {
	r.psn = psn
	r.flags |= started
	if r.kind.answered() {
		q.unanswered++
	}
}

// advance moves the cursor over n packets of the current request, r, that were sent.
func (q *queue) advance(r *request, n uint32) {
	if q.packet += n; q.packet == r.packets {
		q.step()
	}
}

// localExecuted moves the cursor over a local request. It has no packets; psn is that of what comes
// behind it.
func (q *queue) localExecuted(psn uint32) {
	r := q.current()
	r.psn = psn
	r.flags |= started
	q.step()
}

// step moves the cursor to the next request that is not a local one which was executed.
func (q *queue) step() {
	q.next++
	q.packet = 0
	if q.next != q.end && q.current().kind == Local {
		q.skipExecuted()
	}
}

func (q *queue) skipExecuted() {
	for q.next != q.end && q.current().kind == Local && q.current().is(started) {
		q.next++
	}
}

// fail notes that a request cannot be sent.
func (q *queue) fail(n uint32, reason uint8) { q.at(n).failed = reason }

// completeOldest takes the oldest request, r, off the queue, which is acknowledged or answered, and
// the local ones behind it that were executed. It returns how many those are.
func (q *queue) completeOldest(r *request) (n int) {
	if r.kind.answered() {
		q.unanswered--
	}
	q.drop()
	if q.first != q.end && q.oldest().kind == Local {
		return 1 + q.completeLocal()
	}
	return 1
}

// completeLocal takes the oldest requests off the queue as far as they are local and executed.
func (q *queue) completeLocal() (n int) {
	for ; q.first != q.end; n++ {
		if r := q.oldest(); r.kind != Local || !r.is(started) || r.failed != 0 {
			break
		}
		q.drop()
	}
	return n
}

func (q *queue) drop() {
	if q.next == q.first {
		q.step()
	}
	q.first++
}

// movedDirectly takes off the oldest request, which was not begun and perhaps not even posted here.
func (q *queue) movedDirectly() {
	q.first++
	q.next++
	if q.end == q.first-1 {
		q.end++
	}
}

// movedPart moves the cursor over n packets of the oldest request, which is started.
func (q *queue) movedPart(n uint32) { q.packet += n }

// endDirectly takes off the oldest request, which was begun.
func (q *queue) endDirectly() {
	if q.oldest().kind.answered() {
		q.unanswered--
	}
	q.drop()
}

// rewind moves the cursor back to PSN una, which is in the oldest request.
func (q *queue) rewind(una uint32) {
	q.next = q.first
	q.packet = uint32(wire.PSNDiff(una, q.oldest().psn))
}

// skip moves the cursor on to PSN una if it was moved back to before it: what is acknowledged need
// not be sent again.
func (q *queue) skip(una uint32) {
	if q.next != q.first {
		return
	}
	if r := q.oldest(); r.is(started) && r.kind != Local {
		if acked := uint32(wire.PSNDiff(una, r.psn)); q.packet < acked && acked <= r.packets {
			q.packet = acked
		}
	}
}

// forward moves the cursor on to PSN max, behind all that was ever sent, or to a request that
// cannot be sent.
func (q *queue) forward(max uint32) {
	for q.next != q.end {
		r := q.current()
		if !r.is(started) || r.failed != 0 {
			return
		}
		if k := wire.PSNDiff(max, r.psn); k < int32(r.packets) {
			q.packet = uint32(k)
			return
		}
		q.step()
	}
}

// position is the PSN that the cursor is at; false if that has none yet.
func (q *queue) position() (psn uint32, ok bool) {
	if q.next == q.end || !q.current().is(started) {
		return 0, false
	}
	return wire.PSNAdd(q.current().psn, q.packet), true
}

// find is the number of the request that a PSN in flight belongs to.
func (q *queue) find(psn uint32) uint32 {
	n := q.first
	for n+1 != q.end && wire.PSNDiff(psn, q.at(n).past()) >= 0 {
		n++
	}
	return n
}
