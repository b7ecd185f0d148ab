package verbs

import (
	"slices"
	"sync"
)

// This file has the outgoing side of regions with a backend: the data of send requests. A request
// with such data is hidden from the provider until a goroutine has read the data into staging
// memory, without the QP's lock. The request then has it as inline data. Requests behind it are
// hidden too, because they are executed in order.

// maxStaged is the number of bytes in staging memory, of one QP, from which on the next request
// waits. A request that is longer waits until no other is staged.
const maxStaged = 16 << 20

// sendStaged is set in the flags of a posted request whose inline data is staging memory.
const sendStaged SendFlags = 1 << 7

// sendStaging is the state of a QP whose send requests have data in backends. The QP's lock
// protects it.
type sendStaging struct {
	busy bool // the goroutine reads the first hidden request, or is about to
	// Posted requests behind those of the queue. If there are any, sendsHidden is set.
	hidden uint32
	epoch  uint32
	bytes  int
	sends  map[*SendWR]stagedSend

	run     func()    // what the goroutine executes: QP.stageHidden
	list    []piece   // of the request that is staged
	reading []piece   // what is read now, without the QP's lock
	ended   int       // how many times a read has ended
	end     sync.Cond // ended has changed
}

// reads reports whether data of a region is read now; with nil, data of any.
func (s *sendStaging) reads(mr *MR) bool {
	return slices.ContainsFunc(s.reading, func(p piece) bool { return p.mr != nil && (mr == nil || p.mr == mr) })
}

// stagedSend is what a staged request had before, and what it has now.
type stagedSend struct {
	inline []byte
	mem    staging
}

// piece is a part of a request's data: the next n bytes.
type piece struct {
	mr  *MR // nil: the bytes are already there
	off int64
	n   int
}

// hide hides the request after the posted ones.
func (qp *QP) hide() {
	if qp.extra == nil {
		qp.extra = new(qpExtra)
	}
	if qp.extra.staging == nil {
		qp.extra.staging = &sendStaging{sends: make(map[*SendWR]stagedSend), run: qp.stageHidden, end: sync.Cond{L: &qp.mu}}
	}
	qp.extra.staging.hidden++
	qp.observed |= sendsHidden
	qp.resumeStaging()
}

// hidden returns the number of hidden requests.
func (qp *QP) hidden() uint32 {
	if qp.observed&sendsHidden == 0 {
		return 0
	}
	return qp.extra.staging.hidden
}

// removeHidden removes n requests from the hidden ones.
func (qp *QP) removeHidden(n uint32) {
	s := qp.extra.staging
	if s.hidden -= n; s.hidden == 0 {
		qp.observed &^= sendsHidden
	}
}

// hides reports whether a request has data in a backend.
func (qp *QP) hides(wr *SendWR) bool {
	if wr.Flags&SendInline != 0 || !readsMemory(wr.Opcode) {
		return false
	}
	for i := range wr.SGList {
		if mr := qp.pd.lookup(wr.SGList[i].LKey); mr != nil && mr.kind == mrBackend {
			return true
		}
	}
	return false
}

// readsMemory reports whether a request's list is the source of its data.
func readsMemory(op WROpcode) bool { return op != RDMARead && !atomicOps.has(op) }

// resumeStaging continues after an event for which hidden requests may have waited.
func (qp *QP) resumeStaging() {
	if qp.hidden() > 0 && !qp.extra.staging.busy {
		qp.extra.staging.busy = true
		qp.pd.dev.clock.Go(qp.extra.staging.run)
	}
}

// unhide removes the first n hidden requests from the hidden ones.
func (qp *QP) unhide(n uint32) {
	qp.sq.n += n
	qp.removeHidden(n)
}

// stageHidden stages hidden requests in order, until one must wait or none is left. OnEvent
// functions get goroutines, as in place.
func (qp *QP) stageHidden() {
	qp.lockDeferred()
	s := qp.extra.staging
	for qp.hidden() > 0 && qp.stageNext() {
		if qp.state == StateRTS || qp.state == StateSQD {
			qp.prov.PostSend()
		}
	}
	s.busy = false
	qp.unlockDeferred()
}

// stageNext stages the first hidden request. It returns false if the request must wait. It unlocks
// the QP meanwhile.
func (qp *QP) stageNext() bool {
	s, wr := qp.extra.staging, qp.sq.at(qp.sq.len())
	if wr.Flags&SendFence != 0 && qp.readsOutstanding() {
		return false
	}
	pieces, backing := qp.pieces(s.list[:0], wr)
	if backing == nil {
		qp.unhide(1)
		return true
	}
	s.list = pieces
	if s.bytes > 0 && uint64(s.bytes)+wr.length > maxStaged {
		return false
	}
	s.bytes += int(wr.length)
	epoch, length := s.epoch, int(wr.length)
	s.reading = pieces
	qp.unlockDeferred()
	mem := backing.alloc(length)
	data, err := mem.b, error(nil)
	for _, p := range pieces {
		if p.mr != nil && err == nil {
			err = p.mr.backing.read(data[:p.n], p.off)
		}
		data = data[p.n:]
	}
	qp.lockDeferred()
	s.reading = nil
	s.ended++
	s.end.Broadcast()
	if s.epoch != epoch { // flushed or reset
		clear(pieces)
		mem.free()
		return true
	}
	data = mem.b
	for _, p := range pieces { // ordinary memory
		if p.mr == nil && err == nil {
			err = qp.gather(data[:p.n], wr.SGList[p.off:][:1])
		}
		data = data[p.n:]
	}
	clear(pieces) // it keeps no region
	if err != nil {
		wr.fault = WCLocProtErr
		s.bytes -= len(mem.b)
		mem.free()
	} else {
		s.sends[wr] = stagedSend{wr.InlineData, mem}
		wr.SGList, wr.InlineData = wr.SGList[:0], mem.b
		wr.Flags |= SendInline | sendStaged
	}
	qp.unhide(1)
	return true
}

// readsOutstanding reports whether a READ or an atomic before the first hidden request is not
// complete, or its data has not arrived.
func (qp *QP) readsOutstanding() bool {
	if qp.observed&placingData != 0 && qp.extra.placing.done < qp.extra.placing.own {
		return true
	}
	for i := range qp.sq.len() {
		if !readsMemory(qp.sq.at(i).Opcode) {
			return true
		}
	}
	return false
}

// pieces appends the parts of a request's data, and returns one of the backends. It returns none if
// nothing is to be staged, or if the request fails because of its list. The offset of a piece of
// ordinary memory is the index of its SGE.
func (qp *QP) pieces(list []piece, wr *SendWR) (_ []piece, backing *backing) {
	if wr.Flags&SendInline != 0 || !readsMemory(wr.Opcode) || wr.fault != WCSuccess {
		return nil, nil
	}
	for i, e := range wr.SGList {
		mr := qp.pd.lookup(e.LKey)
		switch {
		case e.Length == 0:
		case mr == nil:
			return nil, nil
		case mr.kind != mrBackend:
			list = append(list, piece{nil, int64(i), int(e.Length)})
		default:
			off, ok := (*RegisteredMR)(mr).Backed(e.Addr, uint64(e.Length))
			if !ok {
				return nil, nil
			}
			list, backing = append(list, piece{mr, off, int(e.Length)}), mr.backing
		}
	}
	return list, backing
}

// unstage releases the staging memory of a request that is complete.
func (qp *QP) unstage(wr *SendWR) {
	s := qp.extra.staging
	st := s.sends[wr]
	delete(s.sends, wr)
	s.bytes -= len(st.mem.b)
	st.mem.free()
	wr.InlineData = st.inline
	wr.Flags &^= SendInline | sendStaged
}

// unhideAll makes all requests visible, because they are flushed.
func (qp *QP) unhideAll() {
	if n := qp.hidden(); n > 0 {
		s := qp.extra.staging
		s.epoch++
		qp.unhide(n)
		s.countStaged()
	}
}

// endStaging drops all requests, because the QP is closed or reset.
func (qp *QP) endStaging() {
	if x := qp.extra; x != nil && x.staging != nil {
		s := x.staging
		s.epoch++
		for wr := range s.sends {
			qp.unstage(wr)
		}
		qp.removeHidden(s.hidden)
		s.countStaged()
	}
}

// countStaged counts what is staged, after the request that is being read was dropped.
func (s *sendStaging) countStaged() {
	s.bytes = 0
	for _, st := range s.sends {
		s.bytes += len(st.mem.b)
	}
}
