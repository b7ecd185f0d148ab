package verbs

// This file implements the methods of QPHandle. All of them need the QP locked.

func (qp *QP) completeSend(status WCStatus, byteLen uint32) {
	if qp.sq.len() == 0 {
		return
	}
	wr := qp.sq.at(0)
	if qp.observed != 0 && qp.observeSend(wr, status, byteLen) {
		qp.sq.pop()
		return
	}
	if status != WCSuccess || qp.init.SQSigAll || wr.Flags&SendSignaled != 0 {
		wc := WC{WRID: wr.WRID, Status: status, Opcode: wr.Opcode.completion(), ByteLen: byteLen, QPNum: qp.num}
		if qp.sinks() {
			qp.extra.sink.take(&wc)
		} else {
			qp.closeSink() // a later one must not overtake this one
			qp.push(qp.init.SendCQ, &wc, false)
		}
	}
	qp.sq.pop()
}

// observeSend is called when a send request is about to complete. isHeld reports whether its
// completion waits for data.
func (qp *QP) observeSend(wr *SendWR, status WCStatus, byteLen uint32) (isHeld bool) {
	if qp.observed&measured != 0 {
		qp.extra.latency.complete(qp.pd.dev.clock)
	}
	if qp.observed&faulted != 0 {
		qp.seen(wr.injected, status, false)
	}
	wc := WC{WRID: wr.WRID, Status: status, Opcode: wr.Opcode.completion(), ByteLen: byteLen, QPNum: qp.num}
	if isHeld = qp.observed&placingData != 0; isHeld {
		qp.holdSend(wr, &wc)
	} else if qp.observed&counted != 0 {
		qp.countCompletion(&wc, wr.length)
	}
	if wr.Flags&sendStaged != 0 {
		qp.unstage(wr)
	}
	if qp.observed&sendsHidden != 0 {
		qp.resumeStaging()
	}
	return isHeld
}

func (qp *QP) currentRecv() *RecvWR {
	if qp.rq.len() == 0 {
		switch {
		case qp.ring() != nil:
			qp.takeRing()
		case qp.srq != nil:
			qp.srq.take(&qp.rq)
			if qp.observed&faulted != 0 && qp.rq.len() > 0 {
				qp.injectRecv(qp.rq.at(0))
			}
		}
		if qp.rq.len() == 0 {
			return nil
		}
	}
	return qp.rq.at(0)
}

func (qp *QP) completeRecv(wc *WC, solicited bool) {
	if qp.rq.len() == 0 {
		return
	}
	wr := qp.rq.at(0)
	wc.WRID, wc.QPNum = wr.WRID, qp.num
	cq := qp.init.RecvCQ
	if qp.xrcd != nil {
		cq = qp.srq.cq
	}
	isHeld := qp.observed != 0 && qp.observeRecv(wr, cq, wc, solicited)
	qp.rq.pop()
	if r := qp.ring(); r != nil {
		r.complete(1)
	}
	if !isHeld {
		qp.push(cq, wc, solicited)
	}
}

// observeRecv does for a receive request what observeSend does for a send request.
func (qp *QP) observeRecv(wr *RecvWR, cq *CQ, wc *WC, solicited bool) (isHeld bool) {
	if qp.observed&faulted != 0 {
		qp.seen(wr.injected, wc.Status, true)
	}
	if isHeld = qp.observed&placingData != 0; isHeld {
		qp.holdRecv(cq, wc, solicited)
	} else if qp.observed&counted != 0 {
		qp.countCompletion(wc, 0)
	}
	return isHeld
}

func (qp *QP) push(cq *CQ, wc *WC, solicited bool) {
	kept := false
	if qp.observed&faulted == 0 {
		kept = cq.push(wc, solicited)
	} else {
		kept = qp.pushLate(cq, wc, solicited)
	}
	if !kept {
		qp.cqOverrun = true
	}
	if ch := cq.channel; ch != nil && ch.hasUnreported.Load() {
		qp.deferReport(ch)
	}
}

// injectRecv is called with each receive request that the QP gets. A fault makes the request one
// that the device cannot use: its memory is in no region, or it has no memory. The device then
// finds the fault itself, and its peer gets the answer that follows from it.
func (qp *QP) injectRecv(slot *RecvWR) {
	x := qp.pd.dev.injection.Load()
	slot.injected = x.injector.Recv(qp)
	switch slot.injected {
	case WCLocProtErr:
		for i := range slot.SGList {
			slot.SGList[i].LKey = 0
		}
	case WCLocLenErr:
		slot.SGList, slot.length = slot.SGList[:0], 0
	}
}

// seen is called when a request completes, and counts the fault that was injected into it. A flush
// is none.
func (qp *QP) seen(injected, status WCStatus, recv bool) {
	if injected != WCSuccess && injected == status {
		x := qp.pd.dev.injection.Load()
		x.count.Add(1)
		x.injector.Seen(qp, recv, status)
	}
}

// pushLate is push for a QP of a device with an Injector.
func (qp *QP) pushLate(cq *CQ, wc *WC, solicited bool) bool {
	x := qp.pd.dev.injection.Load()
	if d := x.injector.Late(qp, wc.Opcode, wc.Status); d > 0 {
		cq.stall(d)
	}
	if isStalled, kept := cq.hold(qp, wc, solicited); isStalled {
		return kept
	}
	return cq.push(wc, solicited)
}

// deferReport makes unlock call the OnEvent function of a channel.
func (qp *QP) deferReport(ch *CompChannel) {
	if qp.extra == nil {
		qp.extra = new(qpExtra)
	}
	r := qp.extra
	if n := len(r.unreported); n == 0 || r.unreported[n-1] != ch {
		r.unreported = append(r.unreported, ch)
		qp.reportFlags |= reportsPending
	}
}

// lockDeferred locks the QP until unlockDeferred, for a caller that OnEvent functions may wait for.
func (qp *QP) lockDeferred() {
	qp.lock()
	qp.reportFlags |= reportsDeferred
}

// unlockDeferred is like unlock, and ends the effect of reportsDeferred.
func (qp *QP) unlockDeferred() {
	if qp.cqOverrun {
		qp.failOverrun()
	}
	if qp.reportFlags&reportsPending != 0 {
		qp.unlockAndReport()
		qp.lock()
	}
	qp.reportFlags &^= reportsDeferred
	qp.mu.Unlock()
}

// unlockAndReport unlocks the QP and calls the OnEvent functions, which may lock the QP. If the
// caller holds other locks, they run on goroutines of their own.
func (qp *QP) unlockAndReport() {
	var few [4]*CompChannel
	unreported := append(few[:0], qp.extra.unreported...)
	clear(qp.extra.unreported)
	qp.extra.unreported = qp.extra.unreported[:0]
	qp.reportFlags &^= reportsPending
	deferred := qp.reportFlags&reportsDeferred != 0
	qp.mu.Unlock()
	if deferred {
		for _, ch := range unreported {
			qp.pd.dev.clock.Go(ch.report)
		}
		return
	}
	for _, ch := range unreported {
		ch.report()
	}
}

// failOverrun moves a QP to ERR after it has lost a completion because its CQ was full. It is
// called when the QP is unlocked, because the caller that added the completion still uses the
// queues.
func (qp *QP) failOverrun() {
	if !qp.closed && qp.state != StateReset && qp.state != StateErr {
		qp.failWith(EventQPFatal)
	}
	qp.cqOverrun = false
}

// failWith moves a QP to ERR, raises an event, and flushes the QP.
func (qp *QP) failWith(t AsyncEventType) {
	// A provider accepts every transition to ERR.
	_ = qp.prov.Modify(qp.state, StateErr, &QPAttr{QPState: StateErr}, QPAttrState)
	qp.event(t)
	qp.enterErr()
}

func (qp *QP) fail() {
	if qp.closed || qp.state == StateReset || qp.state == StateErr {
		return
	}
	qp.enterErr()
}

// enterErr moves the QP to ERR and flushes it. EventQPLastWQEReached reports that it takes no more
// requests from its SRQ (IBTA Vol 1 §10.3.1).
func (qp *QP) enterErr() {
	first := qp.state != StateErr
	qp.state = StateErr
	qp.openRing() // before the flush, which then finds what is in the ring
	qp.flush()
	switch {
	case !first || qp.init.SRQ == nil:
	case qp.observed&placingData != 0:
		qp.extra.placing.lastWQE = true
	default:
		qp.event(EventQPLastWQEReached)
	}
}

func (qp *QP) failSend() {
	if qp.closed || qp.state != StateRTS && qp.state != StateSQD {
		return
	}
	qp.state = StateSQE
	qp.flushSends()
}

// flushSends completes all requests of the send queue with WCWRFlushErr, in order.
func (qp *QP) flushSends() {
	qp.unhideAll()
	for qp.sq.len() > 0 {
		qp.completeSend(WCWRFlushErr, 0)
	}
}

// flush completes all posted requests with WCWRFlushErr, each queue in order.
func (qp *QP) flush() {
	qp.flushSends()
	qp.takeRing()
	for qp.rq.len() > 0 {
		qp.completeRecv(&WC{Status: WCWRFlushErr, Opcode: WCRecv}, false)
	}
}

// drained ends the draining of the send queue in SQD.
func (qp *QP) drained() {
	if qp.state != StateSQD || !qp.draining {
		return
	}
	qp.draining = false
	if qp.attr.EnSQDAsyncNotify {
		qp.event(EventSQDrained)
	}
}

func (qp *QP) event(t AsyncEventType) {
	qp.pd.dev.events.add(AsyncEvent{Type: t, QP: qp, PortNum: qp.attr.PortNum})
}
