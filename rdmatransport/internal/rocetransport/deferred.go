package rocetransport

// Deferred requests, which are executed when their response is due. A FLUSH to persistent memory
// waits for a file's device, so it runs on its own goroutine. Atomics and ATOMIC WRITEs after it
// wait for it, and are executed in order. Those of words in a backend are deferred too.

import (
	"sync"

	"github.com/softrnic/softrnic/rdmatransport/internal/memory"
	"github.com/softrnic/softrnic/rdmatransport/internal/rocetransport/receive"
	"github.com/softrnic/softrnic/rdmatransport/wire"
	"github.com/softrnic/softrnic/verbs"
)

// deferred is a request to be executed before its response is sent. It is the Owner of that
// response. The QP's lock protects it.
type deferred struct {
	pd *verbs.PD // XRC: PD of the request's SRQ

	// FLUSH: the region, and the bytes to be made persistent.
	file    *verbs.MR
	bytes   []byte
	started bool

	// Or an atomic or ATOMIC WRITE, with the arguments of modifyWord.
	op   wire.Opcode
	word wire.AtomicETH
	need verbs.Access
	// Of a word in a backend:
	updating bool // it has started
	update   verbs.Update
}

// works has deferred requests for their next use. It has no New, which would refer to works itself
// through the function change.
var works sync.Pool

func newDeferred() *deferred {
	if d, ok := works.Get().(*deferred); ok {
		return d
	}
	d := new(deferred)
	d.update.Apply = d.change
	return d
}

// free is called when the response does not need d any more, nor does a copy of it.
func (d *deferred) free() {
	*d = deferred{update: verbs.Update{Apply: d.update.Apply}}
	works.Put(d)
}

// deferWork accepts a request and defers it until its response is due.
func (q *qp) deferWork(kind receive.Kind, d *deferred) {
	d.pd = q.resp.pd
	if !d.updating {
		q.resp.unstarted++
	}
	q.answer(receive.Response{Kind: kind, Deferred: true, Owner: d})
}

// modifyWord executes an atomic, or an ATOMIC WRITE of the value Swap. It is deferred if earlier
// requests are. One in a backend starts at once if it can, so that completions behind it wait.
func (q *qp) modifyWord(kind receive.Kind, op wire.Opcode, a *wire.AtomicETH, need verbs.Access) bool {
	word, nak, status := q.word(a, need)
	if nak != 0 {
		return q.refuse(nak, status)
	}
	if q.receiving.Defers() || word.InBackend() {
		d := newDeferred()
		d.op, d.word, d.need = op, *a, need
		if word.InBackend() && q.resp.unstarted == 0 {
			q.startUpdate(d, word, q.receiving.PSN())
		}
		q.deferWork(kind, d)
		return false
	}
	orig, ok := modify(word, op, a)
	if !ok {
		return q.refuse(wire.NakRemoteOperational, verbs.WCRemOpErr)
	}
	q.answer(receive.Response{Kind: kind, Orig: orig})
	return false
}

// word returns the eight bytes that a request modifies, or the error.
func (q *qp) word(a *wire.AtomicETH, need verbs.Access) (word memory.Span, nak uint8, status verbs.WCStatus) {
	word, ok := q.region(a.RKey, a.Addr, 8, need)
	switch { // an unaligned address is an invalid request for any key
	case a.Addr%8 != 0 || ok && !word.Aligned():
		return word, wire.NakInvalidRequest, verbs.WCRemInvReqErr
	case !ok:
		return word, wire.NakRemoteAccess, verbs.WCRemAccessErr
	}
	return word, 0, verbs.WCSuccess
}

// modify modifies a word, and returns its previous value for an atomic. ok is false if the memory
// faults.
func modify(word memory.Span, op wire.Opcode, a *wire.AtomicETH) (orig uint64, ok bool) {
	switch op {
	case wire.RCCmpSwap:
		return word.CompareSwap(a.Compare, a.Swap)
	case wire.RCFetchAdd:
		return word.FetchAdd(a.Swap)
	}
	return 0, word.Store(a.Swap)
}

// startUpdate starts d on a word in a backend. The word's operation does not change any more.
func (q *qp) startUpdate(d *deferred, word memory.Span, psn uint32) {
	d.updating = true
	word.Change(q.h, &d.update, psn)
}

// change does what modify does to a word.
func (d *deferred) change(v uint64) uint64 {
	switch {
	case d.op == wire.RCFetchAdd:
		return v + d.word.Swap
	case d.op == wire.RCCmpSwap && v != d.word.Compare:
		return v
	}
	return d.word.Swap
}

// executeDeferred executes the deferred request of the pending response. It returns false if the
// execution takes time, or has ended the connection.
func (q *qp) executeDeferred(r *receive.Response) bool {
	d := r.Owner.(*deferred)
	if d.file != nil {
		if !d.started {
			d.started = true
			q.e.flushes.add(q, d)
		}
		return false
	}
	if !d.updating {
		q.resp.pd = d.pd
		word, nak, status := q.word(&d.word, d.need)
		if nak != 0 {
			return q.failPending(nak, r.PSN, status)
		}
		q.resp.unstarted--
		if !word.InBackend() {
			orig, ok := modify(word, d.op, &d.word)
			if !ok {
				return q.failPending(wire.NakRemoteOperational, r.PSN, verbs.WCRemOpErr)
			}
			q.executed(d, orig)
			return true
		}
		q.startUpdate(d, word, r.PSN)
	}
	orig, done := d.update.Result()
	if done {
		q.executed(d, orig)
	}
	return done
}

// executed ends the deferred request of the pending response.
func (q *qp) executed(d *deferred, orig uint64) {
	q.receiving.OnDeferredExecuted(orig)
	d.free()
}

// flushes has the FLUSHes of a device. At most maxFlushes goroutines execute them, and the others
// wait. A goroutine exists only while it has work. A QP has at most one FLUSH here.
type flushes struct {
	mu      sync.Mutex // innermost lock
	queue   []flush
	running int
}

type flush struct {
	q *qp
	d *deferred
}

func (f *flushes) add(q *qp, d *deferred) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.queue = append(f.queue, flush{q, d})
	if f.running < maxFlushes {
		f.running++
		q.e.timers.Clock().Go(f.run)
	}
}

// run executes FLUSHes in order until there are none left.
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
		next.execute()
	}
}

// persist is replaced by tests with slow devices.
var persist = (*verbs.RegisteredMR).Persist

func (f flush) execute() {
	q, d := f.q, f.d
	q.h.Lock()
	awaited := q.awaits(d)
	q.unlockOnly()
	if !awaited {
		return
	}
	// Neither field changes before the FLUSH is over.
	err := persist((*verbs.RegisteredMR)(d.file), d.bytes)
	q.h.Lock()
	switch {
	case !q.awaits(d):
		q.unlockOnly()
		return
	case err != nil:
		q.failPending(wire.NakRemoteOperational, q.receiving.Pending().PSN, verbs.WCRemOpErr)
	default:
		q.executed(d, 0)
		q.resp.unstarted--
	}
	q.sendDueAndUnlock()
}

// awaits reports whether d is still the oldest pending response. It is not if the QP was reset or
// has failed meanwhile.
func (q *qp) awaits(d *deferred) bool {
	if q.destroyed || !receives(q.h.State()) {
		return false
	}
	r := q.receiving.Pending()
	return r != nil && r.Deferred && r.Owner == any(d)
}
