package verbs

import (
	"slices"
	"sync"
	"unsafe"

	"github.com/softrnic/softrnic/verbs/internal/wakeup"
)

// This file has the incoming side of regions with a backend: data that a provider places, and what
// it reads for responses. A provider works with the QP locked, and a backend may be slow. The data
// is therefore placed in staging memory, and a goroutine of the QP copies it in order without the
// lock. Completions wait until the bytes before them have arrived. A provider must make its
// acknowledgements wait too: see QPHandle.Placing.

// maxPlacing is the number of bytes of staging memory and jobs, of one QP, from which on
// QPHandle.PlacingFull makes the provider wait.
const maxPlacing = 4 << 20

// jobSize is what a job counts beside its staging memory, in bytes.
const jobSize = int(unsafe.Sizeof(placeJob{}))

// Placer says for what a provider places data.
type Placer uint8

const (
	PlaceRemote Placer = iota // a WRITE of the peer
	PlaceRecv                 // the receive request of the current message
	PlaceSend                 // the response to a READ or an atomic of this side
	PlaceAtomic               // an atomic of the peer, of QPHandle.Update
)

// PlaceError describes data that a provider has placed, and that did not arrive in the backend, or
// an atomic that was not executed.
type PlaceError struct {
	By  Placer
	PSN uint32 // the first of the failed copy, as given to QPHandle.Place or Update
	// Its request has no completion yet, which the provider must add. Otherwise the completion has
	// been changed to an error.
	Incomplete bool
}

// placing is the state of a QP whose regions have backends. The QP's lock protects it.
type placing struct {
	room    sync.Cond // staged has become smaller, a job has ended, or the QP has
	jobs    jobQueue
	running bool   // the goroutine exists
	run     func() // what it executes: QP.place
	now     uint64 // number of the job that it executes without the QP's lock; 0: none
	nowOf   *MR    // the region of that job
	issued  uint64 // number of the last job
	peer    uint64 // number of the last write or atomic of the peer
	own     uint64 // number of the last write for this side's requests
	done    uint64 // number of the last write or atomic that is complete or dropped
	staged  int    // bytes of staging memory and jobs of writes that are not complete
	held    []heldWC
	sends   int // those of held that are of send requests
	counts  []heldCount
	awaited uint64 // the mark of Arrived that is not reached; 0: none
	lastWQE bool   // EventQPLastWQEReached follows the held completions
	fetched fetch
}

// placeJob is a copy to or from a backend, or an atomic.
type placeJob struct {
	number uint64
	kind   jobKind
	mr     *MR
	off    int64
	mem    staging // the data, or what was read
	n      int     // read: how many bytes
	by     Placer  // write and atomic: of PlaceError
	psn    uint32
	update *Update // atomic
}

type jobKind uint8

const (
	jobWrite jobKind = iota
	jobRead
	jobUpdate
)

// heldWC is a completion that waits for data.
type heldWC struct {
	cq        *CQ
	srq       *SRQ // of an XRC QP: it has the CQ, and may be closed before the QP
	wc        WC
	solicited bool
	quiet     bool   // it is of an unsignaled request, so that only an error is reported
	length    uint64 // of a send request
	after     uint64 // number of the last job before it
	data      uint64 // number of the last job with data of its own side
}

func (h *heldWC) ofRecv() bool { return h.wc.Opcode&WCRecv != 0 }

// heldCount is what QPHandle.CountRemote counts when the data has arrived.
type heldCount struct {
	op       CompCntrOps
	n, bytes uint64
	after    uint64
}

// fetch is the part of a region that was read ahead for a response.
type fetch struct {
	job  uint64 // number of the job that reads it; 0: none
	busy bool
	mr   *MR
	off  int64
	mem  staging
	err  error
}

// Update is an atomic of QPHandle.Update. The QP's lock protects it. Another atomic may use it when
// it is done. One that has failed, or whose QP was closed or reset, is never done, and must not be
// used again.
type Update struct {
	// Apply returns what replaces a word. It must be set. It may run more than once, without the QP's
	// lock.
	Apply func(uint64) uint64
	orig  uint64
	done  bool
}

// Result returns the previous value of the word, if done. An atomic that fails is never done.
func (u *Update) Result() (orig uint64, done bool) { return u.orig, u.done }

// placing returns the state, which it creates.
func (qp *QP) placing() *placing {
	if qp.extra == nil {
		qp.extra = new(qpExtra)
	}
	if qp.extra.placing == nil {
		qp.extra.placing = &placing{room: sync.Cond{L: &qp.mu}, run: qp.place}
	}
	return qp.extra.placing
}

// addJob adds a job.
func (qp *QP) addJob(j placeJob) (number uint64) {
	p := qp.extra.placing
	p.issued++
	j.number = p.issued
	p.jobs.push(&j)
	if !p.running {
		p.running = true
		qp.pd.dev.clock.Go(p.run)
	}
	return j.number
}

// Place writes src to a region with a backend, at an offset in the region, after earlier data. It
// copies src. psn is returned in a PlaceError.
func (h QPHandle) Place(mr *MR, off int64, src []byte, by Placer, psn uint32) {
	qp, p := h.qp, h.qp.placing()
	for len(src) > 0 {
		j := p.continued(mr, off, by)
		if j == nil || len(j.mem.b) == cap(j.mem.b) {
			// Data that continues other data has more behind it.
			n := min(len(src), stagingChunk)
			if j != nil {
				n = min(stagingChunk, mr.backing.length)
			}
			mem := mr.backing.alloc(n)
			mem.b = mem.b[:0]
			p.staged += cap(mem.b) + jobSize
			last := &p.peer
			if by == PlaceSend {
				last = &p.own
			}
			*last = qp.addJob(placeJob{kind: jobWrite, mr: mr, off: off, mem: mem, by: by, psn: psn})
			j = p.jobs.last()
		}
		b := j.mem.b
		n := copy(b[len(b):cap(b)], src)
		j.mem.b = b[:len(b)+n]
		src, off = src[n:], off+int64(n)
	}
	qp.observed |= placingData
}

// continued returns the last job, if data at off continues it.
func (p *placing) continued(mr *MR, off int64, by Placer) *placeJob {
	j := p.jobs.last()
	if j == nil || j.kind != jobWrite || j.mr != mr || j.by != by || j.off+int64(len(j.mem.b)) != off {
		return nil
	}
	return j
}

// Placing reports whether data of the peer that was placed has not arrived in its backend, or an
// atomic of the peer is not executed. Nothing may be acknowledged meanwhile. ProviderQP.Placed is
// called when that is over.
func (h QPHandle) Placing() bool {
	return h.qp.observed&placingData != 0 && h.qp.extra.placing.ofPeer()
}

func (p *placing) ofPeer() bool { return p.done < p.peer }

// PlacedBy returns a mark of the data of the peer that was placed until now, for Arrived.
func (h QPHandle) PlacedBy() uint64 {
	if h.qp.observed&placingData == 0 {
		return 0
	}
	return h.qp.extra.placing.peer
}

// Arrived reports whether the data before a mark of PlacedBy has arrived in its backends. If not,
// ProviderQP.Placed is called when it has.
func (h QPHandle) Arrived(mark uint64) bool {
	if h.qp.observed&placingData == 0 || h.qp.extra.placing.done >= mark {
		return true
	}
	h.qp.extra.placing.awaited = mark
	return false
}

// PlacingFull reports whether so much data waits for its backend that the provider must take no
// more. ProviderQP.Placed is called when that is over.
func (h QPHandle) PlacingFull() bool {
	return h.qp.observed&placingData != 0 && h.qp.extra.placing.full()
}

func (p *placing) full() bool { return p.staged >= maxPlacing }

// AwaitPlacing waits while PlacingFull. The QP must not be locked.
func (h QPHandle) AwaitPlacing() {
	h.qp.lock()
	for h.PlacingFull() {
		h.qp.extra.placing.room.Wait()
	}
	h.qp.unlock()
}

// Fetched is the result of QPHandle.Fetch.
type Fetched uint8

const (
	FetchPending Fetched = iota // ProviderQP.Placed is called when there is a result
	FetchDone
	FetchFailed
)

// Fetch returns n bytes of a region with a backend, for a response. If they are not in staging
// memory, it starts to read them after everything that was placed, and up to ahead bytes more,
// which belong to the same response. The bytes are valid while the QP is locked. EndFetch is called
// when the response is complete.
func (h QPHandle) Fetch(mr *MR, off int64, n, ahead int) ([]byte, Fetched) {
	p := h.qp.placing()
	f := &p.fetched
	switch at := off - f.off; {
	case f.busy:
		return nil, FetchPending
	case f.mr != mr:
	case f.err != nil:
		f.drop()
		return nil, FetchFailed
	case at >= 0 && at <= int64(len(f.mem.b)-n):
		return f.mem.b[at : int(at)+n : int(at)+n], FetchDone
	}
	f.drop()
	// What is ahead was not checked: a window may have been bound to less meanwhile.
	ahead = min(ahead, mr.backing.length-int(off)-n)
	f.job = h.qp.addJob(placeJob{kind: jobRead, mr: mr, off: off, n: min(n+ahead, max(n, stagingChunk))})
	f.busy = true
	return nil, FetchPending
}

// EndFetch forgets what Fetch has read.
func (h QPHandle) EndFetch() {
	if x := h.qp.extra; x != nil && x.placing != nil {
		x.placing.fetched.drop()
	}
}

// drop releases what was read. If the read is running, its result will be dropped.
func (f *fetch) drop() {
	f.mem.free()
	*f = fetch{}
}

// Update starts an atomic on 8 bytes of a region with a backend, after everything that was placed.
// ProviderQP.Placed is called when it has a result. psn is returned in a PlaceError.
func (h QPHandle) Update(u *Update, mr *MR, off int64, psn uint32) {
	p := h.qp.placing()
	u.orig, u.done = 0, false
	p.peer = h.qp.addJob(placeJob{kind: jobUpdate, mr: mr, off: off, by: PlaceAtomic, psn: psn, update: u})
	h.qp.observed |= placingData
}

// place executes jobs until there are none left. A channel's OnEvent function gets a goroutine of
// its own, as it may wait for copies (Close).
func (qp *QP) place() {
	qp.lockDeferred()
	p := qp.extra.placing
	for len(p.jobs.list()) > 0 {
		j := p.jobs.pop()
		p.now, p.nowOf = j.number, j.mr
		qp.unlockDeferred()
		var orig uint64
		var err error
		switch b := j.mr.backing; j.kind {
		case jobWrite:
			err = b.write(j.mem.b, j.off)
		case jobRead:
			j.mem = b.alloc(j.n)
			err = b.read(j.mem.b, j.off)
		default:
			orig, err = b.update(j.off, j.update.Apply)
		}
		qp.lockDeferred()
		p.now, p.nowOf = 0, nil
		p.room.Broadcast()
		switch {
		case j.kind == jobRead && j.number == p.fetched.job:
			p.fetched = fetch{job: j.number, mr: j.mr, off: j.off, mem: j.mem, err: err}
			qp.prov.Placed(nil)
		case j.kind == jobRead || j.number <= p.done: // dropped meanwhile
			j.mem.free()
		case err != nil:
			j.mem.free()
			qp.placeFailed(&j)
		default:
			if j.kind == jobUpdate {
				j.update.orig, j.update.done = orig, true
			}
			qp.placed(&j)
		}
	}
	p.running = false
	qp.unlockDeferred()
}

// placed ends a write or an atomic.
func (qp *QP) placed(j *placeJob) {
	p := qp.extra.placing
	waited := p.ofPeer() || p.full()
	if j.kind == jobWrite {
		p.staged -= cap(j.mem.b) + jobSize
		j.mem.free()
	}
	p.done = j.number
	qp.pushHeld()
	if p.done >= max(p.peer, p.own) {
		qp.endHeld()
	}
	arrived := p.awaited != 0 && p.done >= p.awaited
	if arrived {
		p.awaited = 0
	}
	if waited && !p.ofPeer() && !p.full() || j.kind == jobUpdate || arrived {
		qp.prov.Placed(nil)
	}
	if p.done >= p.own {
		qp.resumeStaging()
	}
}

// holdRecv keeps the completion of a receive request until all data that was placed before has
// arrived.
func (qp *QP) holdRecv(cq *CQ, wc *WC, solicited bool) {
	p := qp.extra.placing
	h := heldWC{cq: cq, wc: *wc, solicited: solicited, after: max(p.peer, p.own), data: p.peer}
	if qp.xrcd != nil {
		h.srq = qp.srq
	}
	p.held = append(p.held, h)
}

// holdSend does the same for a send request.
func (qp *QP) holdSend(wr *SendWR, wc *WC) {
	p := qp.extra.placing
	quiet := wr.Flags&SendSignaled == 0 && !qp.init.SQSigAll
	p.sends++
	p.held = append(p.held, heldWC{cq: qp.init.SendCQ, wc: *wc, quiet: quiet, length: wr.length, after: max(p.peer, p.own), data: p.own})
}

// heldSends is the number of send requests whose completions wait for data. A program cannot know
// that they are complete, so they take room in the send queue.
func (qp *QP) heldSends() int {
	if qp.observed&placingData == 0 {
		return 0
	}
	return qp.extra.placing.sends
}

// dropHeldOf drops the completions of an SRQ that is closed.
func (qp *QP) dropHeldOf(s *SRQ) {
	if x := qp.extra; x != nil && x.placing != nil {
		x.placing.held = slices.DeleteFunc(x.placing.held, func(h heldWC) bool { return h.srq == s })
	}
}

// holdCount keeps a count of the peer's operations.
func (qp *QP) holdCount(op CompCntrOps, n, bytes uint64) {
	p := qp.extra.placing
	if i := len(p.counts) - 1; i >= 0 && p.counts[i].op == op && p.counts[i].after == p.peer {
		p.counts[i].n += n
		p.counts[i].bytes += bytes
		return
	}
	p.counts = append(p.counts, heldCount{op, n, bytes, p.peer})
}

// pushHeld adds the completions to their CQs that wait for no data any more, and counts.
func (qp *QP) pushHeld() {
	p := qp.extra.placing
	n := 0
	for n < len(p.held) && p.held[n].after <= p.done {
		h := &p.held[n]
		if qp.observed&counted != 0 {
			qp.countCompletion(&h.wc, h.length)
		}
		if !h.quiet || h.wc.Status != WCSuccess {
			qp.push(h.cq, &h.wc, h.solicited)
		}
		if !h.ofRecv() {
			p.sends--
		}
		n++
	}
	p.held = append(p.held[:0], p.held[n:]...)
	n = 0
	for n < len(p.counts) && p.counts[n].after <= p.done {
		c := &p.counts[n]
		qp.countOps(c.op, WCSuccess, c.n, c.bytes)
		n++
	}
	p.counts = append(p.counts[:0], p.counts[n:]...)
}

// endHeld is called when nothing waits for data any more.
func (qp *QP) endHeld() {
	qp.observed &^= placingData
	if p := qp.extra.placing; p.lastWQE {
		p.lastWQE = false
		qp.event(EventQPLastWQEReached)
	}
}

// placeFailed ends the connection, because a write or an atomic has failed. Later data is dropped.
// The completion of its request is an error, and those behind it, or without their data, are
// flushed.
func (qp *QP) placeFailed(j *placeJob) {
	p := qp.extra.placing
	e := PlaceError{By: j.by, PSN: j.psn, Incomplete: true}
	p.done = j.number - 1
	qp.pushHeld()
	for i := range p.held {
		h := &p.held[i]
		switch {
		case h.wc.Status != WCSuccess || h.data <= p.done: // all of its data has arrived
		case e.Incomplete && (j.by == PlaceRecv && h.ofRecv() || j.by == PlaceSend && !h.ofRecv()):
			h.wc.Status, e.Incomplete = WCLocProtErr, false
		default:
			h.wc.Status = WCWRFlushErr
		}
	}
	p.counts = nil
	p.dropJobs()
	qp.pushHeld()
	qp.endHeld()
	qp.prov.Placed(&e)
}

// dropJobs drops everything that is not executed. Completions need not wait any more.
func (p *placing) dropJobs() {
	p.jobs.clear()
	p.done, p.staged, p.awaited = p.issued, 0, 0
	p.fetched.drop()
	p.room.Broadcast()
}

// endPlacing drops everything, because the QP is closed or reset.
func (qp *QP) endPlacing() {
	if x := qp.extra; x != nil && x.placing != nil {
		x.placing.dropJobs()
		x.placing.held, x.placing.sends, x.placing.counts, x.placing.lastWQE = nil, 0, nil, false
		qp.observed &^= placingData
	}
}

// awaitEnd waits until the copies and atomics of a QP have ended, after Close or RESET has dropped
// those that were queued. modifying is not locked: others may move the QP meanwhile.
func (qp *QP) awaitEnd() {
	qp.lock()
	qp.awaitCopies(nil)
	qp.unlock()
}

// awaitCopies waits until the copies and atomics of a region have ended that run or are queued;
// with nil, those of all regions. The QP is locked, but not meanwhile.
func (qp *QP) awaitCopies(mr *MR) {
	if qp.extra == nil {
		return
	}
	c := qp.pd.dev.clock
	if p := qp.extra.placing; p != nil {
		last := p.lastOf(mr)
		wakeup.Await(c, &p.room, func() bool { return p.over(last) })
	}
	if s := qp.extra.staging; s != nil && s.reads(mr) {
		n := s.ended
		wakeup.Await(c, &s.end, func() bool { return s.ended != n })
	}
}

// lastOf returns the number of the last job of a region, or with nil of any; 0 without one.
func (p *placing) lastOf(mr *MR) uint64 {
	for _, j := range slices.Backward(p.jobs.list()) {
		if mr == nil || j.mr == mr {
			return j.number
		}
	}
	if mr == nil || p.nowOf == mr {
		return p.now
	}
	return 0
}

// over reports whether no job up to a number runs or is queued.
func (p *placing) over(number uint64) bool {
	jobs := p.jobs.list()
	return (p.now == 0 || p.now > number) && (len(jobs) == 0 || jobs[0].number > number)
}
