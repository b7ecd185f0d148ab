package iwarptransport

// Send path: prepared segments go to the stream. Small FPDUs are coalesced until a piece of the
// stream is full.

import (
	"bytes"
	"errors"
	"sync"

	"github.com/softrnic/softrnic/rdmatransport/ddp"
	"github.com/softrnic/softrnic/stack"
)

// output coalesces small FPDUs before they go to the stream, and tracks whether the stream has
// room. Coalesced FPDUs count as sent, and no other FPDU overtakes them.
type output struct {
	buf  *[stack.MaxPiece]byte // nil if n is 0
	n    int32                 // bytes of buf
	full bool                  // the stream has no room
}

// outputs are buffers for QPs with several small FPDUs to send.
var outputs = sync.Pool{New: func() any { return new([stack.MaxPiece]byte) }}

// bytes returns the coalesced FPDUs.
func (o *output) bytes() []byte {
	if o.n == 0 {
		return nil
	}
	return o.buf[:o.n]
}

// extend adds n bytes to the buffer, and returns them for the caller to fill.
func (o *output) extend(n int) []byte {
	if o.buf == nil {
		o.buf = outputs.Get().(*[stack.MaxPiece]byte)
	}
	b := o.buf[o.n : int(o.n)+n]
	o.n += int32(n)
	return b
}

// clear drops the coalesced FPDUs and releases the memory.
func (o *output) clear() {
	if o.buf != nil {
		outputs.Put(o.buf)
	}
	o.buf, o.n = nil, 0
}

func (o *output) reset() { *o = output{} }

// onRoom records that the stream has room again.
func (o *output) onRoom() { o.full = false }

// retract releases the last n bytes of extend.
func (o *output) retract(n int) {
	if o.n -= int32(n); o.n == 0 {
		o.clear()
	}
}

// WritePiece implements stack.PieceWriter. It writes the coalesced FPDUs, and then the prepared
// segment.
func (q *qp) WritePiece(b []byte) bool {
	n := copy(b, q.sending.output.bytes())
	return n == len(b) || q.sending.segment.encodeFPDU(&q.conn.framer, b[n:])
}

// send sends the prepared segment. It returns false in three cases: the stream has no room; it has
// ended; or the segment's memory faults, which the segment then records.
func (q *qp) send() bool {
	ok, err := q.sendSegment()
	switch {
	case errors.Is(err, stack.ErrNotFilled):
		q.sending.segment.onFault()
	case err != nil:
		q.streamLost(err)
	}
	return ok && err == nil
}

// sendSegment passes the prepared segment to the stream. It coalesces the segment if more follows.
// ok is false if the stream has no room.
func (q *qp) sendSegment() (ok bool, err error) {
	s, c := &q.sending, q.conn
	defer s.segment.release()
	size := s.segment.size(&c.framer)
	if s.output.n > 0 && int(s.output.n)+size > c.piece {
		if ok, err = q.sendCoalesced(); !ok {
			return ok, err
		}
	}
	// A run that fills the piece needs no other copy.
	small := size <= smallFPDU && size < c.piece || s.segment.step > 0
	if small && !s.segment.fillsPiece() && q.moreBehind() {
		if !s.segment.encodeFPDU(&c.framer, s.output.extend(size)) {
			s.output.retract(size)
			return false, stack.ErrNotFilled
		}
		c.sent += uint64(size)
		return true, nil
	}
	if ok, err = q.sendPiece(int(s.output.n) + size); ok {
		c.sent += uint64(size)
	}
	return ok, err
}

// moreBehind reports whether more data of the same or another message follows the prepared segment.
func (q *qp) moreBehind() bool {
	return q.sending.segment.more || q.sending.cursor.unsent(q.h.SendLen()) > 1 || q.sending.responses.n > 1
}

// flush sends the coalesced FPDUs.
func (q *qp) flush() {
	if _, err := q.sendCoalesced(); err != nil {
		q.streamLost(err)
	}
}

// sendCoalesced passes the coalesced FPDUs, if any, to the stream.
func (q *qp) sendCoalesced() (ok bool, err error) {
	if q.sending.output.n == 0 {
		return true, nil
	}
	return q.sendPiece(int(q.sending.output.n))
}

// sendPiece sends size bytes, which the stream obtains by calling WritePiece.
func (q *qp) sendPiece(size int) (ok bool, err error) {
	o := &q.sending.output
	if ok, err = q.conn.stream.Send(size, q); ok {
		o.clear()
	}
	o.full = !ok && err == nil
	return ok, err
}

// takeCoalesced returns a copy of the coalesced FPDUs, and empties the output.
func (o *output) takeCoalesced() []byte {
	b := bytes.Clone(o.bytes())
	o.clear()
	return b
}

// maxULPDU returns the longest ULPDU that may be sent now. If FPDUs may be longer than a TCP
// segment, it is the room after the coalesced FPDUs in the piece, unless that room is small.
func (q *qp) maxULPDU() int {
	c := q.conn
	if left := c.piece - int(q.sending.output.n) - mpaOverhead; c.mulpdu > left && left > smallFPDU {
		return left
	}
	return c.mulpdu
}

// cut cuts the next segment of a message of size bytes at offset off: n bytes of payload. If only
// segments of this message are to be sent, it is a run of as many segments as the piece has room
// for. step is then the payload of each but the last. The pieces of the stream are the same.
func (q *qp) cut(size, off uint32, headerLen int, only bool) (n, step int, last bool) {
	n, last = ddp.Segment(size, off, headerLen, q.maxULPDU())
	c := q.conn
	if last || !only || c.framer.Markers || c.mulpdu > smallFPDU {
		return n, 0, last
	}
	room, fpdu, left := c.piece-int(q.sending.output.n), c.framer.Size(c.mulpdu), int(size-off)
	full := room / fpdu
	bytes := min(full*n, left)
	if rest := left - bytes; rest <= n && c.framer.Size(headerLen+rest) <= room-full*fpdu {
		bytes = left
	}
	if bytes <= n {
		return n, 0, false
	}
	return bytes, n, bytes == left
}
