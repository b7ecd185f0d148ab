package verbs

// What a provider does through its QPHandle; the QP is locked throughout.

func (qp *QP) completeSend(status WCStatus, byteLen uint32) {
	if qp.sq.len() == 0 {
		return
	}
	wr := qp.sq.at(0)
	if status != WCSuccess || qp.init.SQSigAll || wr.Flags&SendSignaled != 0 {
		wc := WC{WRID: wr.ID, Status: status, Opcode: wr.Opcode.completion(), ByteLen: byteLen, QPNum: qp.num}
		qp.init.SendCQ.push(&wc, false)
	}
	qp.sq.pop()
}

func (qp *QP) currentRecv() *RecvWR {
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
	qp.init.RecvCQ.push(wc, solicited)
}

func (qp *QP) fail() {
	if qp.destroyed || qp.state == StateReset || qp.state == StateErr {
		return
	}
	qp.state = StateErr
	qp.flush()
}

// flush completes everything posted with WCWRFlushErr, each queue in order.
func (qp *QP) flush() {
	for qp.sq.len() > 0 {
		qp.completeSend(WCWRFlushErr, 0)
	}
	for qp.rq.len() > 0 {
		qp.completeRecv(&WC{Status: WCWRFlushErr, Opcode: WCRecv}, false)
	}
}

func (qp *QP) event(t AsyncEventType) {
	qp.pd.dev.events.add(AsyncEvent{Type: t, QP: qp, Port: qp.attr.PortNum})
}
