package send

import "github.com/softrnic/softrnic/rdmatransport/wire"

// Kind is the kind of a work request, by what completes it.
type Kind uint8

const (
	Send  Kind = iota // SEND: an acknowledgement
	Write             // WRITE: an acknowledgement
	// WRITE with immediate: an acknowledgement; its last packet consumes a receive request of the
	// peer.
	WriteImm
	Read   // READ: one response packet per PSN
	Atomic // an atomic, FLUSH or ATOMIC WRITE: a response of one packet
	Local  // a local request, executed in order without packets
)

// hasData reports whether the packets carry the payload, and an acknowledgement completes the
// request.
func (k Kind) hasData() bool { return k <= WriteImm }

// takesReceive reports whether the message consumes a receive request of the peer.
func (k Kind) takesReceive() bool { return k == Send || k == WriteImm }

// answered reports whether a response completes the request. Until then the request counts as one
// of the outstanding READs.
func (k Kind) answered() bool { return k == Read || k == Atomic }

// request is the state of a posted work request.
type request struct {
	psn     uint32 // of its first packet, once started
	packets uint32 // number of PSNs
	kind    Kind
	flags   requestFlags
	failed  uint8 // the engine's reason why it cannot be sent; 0 if there is none
}

type requestFlags uint8

const (
	fenced  requestFlags = 1 << iota // waits for the responses to all READs and atomics before it
	started                          // it has its PSNs, or was executed
)

func (r *request) is(f requestFlags) bool { return r.flags&f != 0 }

// past returns the PSN after the last packet.
func (r *request) past() uint32 { return wire.PSNAdd(r.psn, r.packets) }

// queue is the send queue with its cursor, which is the next packet to be sent. Requests are
// numbered from the QP's start, modulo 2^32. Those from first up to end are posted and not
// complete. Those before next are sent.
type queue struct {
	// By number modulo capacity; nil until the first post, as many QPs only receive.
	requests   []request
	capacity   uint32 // length of requests: a power of two
	first      uint32 // the oldest request that is not complete
	next       uint32 // the request of the cursor
	end        uint32 // the next request to be posted
	packet     uint32 // the packet of the cursor, within next
	unanswered uint32 // started requests that wait for a response, for fences
}

// init sets the capacity.
func (q *queue) init(capacity uint32) { q.capacity = capacity }

// reset empties the queue and keeps its memory.
func (q *queue) reset() { *q = queue{requests: q.requests, capacity: q.capacity} }

func (q *queue) at(n uint32) *request { return &q.requests[n&uint32(len(q.requests)-1)] }
func (q *queue) oldest() *request     { return q.at(q.first) }
func (q *queue) current() *request    { return q.at(q.next) }

// index returns a request's distance from the oldest.
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

// begun reports whether the oldest request is started.
func (q *queue) begun() bool { return q.first != q.end && q.oldest().is(started) }

// start assigns PSNs to the current request, r.
func (q *queue) start(r *request, psn uint32) {
	r.psn = psn
	r.flags |= started
	if r.kind.answered() {
		q.unanswered++
	}
}

// advance moves the cursor over n packets of the current request, r.
func (q *queue) advance(r *request, n uint32) {
	if q.packet += n; q.packet == r.packets {
		q.step()
	}
}

// localExecuted moves the cursor over a local request, which has no packets. psn is the next
// request's.
func (q *queue) localExecuted(psn uint32) {
	r := q.current()
	r.psn = psn
	r.flags |= started
	q.step()
}

// step moves the cursor to the next request and skips local ones that were executed.
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

// fail records that a request cannot be sent.
func (q *queue) fail(n uint32, reason uint8) { q.at(n).failed = reason }

// completeOldest removes the oldest request, r, which is acknowledged or answered, and the executed
// local requests after it. It returns their number.
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

// completeLocal removes executed local requests from the head of the queue.
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

// movedDirectly removes the oldest request, which was not started and perhaps not posted.
func (q *queue) movedDirectly() {
	q.first++
	q.next++
	if q.end == q.first-1 {
		q.end++
	}
}

// movedPart moves the cursor over n packets of the oldest request, which is started.
func (q *queue) movedPart(n uint32) { q.packet += n }

// endDirectly removes the oldest request, which was started.
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

// skip moves the cursor up to PSN una if it is behind una: acknowledged packets need no
// retransmission.
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

// forward moves the cursor up to PSN max, after everything that was ever sent, or to a request
// that cannot be sent.
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

// position returns the PSN of the cursor, and false if it has none yet.
func (q *queue) position() (psn uint32, ok bool) {
	if q.next == q.end || !q.current().is(started) {
		return 0, false
	}
	return wire.PSNAdd(q.current().psn, q.packet), true
}

// find returns the number of the request that contains a PSN in flight.
func (q *queue) find(psn uint32) uint32 {
	n := q.first
	for n+1 != q.end && wire.PSNDiff(psn, q.at(n).past()) >= 0 {
		n++
	}
	return n
}
