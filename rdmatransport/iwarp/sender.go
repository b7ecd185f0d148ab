package iwarp

// On the path: the outgoing half. Work requests and answers become DDP segments here, one FPDU each, on the goroutine
// that posted them or that brought what made them due. (RFC 5040 §5, RFC 5041 §5)

import (
	"sync"

	"github.com/softrnic/softrnic/rdmatransport/internal/memory"
	"github.com/softrnic/softrnic/rdmatransport/iwarp/ddp"
	"github.com/softrnic/softrnic/rdmatransport/iwarp/rdmap"
	"github.com/softrnic/softrnic/stack"
	"github.com/softrnic/softrnic/verbs"
)

// pump sends what the stream has room for, as many small FPDUs as fit together in one piece. Requests and answers take
// turns, segment by segment, so that neither waits for the other's whole message; except that a tagged message is whole
// before the next tagged one begins, for siw gives up a stream where a WRITE and a READ's response mix.
func (q *qp) pump() {
	if q.conn != nil && !q.tx.full && (q.conn.other.Load() != nil || !q.gathers()) {
		q.hurry()
	}
}

// hurry is pump that waits for no company.
func (q *qp) hurry() {
	t := &q.tx
loop:
	for q.conn != nil && t.open && !t.full {
		switch {
		case t.ending:
			q.finish()
			return
		case t.ready != noReady:
			if !q.sendReady() {
				return
			}
			continue
		case t.answers.n == 0 && t.cur == t.first+uint64(q.h.SendLen()):
			break loop
		}
		if q.sendOne(t.turn) {
			t.turn = !t.turn
		} else if q.conn == nil || t.ending || !q.sendOne(!t.turn) {
			break // the turn stays with who could not send now
		}
	}
	if q.conn != nil && !t.full && t.batch.n > 0 {
		q.flush()
	}
}

// gathers tells whether small requests wait for more of their kind: the queue has room for those, and the stream is
// busy with pieces that the peer has not answered. What comes from there, or a full queue, ends it; beyond so many
// pieces only the former, so that small pieces do not fill the queues on the way.
func (q *qp) gathers() bool {
	t := &q.tx
	n := int(t.first + uint64(q.h.SendLen()) - t.cur)
	if n == 0 || !t.open || t.ending || t.batch.n > 0 || t.ready != noReady || t.answers.n > 0 || t.off > 0 || t.wrote ||
		q.h.Send(int(t.cur-t.first)).Length() > smallMessage {
		return false
	}
	most := gatherFrom
	if q.h.SendLen() >= q.depth {
		most = gatherAlways
	}
	return q.conn.stream.Crowded(most)
}

// sendOne sends the next segment of an answer or of a request; false if it did not, or ended the connection.
func (q *qp) sendOne(answer bool) bool {
	if answer {
		return q.sendAnswer()
	}
	return q.sendRequest()
}

// segment is one DDP segment on its way into the stream.
type segment struct {
	header [ddp.MaxLen + rdmap.AtomicRequestLen]byte // DDP's, and RDMAP's behind it
	n      int                                       // bytes of it
	pieces [][]byte                                  // the payload, in user memory
	length int                                       // bytes of it
}

func (s *segment) tagged(h *ddp.Tagged) {
	h.Encode(s.header[:])
	s.n, s.pieces, s.length = ddp.TaggedLen, s.pieces[:0], 0
}

func (s *segment) untagged(h *ddp.Untagged) {
	h.Encode(s.header[:])
	s.n, s.pieces, s.length = ddp.UntaggedLen, s.pieces[:0], 0
}

// more is room for n bytes of RDMAP header.
func (s *segment) more(n int) []byte {
	s.n += n
	return s.header[s.n-n : s.n]
}

// batch is where small FPDUs are laid together. What is in it counts as sent: nothing goes out before it.
type batch struct {
	buf *[stack.MaxPiece]byte // nil if n is 0
	n   int
}

// batches are lent to QPs that have several small FPDUs to send.
var batches = sync.Pool{New: func() any { return new([stack.MaxPiece]byte) }}

func (b *batch) bytes() []byte {
	if b.n == 0 {
		return nil
	}
	return b.buf[:b.n]
}

// room is the next n bytes.
func (b *batch) room(n int) []byte {
	if b.buf == nil {
		b.buf = batches.Get().(*[stack.MaxPiece]byte)
	}
	b.n += n
	return b.buf[b.n-n : b.n]
}

func (b *batch) clear() {
	if b.buf != nil {
		batches.Put(b.buf)
	}
	*b = batch{}
}

// Fill implements stack.Filler: what waits in the batch goes first.
func (q *qp) Fill(b []byte) {
	n := copy(b, q.tx.batch.bytes())
	if n < len(b) {
		q.lay(b[n:])
	}
}

// lay puts the prepared segment together in b, the stream's own memory or the batch: user memory is copied once, and
// MPA's CRC taken over that copy.
func (q *qp) lay(b []byte) {
	s, c := &q.tx.segment, q.conn
	c.framer.Begin(b, s.n+s.length)
	c.framer.Add(s.header[:s.n])
	for _, p := range s.pieces {
		c.framer.Add(p)
	}
	c.framer.End()
}

// send puts the prepared segment into the stream; false if there is no room, or no stream any more.
func (q *qp) send() bool {
	ok, err := q.put()
	if err != nil {
		q.lost()
		return false
	}
	q.tx.full = !ok
	return ok
}

func (q *qp) put() (ok bool, err error) {
	t := &q.tx
	s, c := &t.segment, q.conn
	defer func() { clear(s.pieces) }() // no reference to user memory stays
	size := c.framer.Size(s.n + s.length)
	if t.batch.n > 0 && t.batch.n+size > c.piece {
		if ok, err = q.sendBatch(); !ok {
			return ok, err
		}
	}
	if size <= smallFPDU && size < c.piece && q.more() {
		q.lay(t.batch.room(size))
		c.sent += uint64(size)
		return true, nil
	}
	if ok, err = c.stream.Send(t.batch.n+size, q); ok {
		t.batch.clear()
		c.sent += uint64(size)
	}
	return ok, err
}

// more tells whether something else is there to be sent behind the prepared segment.
func (q *qp) more() bool {
	t := &q.tx
	return t.first+uint64(q.h.SendLen()) > t.cur+1 || t.answers.n > 1
}

// flush sends what the batch holds.
func (q *qp) flush() {
	ok, err := q.sendBatch()
	if err != nil {
		q.lost()
		return
	}
	q.tx.full = !ok
}

// sendBatch sends the batch, if there is one.
func (q *qp) sendBatch() (ok bool, err error) {
	if q.tx.batch.n == 0 {
		return true, nil
	}
	if ok, err = q.conn.stream.Send(q.tx.batch.n, q); ok {
		q.tx.batch.clear()
	}
	return ok, err
}

// room is the longest ULPDU that may be sent now: where FPDUs may be longer than a segment, what the batch leaves of a
// piece, unless that is little.
func (q *qp) room() int {
	t := &q.tx
	if left := q.conn.piece - t.batch.n - mpaOverhead; t.mulpdu > left && left > smallFPDU {
		return left
	}
	return t.mulpdu
}

// sendRequest sends the next segment of the send queue, if one may be sent.
func (q *qp) sendRequest() bool {
	t := &q.tx
	if t.cur == t.first+uint64(q.h.SendLen()) {
		return false
	}
	if t.whole() {
		if done, wait := q.sendDirect(); done || wait {
			return done
		}
		t.half = false // the rest goes through the stream
	}
	wr := q.h.Send(int(t.cur - t.first))
	if t.off == 0 && !t.wrote && wr.Flags&verbs.SendFence != 0 && len(t.reads) > 0 {
		return false
	}
	switch wr.Opcode {
	case verbs.BindMW, verbs.LocalInv:
		return q.carryOutHere(wr)
	case verbs.RDMARead, verbs.AtomicCmpAndSwp, verbs.AtomicFetchAndAdd:
		if t.outstanding() >= t.ord {
			return q.neverReads(wr)
		}
		return q.sendRead(wr)
	case verbs.RDMAWrite, verbs.RDMAWriteWithImm:
		if t.wrote {
			return q.sendImmediate(wr)
		}
		return q.sendWrite(wr)
	}
	return q.sendSend(wr)
}

// carryOutHere binds or invalidates a window: nothing is sent. A request that fails waits until it is the oldest.
func (q *qp) carryOutHere(wr *verbs.SendWR) bool {
	t := &q.tx
	status := t.at(t.cur).refused
	switch {
	case status != verbs.WCSuccess:
	case wr.Opcode == verbs.BindMW:
		status = q.e.regions.Bind(q.h, wr.Bind)
	case q.e.regions.InvalidateWindow(q.h, wr.InvalidateRKey) != memory.Allowed:
		status = verbs.WCLocQPOpErr
	}
	if status == verbs.WCSuccess {
		q.sentRequest(true)
		return true
	}
	if t.at(t.cur).refused = status; t.cur == t.first {
		q.failRequest(t.cur, status)
		q.fail(rdmap.LocalCatastrophic, nil)
	}
	return false
}

// neverReads fails a READ on a stream that was agreed to have none: it would wait for ever.
func (q *qp) neverReads(wr *verbs.SendWR) bool {
	if q.tx.ord == 0 && q.tx.cur == q.tx.first {
		q.failRequest(q.tx.cur, verbs.WCLocQPOpErr)
		q.fail(rdmap.LocalCatastrophic, nil)
	}
	return false
}

// data prepares the payload of a segment that carries on with a request's message; false if the memory may not be used.
func (q *qp) data(wr *verbs.SendWR, n int) bool {
	t := &q.tx
	s := &t.segment
	s.length = n
	if inline := wr.Inline(); inline != nil {
		s.pieces = append(s.pieces, inline[t.off:t.off+uint64(n)])
		return true
	}
	var status verbs.WCStatus
	s.pieces, status = q.e.regions.Pieces(s.pieces, uint64(n), q.h.PD(), wr.SGList, t.off)
	if status == verbs.WCSuccess {
		return true
	}
	// The requests before it may still complete; it fails when it is the oldest. Half of it sent, it cannot wait.
	if t.cur == t.first || t.off > 0 {
		q.failRequest(t.cur, status)
		q.fail(rdmap.LocalCatastrophic, nil)
	}
	return false
}

// sendSend sends one segment of a SEND.
func (q *qp) sendSend(wr *verbs.SendWR) bool {
	t := &q.tx
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
	n, last := ddp.Segment(uint32(wr.Length()), uint32(t.off), ddp.UntaggedLen, q.room())
	h := ddp.Untagged{
		Last: last, RsvdULP: op.Control(), QN: rdmap.QueueSend, MSN: t.msn[rdmap.QueueSend] + 1, MO: uint32(t.off),
	}
	if op.Info().Invalidate {
		h.Invalidate = wr.InvalidateRKey
	}
	t.segment.untagged(&h)
	if !q.data(wr, n) || !q.send() {
		return false
	}
	t.off += uint64(n)
	if last {
		t.msn[rdmap.QueueSend]++
		q.sentRequest(true)
	}
	return true
}

// sendWrite sends one segment of a WRITE.
func (q *qp) sendWrite(wr *verbs.SendWR) bool {
	t := &q.tx
	if t.answers.halfway() {
		return false
	}
	n, last := ddp.Segment(uint32(wr.Length()), uint32(t.off), ddp.TaggedLen, q.room())
	t.segment.tagged(&ddp.Tagged{
		Last: last, RsvdULP: rdmap.Write.Control(), STag: wr.RKey, TO: wr.RemoteAddr + t.off,
	})
	if !q.data(wr, n) || !q.send() {
		return false
	}
	t.off += uint64(n)
	t.writing = !last
	if last {
		if wr.Opcode == verbs.RDMAWriteWithImm {
			t.wrote = true
		} else {
			q.sentRequest(true)
		}
	}
	return true
}

// sendImmediate sends the immediate data of a WRITE, a message of its own. verbs' four bytes are the low half of
// RFC 7306's eight.
func (q *qp) sendImmediate(wr *verbs.SendWR) bool {
	t := &q.tx
	op := rdmap.ImmediateData
	if wr.Flags&verbs.SendSolicited != 0 {
		op = rdmap.ImmediateDataSE
	}
	t.segment.untagged(&ddp.Untagged{
		Last: true, RsvdULP: op.Control(), QN: rdmap.QueueSend, MSN: t.msn[rdmap.QueueSend] + 1,
	})
	rdmap.PutImmediate(t.segment.more(rdmap.ImmediateLen), uint64(wr.ImmData))
	if !q.send() {
		return false
	}
	t.msn[rdmap.QueueSend]++
	q.sentRequest(true)
	return true
}

// sendRead sends a READ's or an atomic's request.
func (q *qp) sendRead(wr *verbs.SendWR) bool {
	t := &q.tx
	op := rdmap.AtomicRequest
	if wr.Opcode == verbs.RDMARead {
		op = rdmap.ReadRequest
	}
	t.segment.untagged(&ddp.Untagged{
		Last: true, RsvdULP: op.Control(), QN: rdmap.QueueReadRequest, MSN: t.msn[rdmap.QueueReadRequest] + 1,
	})
	switch body := t.segment.more(op.Info().HeaderLen); wr.Opcode {
	case verbs.RDMARead:
		h := rdmap.ReadRequestHeader{
			SinkSTag: t.sink, SinkTO: t.off, Size: uint32(wr.Length() - t.off), SourceSTag: wr.RKey, SourceTO: wr.RemoteAddr + t.off,
		}
		h.Encode(body)
	case verbs.AtomicFetchAndAdd:
		h := rdmap.AtomicRequestHeader{
			Code: rdmap.FetchAdd, ID: t.nextID, STag: wr.RKey, TO: wr.RemoteAddr,
			Data: wr.CompareAdd, CompareMask: ^uint64(0),
		}
		h.Encode(body)
	default:
		h := rdmap.AtomicRequestHeader{
			Code: rdmap.CmpSwap, ID: t.nextID, STag: wr.RKey, TO: wr.RemoteAddr,
			Data: wr.Swap, Mask: ^uint64(0), CompareData: wr.CompareAdd, CompareMask: ^uint64(0),
		}
		h.Encode(body)
	}
	if !q.send() {
		return false
	}
	t.msn[rdmap.QueueReadRequest]++
	t.at(t.cur).id = t.nextID
	t.nextID++
	t.reads = append(t.reads, t.cur)
	q.sentRequest(false)
	return true
}

// sentRequest moves on to the next request. One that asks for no answer is done: TCP delivers it, or the stream breaks.
func (q *qp) sentRequest(done bool) {
	t := &q.tx
	t.at(t.cur).done = done
	t.cur++
	t.off, t.wrote, t.half = 0, false, false
	q.completeDone()
}

// completeDone completes the requests that are done, in order.
func (q *qp) completeDone() {
	t := &q.tx
	for t.first < t.cur && t.at(t.first).done {
		wr := q.h.Send(0)
		n := uint32(0)
		if wr.Opcode == verbs.RDMARead {
			n = uint32(wr.Length())
		} else if wr.Opcode == verbs.AtomicCmpAndSwp || wr.Opcode == verbs.AtomicFetchAndAdd {
			n = 8
		}
		q.pop(verbs.WCSuccess, n)
	}
}

func (q *qp) pop(status verbs.WCStatus, byteLen uint32) {
	*q.tx.at(q.tx.first) = sentWR{}
	q.tx.first++
	q.h.CompleteSend(status, byteLen)
}

// failRequest completes request n with an error, and those before it: what waits for an answer will have none.
func (q *qp) failRequest(n uint64, status verbs.WCStatus) {
	for t := &q.tx; t.first < n; {
		if t.at(t.first).done {
			q.pop(verbs.WCSuccess, 0)
		} else {
			q.pop(verbs.WCWRFlushErr, 0)
		}
	}
	q.pop(status, 0)
}

// sendReady sends the ready-to-receive message that the responder waits for before it sends itself (RFC 6581 §8): a
// WRITE or READ of no bytes, or an empty FPDU.
func (q *qp) sendReady() bool {
	t := &q.tx
	switch t.ready {
	case readyWrite:
		t.segment.tagged(&ddp.Tagged{Last: true, RsvdULP: rdmap.Write.Control()})
	case readyRead:
		t.segment.untagged(&ddp.Untagged{
			Last: true, RsvdULP: rdmap.ReadRequest.Control(), QN: rdmap.QueueReadRequest, MSN: t.msn[rdmap.QueueReadRequest] + 1,
		})
		h := rdmap.ReadRequestHeader{SinkSTag: t.sink}
		h.Encode(t.segment.more(rdmap.ReadRequestLen))
	case readyEmpty:
		t.segment.n, t.segment.length, t.segment.pieces = 0, 0, t.segment.pieces[:0]
	}
	if !q.send() {
		return false
	}
	if t.ready == readyRead {
		t.msn[rdmap.QueueReadRequest]++
		t.readyAnswer = true
	}
	t.ready = noReady
	return true
}
