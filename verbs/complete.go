package verbs

// What a provider does through its QPHandle; the QP is locked throughout.

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
		qp.lost = true
	}
}

// unlock ends a hold of the lock that may have completed requests.
func (qp *QP) unlock() {
	if qp.lost {
		qp.settle()
	}
	qp.mu.Unlock()
}

// settle moves a QP to ERR of which a completion was lost: not before whoever made it is done with the queues.
func (qp *QP) settle() {
	from := qp.state
	if !qp.destroyed && from != StateReset && from != StateErr {
		// A provider has no reason to refuse that.
		_ = qp.prov.Modify(from, StateErr, &QPAttr{QPState: StateErr}, QPAttrState)
		qp.event(EventQPFatal)
		qp.enterErr()
	}
	qp.lost = false
}

func (qp *QP) fail() {
	if qp.destroyed || qp.state == StateReset || qp.state == StateErr {
		return
	}
	qp.enterErr()
}

// enterErr makes ERR the state. A QP takes nothing from its SRQ any more: the event says so (IBTA Vol 1 §10.3.1).
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

// flushSends completes what is left of the send queue with WCWRFlushErr, in order.
func (qp *QP) flushSends() {
	for qp.sq.len() > 0 {
		qp.completeSend(WCWRFlushErr, 0)
	}
}

// flush completes everything posted with WCWRFlushErr, each queue in order.
func (qp *QP) flush() {
	qp.flushSends()
	for qp.rq.len() > 0 {
		qp.completeRecv(&WC{Status: WCWRFlushErr, Opcode: WCRecv}, false)
	}
}

// drained ends the draining of SQD.
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
