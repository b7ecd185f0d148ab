package roce

// On the path: beside responder.go, what is carried out only when its answer is due: a FLUSH that makes memory persistent,
// by goroutines of its own, as nobody else may wait for a file's device; and the atomics and ATOMIC WRITEs behind it.

import (
	"sync"

	"github.com/softrnic/softrnic/rdmatransport/internal/memory"
	"github.com/softrnic/softrnic/rdmatransport/roce/wire"
	"github.com/softrnic/softrnic/verbs"
)

// later is a job that is not carried out yet, or was so late. The lock of its QP guards it. It is also in the history, where
// its duplicates find what became of it.
type later struct {
	done bool
	orig uint64 // of an atomic that is done: what memory held

	// FLUSH, until it is done: the region and what is to be made persistent of it.
	file    *verbs.MR
	bytes   []byte
	started bool

	// Or an atomic or ATOMIC WRITE, as modifyWord has them.
	op   wire.Opcode
	word wire.AtomicETH
	need verbs.Access
}

// waits tells that a job is still to be carried out.
func (j *job) waits() bool { return j.later != nil && !j.later.done }

// behind tells that a new job has others before it that are not carried out.
func (r *responder) behind() bool {
	if r.replies != nil {
		for i := range r.replies.jobs {
			if r.replies.jobs[i].waits() {
				return true
			}
		}
	}
	return false
}

// modifyWord ends a request to modify eight bytes, which is new, with job j: an atomic, or an ATOMIC WRITE of the value
// Swap. It is carried out at once, or in its turn.
func (q *qp) modifyWord(j job, op wire.Opcode, a *wire.AtomicETH, need verbs.Access) bool {
	word, nak, status := q.word(a, need)
	if nak != 0 {
		return q.refuse(nak, status)
	}
	if q.resp.behind() {
		j.later = &later{op: op, word: *a, need: need}
	} else {
		var ok bool
		if j.orig, ok = modify(word, op, a); !ok {
			return q.refuse(wire.NakRemoteOperational, verbs.WCRemOpErr)
		}
	}
	q.answer(j)
	return false
}

// word is the eight bytes that a request is to modify, or why not.
func (q *qp) word(a *wire.AtomicETH, need verbs.Access) (word memory.Span, nak uint8, status verbs.WCStatus) {
	word, ok := q.region(a.RKey, a.Addr, 8, need)
	switch {
	case !ok:
		return word, wire.NakRemoteAccess, verbs.WCRemAccessErr
	case a.Addr%8 != 0 || !word.Aligned():
		return word, wire.NakInvalidRequest, verbs.WCRemInvReqErr
	}
	return word, 0, verbs.WCSuccess
}

// modify modifies a word, and returns what it held, of an ATOMIC WRITE nothing; not ok if the memory faults.
func modify(word memory.Span, op wire.Opcode, a *wire.AtomicETH) (orig uint64, ok bool) {
	switch op {
	case wire.RCCmpSwap:
		return word.CompareSwap(a.Compare, a.Swap)
	case wire.RCFetchAdd:
		return word.FetchAdd(a.Swap)
	}
	return 0, word.Store(a.Swap)
}

// carryOutLater carries the first job out, whose turn has come; false if it is not over, or ended the connection.
func (q *qp) carryOutLater(j *job) bool {
	l := j.later
	if l.file != nil {
		if !l.started {
			l.started = true
			q.e.flushes.add(q, l)
		}
		return false
	}
	q.resp.pd = j.pd
	word, nak, status := q.word(&l.word, l.need)
	if nak != 0 {
		return q.giveUp(nak, j.psn, status)
	}
	var ok bool
	if l.orig, ok = modify(word, l.op, &l.word); !ok {
		return q.giveUp(wire.NakRemoteOperational, j.psn, verbs.WCRemOpErr)
	}
	l.done = true
	return true
}

// flushes is the FLUSHes of a device that are being carried out, or wait for one of maxFlushes goroutines, which exist while
// there is something to do; no more than one of a QP.
type flushes struct {
	mu      sync.Mutex // the innermost
	queue   []flush
	running int
}

type flush struct {
	q *qp
	l *later
}

func (f *flushes) add(q *qp, l *later) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.queue = append(f.queue, flush{q, l})
	if f.running < maxFlushes {
		f.running++
		go f.run()
	}
}

// run carries FLUSHes out, oldest first, until there are no more.
func (f *flushes) run() {
	for {
		f.mu.Lock()
		if len(f.queue) == 0 {
			f.queue = nil
			f.running--
			f.mu.Unlock()
			return
		}
		next := f.queue[0]
		f.queue[0] = flush{}
		f.queue = f.queue[1:]
		f.mu.Unlock()
		next.carryOut()
	}
}

// persist is Persist of a region. Tests have devices that take their time.
var persist = (*verbs.MR).Persist

func (f flush) carryOut() {
	q, l := f.q, f.l
	q.h.Lock()
	wanted := q.awaits(l) != nil
	q.h.Unlock()
	if !wanted {
		return
	}
	err := persist(l.file, l.bytes) // neither changes before the FLUSH is over
	q.h.Lock()
	switch j := q.awaits(l); {
	case j == nil:
		q.h.Unlock()
		return
	case err != nil:
		q.giveUp(wire.NakRemoteOperational, j.psn, verbs.WCRemOpErr)
	default:
		l.done, l.file, l.bytes = true, nil, nil
	}
	q.leave(false)
}

// awaits is the job that waits for l; nil if the QP has been reset since, or is in error.
func (q *qp) awaits(l *later) *job {
	if q.destroyed || !receives(q.h.State()) || q.resp.replies == nil {
		return nil
	}
	jobs := q.resp.replies.jobs
	for i := range jobs {
		if jobs[i].later == l {
			return &jobs[i]
		}
	}
	return nil
}
