package verbs

// jobQueue has jobs in order. It keeps its memory while it is short, so that jobs allocate nothing.
type jobQueue struct {
	slots []placeJob // those before head are free
	head  int
}

// keptJobs is how many slots a queue keeps when it is empty.
const keptJobs = 256

// list returns the jobs, oldest first.
func (q *jobQueue) list() []placeJob { return q.slots[q.head:] }

// last returns the newest job, or nil.
func (q *jobQueue) last() *placeJob {
	if len(q.list()) == 0 {
		return nil
	}
	return &q.slots[len(q.slots)-1]
}

func (q *jobQueue) push(j *placeJob) {
	if len(q.slots) == cap(q.slots) && q.head > len(q.slots)/2 { // instead of more memory
		n := copy(q.slots, q.list())
		clear(q.slots[n:])
		q.slots, q.head = q.slots[:n], 0
	}
	q.slots = append(q.slots, *j)
}

// pop removes the oldest job.
func (q *jobQueue) pop() placeJob {
	j := q.slots[q.head]
	q.slots[q.head] = placeJob{}
	if q.head++; q.head == len(q.slots) {
		q.empty()
	}
	return j
}

// clear drops all jobs.
func (q *jobQueue) clear() {
	for i := range q.list() {
		q.list()[i].mem.free()
	}
	clear(q.list())
	q.empty()
}

func (q *jobQueue) empty() {
	q.head, q.slots = 0, q.slots[:0]
	if cap(q.slots) > keptJobs {
		q.slots = nil
	}
}
