package verbs

import "sync/atomic"

// RecvRing is a ring through which a program posts receive requests to one QP without a call: see
// QP.UseRecvRing. It may be C memory, so that C code in front of a Go program can write it. The
// slots, each with MaxRecvSGE elements of SGEs, are used in turn.
//
// The program adds a request if Closed is 0 and fewer than MaxRecvWR requests are posted. It writes
// the slot, adds 1 to Posted, and reads Closed again. If that is no longer 0, it calls PostRecv
// without requests, which does with those in the ring what the QP's state demands. While Closed is
// not 0, it posts with PostRecv, which also reports what is wrong with a request. Only one
// goroutine or thread may add requests or call PostRecv at a time.
type RecvRing struct {
	Posted *atomic.Uint32 // requests added to the ring; only the program writes it
	// Requests that are no longer posted, whether added to the ring or by PostRecv. It is exact,
	// because many programs keep all requests posted.
	Completed *atomic.Uint32
	Closed    *atomic.Uint32 // not 0: requests must be posted with PostRecv
	WRs       []RingRecvWR   // the slots, MaxRecvWR
	SGEs      []SGE
}

// RingRecvWR is a slot of a RecvRing.
type RingRecvWR struct {
	WRID   uint64
	NumSGE uint32
	_      uint32
}

// recvRing is the RecvRing of a QP, which is locked while anything but Posted is used.
type recvRing struct {
	RecvRing
	taken     uint32 // requests moved to the receive queue
	next      int    // the slot of the next one
	completed uint32
}

// UseRecvRing gives a QP in RESET an empty ring of receive requests, until Close. The error is
// ErrInvalid if the sizes of the ring are not those of the QP. It is ErrNotSupported if the QP has
// no receive queue of its own, or is one of iWARP. There, a message may be waiting for the call
// that posts. Over RoCE an RC sender tries again, and other messages without a receive request are
// lost.
func (qp *QP) UseRecvRing(r *RecvRing) error {
	const what = "use receive ring of"
	qp.lock()
	defer qp.mu.Unlock()
	if err := qp.alive(what); err != nil {
		return err
	}
	c, t := &qp.init.Cap, qp.init.Type
	switch {
	case qp.init.SRQ != nil || t == XRCSend || t == XRCRecv || t == RawPacket || qp.init.Transport != RoCEv2 || c.MaxRecvWR == 0:
		return Errorf(ErrNotSupported, qp.op(what), "it is a QP of type %v over %v with a receive queue of %d", t, qp.init.Transport, c.MaxRecvWR)
	case qp.state != StateReset || qp.ring() != nil:
		return Errorf(ErrInvalid, qp.op(what), "it is in %v, not in RESET, or has a ring", qp.state)
	case len(r.WRs) != int(c.MaxRecvWR) || len(r.SGEs) != int(c.MaxRecvWR)*int(c.MaxRecvSGE):
		return Errorf(ErrInvalid, qp.op(what), "it has %d requests and %d SGEs, but the QP has %d of %d SGEs", len(r.WRs), len(r.SGEs),
			c.MaxRecvWR, c.MaxRecvSGE)
	}
	r.Posted.Store(0)
	r.Completed.Store(0)
	r.Closed.Store(1)
	if qp.extra == nil {
		qp.extra = new(qpExtra)
	}
	qp.extra.ring = &recvRing{RecvRing: *r}
	return nil
}

// ring returns the QP's ring, or nil.
func (qp *QP) ring() *recvRing {
	if qp.extra == nil {
		return nil
	}
	return qp.extra.ring
}

// endRing ends the use of the ring of a closed QP.
func (qp *QP) endRing() {
	if qp.ring() != nil {
		qp.openRing()
		qp.extra.ring = nil
	}
}

// openRing opens or closes the ring, if there is one, as the QP's state demands. Of a QP with an
// Injector it stays closed, since that is asked at each post.
func (qp *QP) openRing() {
	r := qp.ring()
	if r == nil {
		return
	}
	closed := uint32(0)
	if qp.closed || qp.observed&faulted != 0 || qp.state == StateReset || qp.state == StateErr {
		closed = 1
	}
	if r.Closed.Load() != closed {
		r.Closed.Store(closed)
	}
}

// takeRing moves the requests of the ring, if there is one, to the receive queue.
func (qp *QP) takeRing() {
	r, q := qp.ring(), &qp.rq
	if r == nil {
		return
	}
	most := len(r.SGEs) / len(r.WRs)
	for posted := r.Posted.Load(); r.taken != posted && !q.full(); r.taken++ {
		wr := RecvWR{WRID: r.WRs[r.next].WRID}
		wr.SGList = r.SGEs[r.next*most:][:min(int(r.WRs[r.next].NumSGE), most)]
		for i := range wr.SGList {
			wr.length += uint64(wr.SGList[i].Length)
		}
		pushRecv(q, &wr)
		if r.next++; r.next == len(r.WRs) {
			r.next = 0
		}
	}
}

// postBesideRing is postRecvs for a QP with a ring. The requests of the ring were posted earlier.
func (qp *QP) postBesideRing(wrs []*RecvWR) error {
	qp.takeRing()
	if qp.state == StateReset {
		qp.dropRecvs()
	}
	return qp.postRecvs(wrs)
}

// complete counts n requests that are no longer posted.
func (r *recvRing) complete(n uint32) {
	r.completed += n
	r.Completed.Store(r.completed)
}

// dropRecvs removes all posted receive requests without completion.
func (qp *QP) dropRecvs() {
	if qp.ring() != nil {
		qp.takeRing()
		qp.extra.ring.complete(qp.rq.n)
	}
	qp.rq.reset()
}
