package verbs

// This file implements the methods of QPHandle. The QP is locked in all of them.

func (qp *QP) completeSend(status WCStatus, byteLen uint32) {
	if qp.sq.len() == 0 {
		return
	}
	wr := qp.sq.at(0)
	if status != WCSuccess || qp.init.SQSigAll || wr.Flags&SendSignaled != 0 {
		wc := WC{WRID: wr.ID, Status: status, Opcode: wr.Opcode.completion(), ByteLen: byteLen, QPNum: qp.num}
		qp.push(qp.init.SendCQ, &wc, false)
	}
	qp.sq.pop()
	if qp.measured {
		qp.rare.latency.complete()
	}
}

func (qp *QP) currentRecv() *RecvWR {
	if qp.rq.len() == 0 && qp.srq != nil {
		qp.srq.take(&qp.rq)
	}
	if qp.rq.len() == 0 {
		return nil
	}
	return qp.rq.at(0)
}

func (qp *QP) completeRecv(wc *WC, solicited bool) {
	if qp.rq.len() == 0 {
		return
	}
	wc.WRID, wc.QPNum = qp.rq.at(0).ID, qp.num
	qp.rq.pop()
	cq := qp.init.RecvCQ
	if qp.xrcd != nil {
		cq = qp.srq.cq
	}
	qp.push(cq, wc, solicited)
}

func (qp *QP) push(cq *CQ, wc *WC, solicited bool) {
	if !cq.push(wc, solicited) {
		qp.cqOverrun = true
	}
	if ch := cq.channel; ch != nil && ch.owes.Load() {
		qp.tellOf(ch)
	}
}

// tellOf has unlock tell a channel's function of its events.
func (qp *QP) tellOf(ch *CompChannel) {
	if qp.rare == nil {
		qp.rare = new(rare)
	}
	r := qp.rare
	if n := len(r.untold); n == 0 || r.untold[n-1] != ch {
		r.untold = append(r.untold, ch)
		qp.telling |= tells
	}
}

// unlock unlocks the QP after work that may have completed requests.
func (qp *QP) unlock() {
	if qp.cqOverrun {
		qp.failOverrun()
	}
	if qp.telling&tells != 0 {
		qp.unlockAndTell()
		return
	}
	qp.mu.Unlock()
}

// unlockTellingLater is unlock at the end of what began with tellsLater.
func (qp *QP) unlockTellingLater() {
	if qp.cqOverrun {
		qp.failOverrun()
	}
	if qp.telling&tells != 0 {
		qp.unlockAndTell()
		qp.lock()
	}
	qp.telling &^= tellsLater
	qp.mu.Unlock()
}

// unlockAndTell unlocks the QP and calls the functions of OnEvent, whose callees may need the QP at once: on a goroutine of their own if
// the caller holds other locks.
func (qp *QP) unlockAndTell() {
	var few [4]*CompChannel
	untold := append(few[:0], qp.rare.untold...)
	clear(qp.rare.untold)
	qp.rare.untold = qp.rare.untold[:0]
	qp.telling &^= tells
	later := qp.telling&tellsLater != 0
	qp.mu.Unlock()
	if later {
		for _, ch := range untold {
			go ch.tell()
		}
		return
	}
	for _, ch := range untold {
		ch.tell()
	}
}

// failOverrun moves a QP to ERR that lost a completion because the CQ was full. That waits until the QP is unlocked,
// because the caller that added the completion is still working on the queues.
func (qp *QP) failOverrun() {
	from := qp.state
	if !qp.destroyed && from != StateReset && from != StateErr {
		// A provider accepts every transition to ERR.
		_ = qp.prov.Modify(from, StateErr, &QPAttr{QPState: StateErr}, QPAttrState)
		qp.event(EventQPFatal)
		qp.enterErr()
	}
	qp.cqOverrun = false
}

func (qp *QP) fail() {
	if qp.destroyed || qp.state == StateReset || qp.state == StateErr {
		return
	}
	qp.enterErr()
}

// enterErr moves the QP to ERR and flushes it. The event says that it takes no more requests from its SRQ (IBTA Vol 1
// §10.3.1).
func (qp *QP) enterErr() {
	first := qp.state != StateErr
	qp.state = StateErr
	qp.flush()
	if first && qp.init.SRQ != nil {
		qp.event(EventQPLastWQEReached)
	}
}

func (qp *QP) failSend() {
	if qp.destroyed || qp.state != StateRTS && qp.state != StateSQD {
		return
	}
	qp.state = StateSQE
	qp.flushSends()
}

// flushSends completes all requests of the send queue with WCWRFlushErr, in order.
func (qp *QP) flushSends() {
	for qp.sq.len() > 0 {
		qp.completeSend(WCWRFlushErr, 0)
	}
}

// flush completes all posted requests with WCWRFlushErr, each queue in order.
func (qp *QP) flush() {
	qp.flushSends()
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
	qp.pd.dev.events.add(AsyncEvent{Type: t, QP: qp, Port: qp.attr.PortNum})
}
