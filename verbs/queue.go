package verbs

import "fmt"

// queue is a ring of posted work requests, oldest first. Each slot has room for its scatter/gather list and inline
// data from the start, so that posting allocates nothing.
type queue[T any] struct {
	head, n int
	slots   []T

	sges      []SGE
	maxSGE    int
	inline    []byte
	maxInline int
}

func newQueue[T any](wrs, sges, inline int) queue[T] {
	return queue[T]{slots: make([]T, wrs), sges: make([]SGE, wrs*sges), maxSGE: sges,
		inline: make([]byte, wrs*inline), maxInline: inline}
}

func (q *queue[T]) len() int { return q.n }

func (q *queue[T]) full() bool { return q.n == len(q.slots) }

// index is the slot of the i-th oldest request, 0 ≤ i ≤ len.
func (q *queue[T]) index(i int) int {
	if i += q.head; i >= len(q.slots) {
		i -= len(q.slots)
	}
	return i
}

func (q *queue[T]) at(i int) *T { return &q.slots[q.index(i)] }

// room is the scatter/gather list of a slot, n entries long.
func (q *queue[T]) room(slot, n int) []SGE {
	at := slot * q.maxSGE
	return q.sges[at : at+n : at+q.maxSGE]
}

// inlineRoom is the inline data of a slot, n bytes long.
func (q *queue[T]) inlineRoom(slot int, n uint64) []byte {
	at := slot * q.maxInline
	return q.inline[at : at+int(n) : at+q.maxInline]
}

func (q *queue[T]) pop() {
	q.head = q.index(1)
	q.n--
}

func (q *queue[T]) reset() { q.head, q.n = 0, 0 }

// postRecv queues a copy of a receive request. Refused, it returns what is wrong, and the kind of error.
func postRecv(q *queue[RecvWR], wr *RecvWR) (detail string, kind error) {
	switch {
	case wr == nil:
		return "the work request is nil", ErrInvalid
	case q.full():
		return fmt.Sprintf("MaxRecvWR of %d are posted", len(q.slots)), ErrQueueFull
	case len(wr.SGList) > q.maxSGE:
		return fmt.Sprintf("SGList of %d is longer than MaxRecvSGE of %d", len(wr.SGList), q.maxSGE), ErrInvalid
	}
	slot := pushRecv(q, wr)
	slot.length = 0
	for i := range slot.SGList {
		slot.length += uint64(slot.SGList[i].Length)
	}
	return "", nil
}

// pushRecv copies a request, for which there is room, to the end of a queue.
func pushRecv(q *queue[RecvWR], wr *RecvWR) *RecvWR {
	i := q.index(q.n)
	slot := &q.slots[i]
	slot.ID, slot.length = wr.ID, wr.length
	slot.SGList = q.room(i, len(wr.SGList))
	copy(slot.SGList, wr.SGList)
	q.n++
	return slot
}
