package ddp

import "math"

// Queue is the sink's side of one untagged queue over a stream that keeps order: it knows which segment comes next. The
// zero Queue awaits the first message, MSN 1.
type Queue struct {
	done uint32 // messages received whole, modulo 2^32
	mo   uint32 // offset awaited in the message under way
	open bool   // a segment of it is there
}

// MSN is the number of the message under way, or of the next one.
func (q *Queue) MSN() uint32 { return q.done + 1 }

// Skip counts a message that came, or whose rest came, by another way than segments.
func (q *Queue) Skip() { *q = Queue{done: q.done + 1} }

// SkipTo takes in that the message under way has come up to an offset by another way than segments. What follows may be
// one.
func (q *Queue) SkipTo(mo uint32) { q.open, q.mo = true, mo }

// Accept takes the segment of h with n bytes of payload if it is the one awaited, and says whether it is its message's
// first; then the ULP provides a buffer, and answers ErrNoBuffer itself if it has none, and ErrTooLong if h.MO + n is
// beyond that buffer's end. When h.Last, h.MO + n is the length of the message. The error is ErrMSNRange, ErrInvalidMO or,
// for a message beyond 2^32-1 bytes, ErrTooLong; then nothing was taken.
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
