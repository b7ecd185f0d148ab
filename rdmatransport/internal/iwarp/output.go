package iwarp

// On the path: the way of prepared segments into the stream. Small FPDUs go there together, as many
// as fit in one piece.

import (
	"bytes"
	"errors"
	"sync"

	"github.com/softrnic/softrnic/stack"
)

// output is where small FPDUs are gathered before the stream has them, and whether that has room.
// What is in it counts as sent: nothing overtakes it.
type output struct {
	buf  *[stack.MaxPiece]byte // nil if n is 0
	n    int32                 // bytes of it
	full bool                  // the stream has no room
}

// outputs are lent to QPs that have several small FPDUs to send.
var outputs = sync.Pool{New: func() any { return new([stack.MaxPiece]byte) }}

// bytes is what was gathered.
func (o *output) bytes() []byte {
	if o.n == 0 {
		return nil
	}
	return o.buf[:o.n]
}

// extend is the next n bytes of memory, for the caller to fill.
func (o *output) extend(n int) []byte {
	if o.buf == nil {
		o.buf = outputs.Get().(*[stack.MaxPiece]byte)
	}
	b := o.buf[o.n : int(o.n)+n]
	o.n += int32(n)
	return b
}

// clear forgets what was gathered, and gives the memory back.
func (o *output) clear() {
	if o.buf != nil {
		outputs.Put(o.buf)
	}
	o.buf, o.n = nil, 0
}

func (o *output) reset() { *o = output{} }

// hasRoom notes that the stream takes more.
func (o *output) hasRoom() { o.full = false }

// retract takes back what extend gave last.
func (o *output) retract(n int) {
	if o.n -= int32(n); o.n == 0 {
		o.clear()
	}
}

// WritePiece implements stack.PieceWriter: what was gathered goes first, and the prepared segment behind it.
func (q *qp) WritePiece(b []byte) bool {
	n := copy(b, q.tx.output.bytes())
	return n == len(b) || q.tx.segment.encodeFPDU(&q.conn.framer, b[n:])
}

// send sends the prepared segment; false if the stream has no room for it, or is no more, or if the
// segment's memory faults, which the segment then tells.
func (q *qp) send() bool {
	ok, err := q.sendSegment()
	switch {
	case errors.Is(err, stack.ErrNotFilled):
		q.tx.segment.onFault()
	case err != nil:
		q.streamLost(err)
	}
	return ok && err == nil
}

// sendSegment gives the prepared segment to the stream, or gathers it if there is more to send; not
// ok if the stream has no room.
func (q *qp) sendSegment() (ok bool, err error) {
	t, c := &q.tx, q.conn
	defer t.segment.release()
	size := c.framer.Size(t.segment.ulpdu())
	if t.output.n > 0 && int(t.output.n)+size > c.piece {
		if ok, err = q.sendGathered(); !ok {
			return ok, err
		}
	}
	if size <= smallFPDU && size < c.piece && q.moreBehind() {
		if !t.segment.encodeFPDU(&c.framer, t.output.extend(size)) {
			t.output.retract(size)
			return false, stack.ErrNotFilled
		}
		c.sent += uint64(size)
		return true, nil
	}
	if ok, err = q.sendPiece(int(t.output.n) + size); ok {
		c.sent += uint64(size)
	}
	return ok, err
}

// moreBehind reports whether something else is there to be sent behind the prepared segment, of its
// message or of another.
func (q *qp) moreBehind() bool {
	return q.tx.segment.more || q.tx.cursor.unsent(q.h.SendLen()) > 1 || q.tx.responses.n > 1
}

// flush sends what was gathered.
func (q *qp) flush() {
	if _, err := q.sendGathered(); err != nil {
		q.streamLost(err)
	}
}

// sendGathered gives the stream what was gathered, if anything was.
func (q *qp) sendGathered() (ok bool, err error) {
	if q.tx.output.n == 0 {
		return true, nil
	}
	return q.sendPiece(int(q.tx.output.n))
}

// sendPiece has the stream take size bytes from Fill.
func (q *qp) sendPiece(size int) (ok bool, err error) {
	o := &q.tx.output
	if ok, err = q.conn.stream.Send(size, q); ok {
		o.clear()
	}
	o.full = !ok && err == nil
	return ok, err
}

// takeGathered returns a copy of what was gathered, and empties the output.
func (o *output) takeGathered() []byte {
	b := bytes.Clone(o.bytes())
	o.clear()
	return b
}

// maxULPDU is the longest ULPDU that may be sent now. Where FPDUs may be longer than a TCP segment,
// it is what the gathered FPDUs leave of a piece, unless that is little.
func (q *qp) maxULPDU() int {
	c := q.conn
	if left := c.piece - int(q.tx.output.n) - mpaOverhead; c.mulpdu > left && left > smallFPDU {
		return left
	}
	return c.mulpdu
}
