package ddp

import "math"

// Queue is the receiving side of one untagged queue, whose segments arrive in order. The zero Queue
// expects the first message, MSN 1.
type Queue struct {
	done uint32 // complete messages, modulo 2^32
	mo   uint32 // offset of the next segment in the current message
	open bool   // a segment of the current message has arrived
}

// MSN returns the number of the current message, or of the next one if there is none.
func (q *Queue) MSN() uint32 { return q.done + 1 }

// Skip counts a message that arrived, or was completed, without segments.
func (q *Queue) Skip() { *q = Queue{done: q.done + 1} }

// SkipTo records that the current message has arrived up to offset mo without segments. The rest
// may arrive in segments.
func (q *Queue) SkipTo(mo uint32) { q.open, q.mo = true, mo }

// Join makes the segment at offset mo of message msn the next one, for an observer who has not seen
// the segments before.
func (q *Queue) Join(msn, mo uint32) { *q = Queue{done: msn - 1, mo: mo, open: mo > 0} }

// Accept accepts the segment with header h and n bytes of payload if it is the next one. first: it
// is the first of its message. The caller provides the buffer. It must itself report ErrNoBuffer
// without a buffer, and ErrTooLong if h.MO + n is beyond its end. If h.Last, h.MO + n is the length
// of the message. The error is ErrMSNRange, ErrInvalidMO, or ErrTooLong for a message beyond 2^32-1
// bytes. After an error the Queue is unchanged.
func (q *Queue) Accept(h *Untagged, n int) (first bool, err error) {
	switch {
	case h.MSN != q.MSN():
		return false, ErrMSNRange
	case h.MO != q.mo:
		return false, ErrInvalidMO
	case uint64(h.MO)+uint64(n) > math.MaxUint32:
		return false, ErrTooLong
	}
	first = !q.open
	q.open, q.mo = true, h.MO+uint32(n)
	if h.Last {
		*q = Queue{done: h.MSN}
	}
	return first, nil
}
