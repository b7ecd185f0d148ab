package verbs

// queue is a ring of posted work requests, oldest first. Each slot has room for its scatter/gather list and inline
// data from the start, so that posting allocates nothing.
type queue[T any] struct {
	slots   []T
	head, n int

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
