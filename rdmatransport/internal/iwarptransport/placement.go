package iwarptransport

// Receive path of DDP segments. Each segment is checked and placed before the next. An error has
// the code of the Terminate message that reports it to the peer (RFC 5040 §4, §5, §7; RFC 5041 §5,
// §6, §7).

import (
	"encoding/binary"
	"errors"

	"github.com/softrnic/softrnic/rdmatransport/ddp"
	"github.com/softrnic/softrnic/rdmatransport/internal/memory"
	"github.com/softrnic/softrnic/rdmatransport/rdmap"
	"github.com/softrnic/softrnic/verbs"
)

// errTerminated stops reception after the peer's Terminate message.
var errTerminated = errors.New("iwarp: the peer terminated the stream")

// ULPDU implements mpa.Handler.
func (q *qp) ULPDU(b []byte) error {
	if q.sending.lifecycle.is(awaitingPeer) {
		q.sending.lifecycle.on(onPeerFPDU)
	}
	q.receiving.inSetUp, q.receiving.rtrDue = q.receiving.rtrDue, false
	q.receiving.gotFPDU = true
	q.receiving.ulpdu = b
	if len(b) == 0 {
		return nil // an empty FPDU is a ready-to-receive message
	}
	var err error
	if ddp.IsTagged(b) {
		err = q.placeTagged(b)
	} else {
		err = q.placeUntagged(b)
	}
	if err == nil {
		q.receiving.ulpdu = nil
	}
	return err
}

// placeTagged places a segment of an RDMA Write or of a READ response.
func (q *qp) placeTagged(b []byte) error {
	h, payload, err := ddp.ParseTagged(b)
	if err != nil {
		return err
	}
	op, err := rdmap.ParseControl(h.RsvdULP)
	if err != nil {
		return err
	}
	switch op {
	case rdmap.Write:
		err := q.placeWrite(&h, payload)
		if err != nil {
			q.h.CountRemoteError(verbs.CompCntrRemoteWrite)
		}
		return err
	case rdmap.ReadResponse:
		return q.placeRead(&h, payload)
	}
	return rdmap.UnexpectedOpcode
}

// placeWrite places a segment of an RDMA Write in its memory.
func (q *qp) placeWrite(h *ddp.Tagged, payload []byte) error {
	n := uint64(len(payload))
	if err := ddp.CheckTO(h.TO, len(payload)); err != nil {
		return err
	}
	if n > 0 && q.h.Attr().QPAccessFlags&verbs.AccessRemoteWrite == 0 {
		return ddp.ErrInvalidSTag
	}
	dst, denial := q.e.regions.Remote(q.h, h.STag, h.TO, n, verbs.AccessRemoteWrite)
	if denial != memory.Allowed {
		return taggedError(denial)
	}
	if !dst.Write(payload, q.h, 0) {
		return rdmap.OperationError
	}
	q.receiving.writeBytes += n
	if h.Last {
		q.receiving.lastWrite, q.receiving.writeBytes = q.receiving.writeBytes, 0
		q.receiving.uncounted = n == 0 && (q.receiving.inSetUp || mayWake(h))
		if !q.receiving.uncounted {
			q.h.CountRemote(verbs.CompCntrRemoteWrite, 1, q.receiving.lastWrite)
		}
	}
	return nil
}

// taggedError returns the DDP error for a denied access. DDP has no error for missing access
// rights. siw reports an invalid STag in this case, and so does this function.
func taggedError(d memory.Denial) error {
	switch d {
	case memory.OtherPD:
		return ddp.ErrSTagNotAssociated
	case memory.OutOfRange:
		return ddp.ErrBounds
	}
	return ddp.ErrInvalidSTag
}

// placeRead places a segment of a READ response in the memory of the oldest READ. Responses arrive
// in order, so the segment must begin where the previous one ended.
func (q *qp) placeRead(h *ddp.Tagged, payload []byte) error {
	s := &q.sending
	n := uint64(len(payload))
	if s.reads.rtr {
		if n > 0 || !h.Last {
			return ddp.ErrBounds
		}
		s.reads.rtrResponded()
		return nil
	}
	wr := q.oldestRead()
	switch {
	case wr == nil:
		return ddp.ErrInvalidSTag
	// The STag of a zero-length segment is ignored (RFC 5041 §5.2).
	case wr.Opcode != verbs.RDMARead, n > 0 && h.STag != q.conn.sink:
		q.readResponded(verbs.WCBadRespErr)
		return ddp.ErrInvalidSTag
	case n > 0 && h.TO != s.reads.placed, s.reads.placed+n > wr.Length(), h.Last != (s.reads.placed+n == wr.Length()):
		q.readResponded(verbs.WCBadRespErr)
		return ddp.ErrBounds
	}
	if status := q.e.regions.ScatterResponse(payload, q.h, wr, s.reads.placed, 0); status != verbs.WCSuccess {
		q.readResponded(status)
		return rdmap.LocalCatastrophic
	}
	s.reads.place(s.reads.placed + n)
	if h.Last {
		q.readResponded(verbs.WCSuccess)
	}
	return nil
}

// oldestRead returns the READ or atomic of the next response; nil if none is outstanding.
func (q *qp) oldestRead() *verbs.PostedSend {
	s := &q.sending
	if len(s.reads.list) == 0 {
		return nil
	}
	return q.h.Send(s.cursor.index(s.reads.list[0].number))
}

// readResponded completes the oldest READ or atomic with a status. All earlier requests are
// complete.
func (q *qp) readResponded(status verbs.WCStatus) {
	s := &q.sending
	n := s.reads.responded()
	if status != verbs.WCSuccess {
		q.receiving.reported = true
		q.completeOldest(status, 0)
		return
	}
	s.cursor.responded(n)
	q.completeDone()
}

// placeUntagged handles an untagged segment.
func (q *qp) placeUntagged(b []byte) error {
	h, payload, err := ddp.ParseUntagged(b)
	if err != nil {
		return err
	}
	if h.QN >= rdmap.Queues {
		return ddp.ErrInvalidQN
	}
	first, err := q.receiving.queues[h.QN].Accept(&h, len(payload))
	if err != nil {
		return err
	}
	op, err := rdmap.ParseControl(h.RsvdULP)
	if err != nil {
		return err
	}
	if err := op.CheckUntagged(h.QN); err != nil {
		return err
	}
	if op.Info().HeaderLen > 0 && (!first || !h.Last) {
		return rdmap.StreamCatastrophic // each of these messages has one segment
	}
	switch op {
	case rdmap.ReadRequest:
		err := q.readRequest(b, payload)
		if err != nil {
			q.h.CountRemoteError(verbs.CompCntrRemoteRead)
		}
		return err
	case rdmap.AtomicRequest:
		return q.atomicRequest(b, payload)
	case rdmap.AtomicResponse:
		return q.atomicResponse(payload)
	case rdmap.Terminate:
		return q.terminated(payload)
	case rdmap.ImmediateData, rdmap.ImmediateDataSE:
		return q.immediate(op, payload)
	}
	return q.placeSend(&h, op, payload)
}

// placeSend places a segment of a SEND in the oldest receive request.
func (q *qp) placeSend(h *ddp.Untagged, op rdmap.Opcode, payload []byte) error {
	wr := q.h.Recv()
	if wr == nil {
		return ddp.ErrNoBuffer
	}
	end := uint64(h.MO) + uint64(len(payload))
	if end > wr.Length() || end > MaxMessage {
		q.failRecv(verbs.WCLocLenErr)
		return ddp.ErrTooLong
	}
	if status := q.e.regions.ScatterRecv(payload, q.h, wr, uint64(h.MO), 0); status != verbs.WCSuccess {
		q.failRecv(status)
		return rdmap.LocalCatastrophic
	}
	if !h.Last {
		return nil
	}
	info := op.Info()
	wc := verbs.WC{Opcode: verbs.WCRecv, ByteLen: uint32(end)}
	if info.Invalidate {
		if !q.invalidate(h.Invalidate) {
			q.failRecv(verbs.WCRemInvReqErr)
			return rdmap.CannotInvalidate
		}
		wc.Flags |= verbs.WCWithInv
		wc.InvalidatedRKey = h.Invalidate
	}
	q.h.CompleteRecv(&wc, info.Solicited)
	return nil
}

// invalidate invalidates an STag at the peer's request. It refuses the STag of a region that
// several streams or RoCE QPs share (RFC 5040 §8.1.1, item 7). A window of type 2 belongs to one
// stream. It returns false if the STag is not invalidated.
func (q *qp) invalidate(stag uint32) bool {
	if q.e.regions.InvalidateWindow(q.h, stag) == memory.Allowed {
		return true
	}
	return !q.h.PDHasQPs(verbs.RoCEv2) && !q.e.shared(q.h.PD()) && q.e.regions.Invalidate(q.h, stag) == memory.Allowed
}

// failRecv completes the oldest receive request with an error.
func (q *qp) failRecv(status verbs.WCStatus) {
	q.receiving.reported = true
	wc := verbs.WC{Status: status, Opcode: verbs.WCRecv}
	q.h.CompleteRecv(&wc, true)
}

// immediate completes a receive request with immediate data. The completion has the length of the
// preceding RDMA Write, as verbs defines for a WRITE with immediate.
func (q *qp) immediate(op rdmap.Opcode, payload []byte) error {
	data, err := rdmap.ParseImmediate(payload)
	if err != nil {
		return err
	}
	if q.h.Recv() == nil {
		return ddp.ErrNoBuffer
	}
	wc := verbs.WC{
		Opcode: verbs.WCRecvRDMAWithImm, Flags: verbs.WCWithImm, ImmData: uint32(data), ByteLen: uint32(q.receiving.lastWrite),
	}
	if q.receiving.uncounted {
		q.receiving.uncounted = false
		q.h.CountRemote(verbs.CompCntrRemoteWrite, 1, 0)
	}
	q.receiving.lastWrite = 0
	q.h.CompleteRecv(&wc, op.Info().Solicited)
	return nil
}

// readRequest queues the response to a READ.
func (q *qp) readRequest(b, payload []byte) error {
	h, err := rdmap.ParseReadRequest(payload)
	if err != nil {
		return err
	}
	if h.Size > 0 {
		if q.h.Attr().QPAccessFlags&verbs.AccessRemoteRead == 0 {
			return rdmap.AccessViolation
		}
		if h.SourceTO+uint64(h.Size) < h.SourceTO {
			return rdmap.TOWrap
		}
		_, denial := q.e.regions.Remote(q.h, h.SourceSTag, h.SourceTO, uint64(h.Size), verbs.AccessRemoteRead)
		if denial != memory.Allowed {
			return remoteCause(denial)
		}
	}
	if !q.sending.responses.pushRead(b, &h, q.h.PlacedBy(), q.receiving.inSetUp && h.Size == 0) {
		return ddp.ErrNoBuffer // beyond the IRD (RFC 5040 §5.2)
	}
	return nil
}

// atomicRequest queues the response to an atomic. The atomic is executed when its response is the
// oldest in the queue.
func (q *qp) atomicRequest(b, payload []byte) error {
	h, err := rdmap.ParseAtomicRequest(payload)
	if err != nil {
		return err
	}
	if !h.Code.Known() {
		return rdmap.UnexpectedOpcode
	}
	if _, err := q.atomicWord(&h); err != nil {
		return err
	}
	r := &q.sending.responses
	if !r.pushAtomic(b, &h, q.h.PlacedBy()) {
		return ddp.ErrNoBuffer
	}
	if r.n == 1 {
		return q.executeAtomic(r.oldest())
	}
	return nil
}

// atomicWord returns the memory of an atomic.
func (q *qp) atomicWord(h *rdmap.AtomicRequestHeader) (memory.Span, error) {
	if q.h.Attr().QPAccessFlags&verbs.AccessRemoteAtomic == 0 {
		return memory.Span{}, rdmap.AccessViolation
	}
	if h.TO+8 < h.TO {
		return memory.Span{}, rdmap.TOWrap
	}
	word, denial := q.e.regions.Remote(q.h, h.STag, h.TO, 8, verbs.AccessRemoteAtomic)
	switch { // an unaligned address is an error for any STag
	case h.TO%8 != 0 || denial == memory.Allowed && !word.Aligned():
		return memory.Span{}, rdmap.StreamCatastrophic // RFC 7306 §8.2
	case denial != memory.Allowed:
		return memory.Span{}, remoteCause(denial)
	}
	return word, nil
}

// atomicResponse places the previous value of an atomic.
func (q *qp) atomicResponse(payload []byte) error {
	h, err := rdmap.ParseAtomicResponse(payload)
	if err != nil {
		return err
	}
	wr := q.oldestRead()
	if wr == nil {
		return rdmap.UnexpectedOpcode
	}
	if q.sending.reads.rtr || wr.Opcode == verbs.RDMARead || q.sending.reads.list[0].id != h.ID {
		q.readResponded(verbs.WCBadRespErr)
		return rdmap.UnexpectedOpcode
	}
	var value [8]byte
	binary.NativeEndian.PutUint64(value[:], h.Original)
	if status := q.e.regions.ScatterResponse(value[:], q.h, wr, 0, 0); status != verbs.WCSuccess {
		q.readResponded(status)
		return rdmap.LocalCatastrophic
	}
	q.readResponded(verbs.WCSuccess)
	return nil
}
