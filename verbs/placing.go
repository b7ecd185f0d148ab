package verbs

import (
	"sync"
	"unsafe"
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
)

// PlaceError describes data that a provider has placed, and that did not arrive in the backend.
type PlaceError struct {
	By  Placer
	PSN uint32 // the first of the failed copy, as given to QPHandle.Place
	// Its request has no completion yet, which the provider must add. Otherwise the completion has
	// been changed to an error.
	Incomplete bool
}

// placing is the state of a QP whose regions have backends. The QP's lock protects it.
type placing struct {
	room    sync.Cond // staged has become smaller, or the QP has ended
	jobs    []placeJob
	running bool   // the goroutine exists
	issued  uint64 // number of the last job
	writes  uint64 // number of the last job that is a write
	done    uint64 // number of the last job that is complete or dropped
	staged  int    // bytes of staging memory and jobs of writes that are not complete
	held    []heldWC

	fetched fetch
	updated update
}

// placeJob is a copy to or from a backend, or an atomic.
type placeJob struct {
	number uint64
	kind   jobKind
	mr     *MR
	off    int64
	mem    staging // the data, or where it is read to
	by     Placer  // write: of PlaceError
	psn    uint32
	word   func(uint64) uint64 // atomic
}

type jobKind uint8

const (
	jobWrite jobKind = iota
	jobRead
	jobUpdate
)

// heldWC is a completion that waits for a write.
type heldWC struct {
	cq        *CQ
	wc        WC
	solicited bool
	after     uint64 // number of the write
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

// update is an atomic that is being executed, or has been.
type update struct {
	job  uint64 // its number; 0: none
	busy bool
	orig uint64
	err  error
}

// placing returns the state, which it creates.
func (qp *QP) placing() *placing {
	if qp.extra == nil {
		qp.extra = new(qpExtra)
	}
	if qp.extra.placing == nil {
		qp.extra.placing = &placing{room: sync.Cond{L: &qp.mu}}
	}
	return qp.extra.placing
}

// addJob adds a job.
func (qp *QP) addJob(j placeJob) (number uint64) {
	p := qp.extra.placing
	p.issued++
	j.number = p.issued
	p.jobs = append(p.jobs, j)
	if !p.running {
		p.running = true
		go qp.place()
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
			var mem staging
			if j != nil {
				mem = mr.backing.alloc(min(stagingChunk, mr.backing.length))
			} else {
				mem = mr.backing.allocPart(min(len(src), stagingChunk))
			}
			mem.b = mem.b[:0]
			p.staged += cap(mem.b) + jobSize
			p.writes = qp.addJob(placeJob{kind: jobWrite, mr: mr, off: off, mem: mem, by: by, psn: psn})
			j = &p.jobs[len(p.jobs)-1]
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
	if len(p.jobs) == 0 {
		return nil
	}
	j := &p.jobs[len(p.jobs)-1]
	if j.kind != jobWrite || j.mr != mr || j.by != by || j.off+int64(len(j.mem.b)) != off {
		return nil
	}
	return j
}

// Placing reports whether data that was placed has not arrived in its backend. Nothing may be
// acknowledged meanwhile. ProviderQP.Placed is called when all of it has arrived.
func (h QPHandle) Placing() bool { return h.qp.observed&placingData != 0 }

// PlacingFull reports whether so much data waits for its backend that the provider must take no
// more.
func (h QPHandle) PlacingFull() bool { return h.Placing() && h.qp.extra.placing.staged >= maxPlacing }

// AwaitPlacing waits while PlacingFull. The QP must not be locked.
func (h QPHandle) AwaitPlacing() {
	h.qp.lock()
	for h.PlacingFull() {
		h.qp.extra.placing.room.Wait()
	}
	h.qp.unlock()
}

// Fetched is the result of QPHandle.Fetch and Update.
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
	mem := mr.backing.alloc(min(n+ahead, max(n, stagingChunk)))
	f.job = h.qp.addJob(placeJob{kind: jobRead, mr: mr, off: off, mem: mem})
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

// Update executes an atomic on 8 bytes of a region with a backend, after everything that was
// placed. The first call starts it. A call after its end returns the previous value, and the next
// call starts another.
func (h QPHandle) Update(mr *MR, off int64, f func(uint64) uint64) (orig uint64, state Fetched) {
	u := &h.qp.placing().updated
	switch {
	case u.busy:
		return 0, FetchPending
	case u.job == 0:
		u.busy, u.job = true, h.qp.addJob(placeJob{kind: jobUpdate, mr: mr, off: off, word: f})
		return 0, FetchPending
	}
	orig, state = u.orig, FetchDone
	if u.err != nil {
		state = FetchFailed
	}
	*u = update{}
	return orig, state
}

// place executes jobs until there are none left.
func (qp *QP) place() {
	qp.lock()
	p := qp.extra.placing
	for len(p.jobs) > 0 {
		j := p.jobs[0]
		p.jobs[0] = placeJob{}
		p.jobs = p.jobs[1:]
		qp.unlock()
		var orig uint64
		var err error
		switch b := j.mr.backing; j.kind {
		case jobWrite:
			err = b.write(j.mem.b, j.off)
		case jobRead:
			err = b.read(j.mem.b, j.off)
		default:
			orig, err = b.update(j.off, j.word)
		}
		qp.lock()
		switch {
		case j.kind == jobWrite && j.number > p.done:
			qp.placed(&j, err)
		case j.kind == jobRead && j.number == p.fetched.job:
			p.fetched = fetch{job: j.number, mr: j.mr, off: j.off, mem: j.mem, err: err}
			qp.prov.Placed(nil)
		case j.kind == jobUpdate && j.number == p.updated.job:
			p.updated = update{job: j.number, orig: orig, err: err}
			qp.prov.Placed(nil)
		default: // dropped meanwhile
			j.mem.free()
		}
	}
	p.jobs, p.running = nil, false
	qp.unlock()
}

// placed ends a write.
func (qp *QP) placed(j *placeJob, err error) {
	p := qp.extra.placing
	p.staged -= cap(j.mem.b) + jobSize
	p.room.Broadcast()
	j.mem.free()
	if err != nil {
		qp.placeFailed(j)
		return
	}
	p.done = j.number
	qp.pushHeld()
	if p.done >= p.writes {
		qp.observed &^= placingData
		qp.prov.Placed(nil)
		qp.resumeStaging()
	}
}

// hold keeps a completion until all data that was placed before has arrived.
func (qp *QP) hold(cq *CQ, wc *WC, solicited bool) {
	p := qp.extra.placing
	p.held = append(p.held, heldWC{cq, *wc, solicited, p.writes})
}

// pushHeld adds the completions to their CQs that wait for no write any more.
func (qp *QP) pushHeld() {
	p := qp.extra.placing
	was := qp.observed
	qp.observed &^= placingData // push must not hold them again
	n := 0
	for n < len(p.held) && p.held[n].after <= p.done {
		h := &p.held[n]
		qp.push(h.cq, &h.wc, h.solicited)
		n++
	}
	p.held = append(p.held[:0], p.held[n:]...)
	qp.observed = was
}

// placeFailed ends the connection, because a write has failed. Later data is dropped. The
// completion of its request is an error, and those behind it are flushed.
func (qp *QP) placeFailed(j *placeJob) {
	p := qp.extra.placing
	e := PlaceError{By: j.by, PSN: j.psn, Incomplete: true}
	p.done = j.number - 1
	qp.pushHeld()
	for i := range p.held {
		wc := &p.held[i].wc
		switch {
		case wc.Status != WCSuccess:
		case !e.Incomplete:
			wc.Status = WCWRFlushErr
		case j.by == PlaceRecv && wc.Opcode&WCRecv != 0,
			j.by == PlaceSend && (wc.Opcode == WCRDMARead || wc.Opcode == WCCompSwap || wc.Opcode == WCFetchAdd):
			wc.Status, e.Incomplete = WCLocProtErr, false
		case wc.Opcode&WCRecv != 0:
			wc.Status = WCWRFlushErr
		}
	}
	p.dropJobs()
	qp.pushHeld()
	qp.observed &^= placingData
	qp.prov.Placed(&e)
}

// dropJobs drops everything that is not executed. Completions need not wait any more.
func (p *placing) dropJobs() {
	for i := range p.jobs {
		p.jobs[i].mem.free()
	}
	p.jobs, p.done, p.staged = nil, p.issued, 0
	p.fetched.drop()
	p.updated = update{}
	p.room.Broadcast()
}

// endPlacing drops everything, because the QP is closed or reset.
func (qp *QP) endPlacing() {
	if x := qp.extra; x != nil && x.placing != nil {
		x.placing.dropJobs()
		x.placing.held = nil
		qp.observed &^= placingData
	}
}
