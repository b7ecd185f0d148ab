package verbs

import (
	"fmt"
	"unsafe"
)

// queue is a ring of posted work requests, oldest first. The SGList and the inline data of each
// slot are allocated with the queue, so that posting does not allocate.
type queue[T any] struct {
	head, n uint32
	slots   []T
}

// sgeLen is the size of an SGE in bytes.
const sgeLen = int(unsafe.Sizeof(SGE{}))

// newSendQueue creates a send queue. A request has either inline data or an SGList, so both share
// the same memory if the inline data fits.
func newSendQueue(c *QPCap) queue[SendWR] {
	q := queue[SendWR]{slots: make([]SendWR, c.MaxSendWR)}
	sges := make([]SGE, c.MaxSendWR*c.MaxSendSGE)
	var inline []byte
	shared := c.MaxInlineData <= c.MaxSendSGE*sgeLen
	if !shared {
		inline = make([]byte, c.MaxSendWR*c.MaxInlineData)
	}
	for i := range q.slots {
		s := &q.slots[i]
		s.SGList, sges = carve(sges, c.MaxSendSGE)
		if shared {
			mem := unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(s.SGList))), len(s.SGList)*sgeLen)
			s.InlineData, _ = carve(mem, c.MaxInlineData)
		} else {
			s.InlineData, inline = carve(inline, c.MaxInlineData)
		}
	}
	return q
}

func newRecvQueue(wrs, maxSGE int) queue[RecvWR] {
	q := queue[RecvWR]{slots: make([]RecvWR, wrs)}
	sges := make([]SGE, wrs*maxSGE)
	for i := range q.slots {
		q.slots[i].SGList, sges = carve(sges, maxSGE)
	}
	return q
}

// carve splits a slice after its first n elements. Appending to first cannot overwrite rest.
func carve[T any](s []T, n int) (first, rest []T) { return s[:n:n], s[n:] }

func (q *queue[T]) len() int { return int(q.n) }

func (q *queue[T]) full() bool { return int(q.n) == len(q.slots) }

// at returns the i-th oldest request; at(len) is the slot for the next one.
func (q *queue[T]) at(i int) *T {
	if i += int(q.head); i >= len(q.slots) {
		i -= len(q.slots)
	}
	return &q.slots[i]
}

func (q *queue[T]) pop() {
	if q.head++; int(q.head) == len(q.slots) {
		q.head = 0
	}
	q.n--
}

func (q *queue[T]) reset() { q.head, q.n = 0, 0 }

// postRecv appends a copy of a receive request to a queue. If it rejects the request, it returns
// the detail and the kind of the error.
func postRecv(q *queue[RecvWR], wr *RecvWR) (detail string, kind error) {
	switch {
	case wr == nil:
		return "the work request is nil", ErrInvalid
	case q.full():
		return fmt.Sprintf("MaxRecvWR of %d requests are already posted", len(q.slots)), ErrQueueFull
	case len(wr.SGList) > cap(q.slots[0].SGList):
		return fmt.Sprintf("SGList of %d is longer than MaxRecvSGE of %d", len(wr.SGList), cap(q.slots[0].SGList)), ErrInvalid
	}
	slot := pushRecv(q, wr)
	slot.length = 0
	for i := range slot.SGList {
		slot.length += uint64(slot.SGList[i].Length)
	}
	return "", nil
}

// pushRecv copies a request to the end of a queue, which is not full.
func pushRecv(q *queue[RecvWR], wr *RecvWR) *RecvWR {
	slot := q.at(q.len())
	slot.WRID, slot.length = wr.WRID, wr.length
	slot.SGList = slot.SGList[:len(wr.SGList)]
	copy(slot.SGList, wr.SGList)
	q.n++
	return slot
}
