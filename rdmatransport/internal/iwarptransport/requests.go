package iwarptransport

// Send path: sending and completion of each kind of work request.

import (
	"github.com/softrnic/softrnic/rdmatransport/ddp"
	"github.com/softrnic/softrnic/rdmatransport/internal/memory"
	"github.com/softrnic/softrnic/rdmatransport/rdmap"
	"github.com/softrnic/softrnic/verbs"
)

// sendRequest sends the next segment of the next request through the stream, if that is allowed.
func (q *qp) sendRequest() bool {
	s := &q.sending
	wr := q.h.Send(s.cursor.index(s.cursor.next))
	if s.cursor.is(notStarted) && wr.Flags&verbs.SendFence != 0 && len(s.reads.list) > 0 {
		return false
	}
	if wr.Fault() != verbs.WCSuccess {
		return q.executeLocal(wr)
	}
	switch wr.Opcode {
	case verbs.BindMW, verbs.LocalInv:
		return q.executeLocal(wr)
	case verbs.RDMARead, verbs.AtomicCmpAndSwp, verbs.AtomicFetchAndAdd:
		if s.reads.outstanding() >= int(q.conn.ord) {
			return q.refuseRead()
		}
		return q.sendRead(wr)
	case verbs.RDMAWrite, verbs.RDMAWriteWithImm:
		if s.cursor.is(beforeImmediate) {
			return q.sendImmediate(wr)
		}
		return q.sendWrite(wr)
	}
	return q.sendSend(wr)
}

// isRead reports whether an operation has a response: READs and atomics.
func isRead(op verbs.WROpcode) bool {
	return op == verbs.RDMARead || op == verbs.AtomicCmpAndSwp || op == verbs.AtomicFetchAndAdd
}

func isSend(op verbs.WROpcode) bool { return op == verbs.Send || op == verbs.SendWithInv }

func isWrite(op verbs.WROpcode) bool { return op == verbs.RDMAWrite || op == verbs.RDMAWriteWithImm }

// inWrite reports whether a part of a WRITE's data is sent.
func (q *qp) inWrite() bool {
	c := &q.sending.cursor
	return c.inData() && isWrite(q.h.Send(c.index(c.next)).Opcode)
}

// executeLocal binds or invalidates a window, or fails a request whose fault is known. It sends
// nothing. A failed request waits until it is the oldest.
func (q *qp) executeLocal(wr *verbs.PostedSend) bool {
	c := &q.sending.cursor
	status := c.refusal()
	switch {
	case status != verbs.WCSuccess:
	case wr.Fault() != verbs.WCSuccess:
		status = wr.Fault()
	case wr.Opcode == verbs.BindMW:
		status = q.e.regions.Bind(q.h, wr.Bind)
	case q.e.regions.InvalidateWindow(q.h, wr.InvalidateRKey) != memory.Allowed:
		status = verbs.WCMWBindErr // verbs' status for a Memory Management Operation Error
	}
	if status == verbs.WCSuccess {
		q.requestSent(true)
		return true
	}
	c.refuse(status)
	if c.atOldest() {
		q.failRequest(c.next, status)
		q.fail(rdmap.LocalCatastrophic, nil)
	}
	return false
}

// refuseRead fails the next request if it is a READ and the stream has an ORD of 0, because it
// could never be sent. On other streams a READ waits until fewer are outstanding.
func (q *qp) refuseRead() bool {
	if c := &q.sending.cursor; q.conn.ord == 0 && c.atOldest() {
		q.failRequest(c.next, verbs.WCLocQPOpErr)
		q.fail(rdmap.LocalCatastrophic, nil)
	}
	return false
}

// sendPayload sends the segment with the next n bytes of a request's message. It returns false if
// the stream has no room, or if the memory must not be used.
func (q *qp) sendPayload(wr *verbs.PostedSend, n int) bool {
	c, s := &q.sending.cursor, &q.sending.segment
	if inline := wr.Inline(); inline != nil {
		s.add(inline[c.off:c.off+uint64(n)], false)
		return q.send()
	}
	status := s.gather(q.e.regions, q.h.PD(), wr.SGList, c.off, n)
	if status == verbs.WCSuccess {
		if q.send() {
			return true
		}
		if !s.faulted {
			return false
		}
		status = verbs.WCLocProtErr
	}
	// Earlier requests may still complete with success. So the request fails when it is the oldest. It
	// cannot wait if a part of it is sent.
	if c.atOldest() || !c.is(notStarted) {
		q.failRequest(c.next, status)
		q.fail(rdmap.LocalCatastrophic, nil)
	}
	return false
}

// sendSend sends one segment of a SEND.
func (q *qp) sendSend(wr *verbs.PostedSend) bool {
	s := &q.sending
	op := rdmap.Send
	solicited := wr.Flags&verbs.SendSolicited != 0
	switch {
	case wr.Opcode == verbs.SendWithInv && solicited:
		op = rdmap.SendSEInvalidate
	case wr.Opcode == verbs.SendWithInv:
		op = rdmap.SendInvalidate
	case solicited:
		op = rdmap.SendSE
	}
	off := s.cursor.off
	n, step, last := q.cut(uint32(wr.Length()), uint32(off), ddp.UntaggedLen, s.responses.n == 0)
	h := ddp.Untagged{
		Last: last, RsvdULP: op.Control(), QN: rdmap.QueueSend, MSN: s.numbers.next(rdmap.QueueSend), MO: uint32(off),
	}
	if op.Info().Invalidate {
		h.Invalidate = wr.InvalidateRKey
	}
	s.segment.untagged(&h)
	s.segment.run(step)
	if !q.sendPayload(wr, n) {
		return false
	}
	if !last {
		s.cursor.advance(uint64(n))
		return true
	}
	s.numbers.advance(rdmap.QueueSend)
	q.requestSent(true)
	return true
}

// sendWrite sends one segment of a WRITE.
func (q *qp) sendWrite(wr *verbs.PostedSend) bool {
	s := &q.sending
	if s.responses.inData() {
		return false
	}
	off := s.cursor.off
	n, step, last := q.cut(uint32(wr.Length()), uint32(off), ddp.TaggedLen, s.responses.n == 0)
	s.segment.tagged(&ddp.Tagged{Last: last, RsvdULP: rdmap.Write.Control(), STag: wr.RKey, TO: wr.RemoteAddr + off})
	s.segment.run(step)
	if wr.Opcode == verbs.RDMAWriteWithImm {
		s.segment.beforeImmediate()
	}
	if !q.sendPayload(wr, n) {
		return false
	}
	switch {
	case !last:
		s.cursor.advance(uint64(n))
	case wr.Opcode == verbs.RDMAWriteWithImm:
		s.cursor.advanceToImmediate()
	default:
		q.requestSent(true)
	}
	return true
}

// sendImmediate sends the immediate data of a WRITE, a separate message. verbs' four bytes are the
// low half of RFC 7306's eight.
func (q *qp) sendImmediate(wr *verbs.PostedSend) bool {
	s := &q.sending
	op := rdmap.ImmediateData
	if wr.Flags&verbs.SendSolicited != 0 {
		op = rdmap.ImmediateDataSE
	}
	s.segment.untagged(&ddp.Untagged{
		Last: true, RsvdULP: op.Control(), QN: rdmap.QueueSend, MSN: s.numbers.next(rdmap.QueueSend),
	})
	rdmap.PutImmediate(s.segment.rdmapHeader(rdmap.ImmediateLen), uint64(wr.ImmData))
	if !q.send() {
		return false
	}
	s.numbers.advance(rdmap.QueueSend)
	q.requestSent(true)
	return true
}

// sendRead sends the request of a READ or an atomic.
func (q *qp) sendRead(wr *verbs.PostedSend) bool {
	s := &q.sending
	op := rdmap.AtomicRequest
	if wr.Opcode == verbs.RDMARead {
		op = rdmap.ReadRequest
	}
	s.segment.untagged(&ddp.Untagged{
		Last: true, RsvdULP: op.Control(), QN: rdmap.QueueReadRequest, MSN: s.numbers.next(rdmap.QueueReadRequest),
	})
	switch body := s.segment.rdmapHeader(op.Info().HeaderLen); wr.Opcode {
	case verbs.RDMARead:
		off := s.cursor.off // the bytes moved directly
		h := rdmap.ReadRequestHeader{
			SinkSTag: q.conn.sink, SinkTO: off, Size: uint32(wr.Length() - off), SourceSTag: wr.RKey, SourceTO: wr.RemoteAddr + off,
		}
		h.Encode(body)
	case verbs.AtomicFetchAndAdd:
		h := rdmap.AtomicRequestHeader{
			Code: rdmap.FetchAdd, ID: s.reads.nextID, STag: wr.RKey, TO: wr.RemoteAddr,
			Data: wr.CompareAdd, CompareMask: ^uint64(0),
		}
		h.Encode(body)
	default:
		h := rdmap.AtomicRequestHeader{
			Code: rdmap.CmpSwap, ID: s.reads.nextID, STag: wr.RKey, TO: wr.RemoteAddr,
			Data: wr.Swap, Mask: ^uint64(0), CompareData: wr.CompareAdd, CompareMask: ^uint64(0),
		}
		h.Encode(body)
	}
	if !q.send() {
		return false
	}
	s.numbers.advance(rdmap.QueueReadRequest)
	s.reads.sent(s.cursor.next)
	q.requestSent(false)
	return true
}

// requestSent moves to the next request. A request without a response is done: either TCP delivers
// it or the stream is lost.
func (q *qp) requestSent(done bool) {
	q.sending.cursor.step(done)
	q.completeDone()
}

// completeDone completes finished requests in order.
func (q *qp) completeDone() {
	for q.sending.cursor.oldestDone() {
		wr := q.h.Send(0)
		n := uint32(0)
		if wr.Opcode == verbs.RDMARead {
			n = uint32(wr.Length())
		} else if wr.Opcode == verbs.AtomicCmpAndSwp || wr.Opcode == verbs.AtomicFetchAndAdd {
			n = 8
		}
		q.completeOldest(verbs.WCSuccess, n)
	}
}

// completeOldest completes the oldest request.
func (q *qp) completeOldest(status verbs.WCStatus, byteLen uint32) {
	q.sending.cursor.completeOldest()
	q.h.CompleteSend(status, byteLen)
}

// failRequest completes request n with an error. It also fails earlier ones, because their
// responses will not arrive.
func (q *qp) failRequest(n uint64, status verbs.WCStatus) {
	for c := &q.sending.cursor; c.first < n; {
		if c.isDone(c.first) {
			q.completeOldest(verbs.WCSuccess, 0)
		} else {
			q.completeOldest(verbs.WCWRFlushErr, 0)
		}
	}
	q.completeOldest(status, 0)
}
