package ddp

import "math"

// Queue is the receiving side of one untagged queue. Its segments come in order, and it knows which
// comes next. The zero Queue awaits the first message, MSN 1.
type Queue struct {
	done uint32 // messages that were received in full, modulo 2^32
	mo   uint32 // offset of the next segment in the message under way
	open bool   // a segment of that message has come
}

// MSN is the number of the message under way, or of the next one if none is.
func (q *Queue) MSN() uint32 { return q.done + 1 }

// Skip counts a message that came without segments, or whose rest did.
func (q *Queue) Skip() { *q = Queue{done: q.done + 1} }

// SkipTo notes that the message under way has come up to offset mo without segments. The rest may
// come as segments.
func (q *Queue) SkipTo(mo uint32) { q.open, q.mo = true, mo }

// Accept takes the segment with header h and n bytes of payload if it is the next one; first says
// whether it is the first of its message. The caller then provides a buffer. It is the caller that
// finds ErrNoBuffer, if it has none, and ErrTooLong, if h.MO + n is beyond the end of the buffer.
// If h.Last, h.MO + n is the length of the message. Accept's error is ErrMSNRange, ErrInvalidMO, or
// ErrTooLong for a message beyond 2^32-1 bytes; after an error the Queue is as before.
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
