package roce

// On the path: acknowledgements and responses that come in. They complete work requests, in order, and open the
// window; what is missing among them sends the requester back. (IBTA Vol 1 §9.7.5.1.2–§9.7.5.2)

import (
	"encoding/binary"

	"github.com/softrnic/softrnic/rdmatransport/roce/wire"
	"github.com/softrnic/softrnic/verbs"
)

// response handles one acknowledge, READ response or atomic response.
func (q *qp) response(p *wire.Packet, info wire.Info) {
	r := &q.req
	d := wire.PSNDiff(p.PSN, r.una)
	if d < -1 || wire.PSNDiff(p.PSN, r.max) >= 0 {
		// A duplicate of what is acknowledged, or an answer to nothing we sent ("ghost"): no state changes. An RNR or
		// sequence NAK may name the PSN before una only if it is stale.
		return
	}
	if info.HasAETH() && p.AETH.IsACK() && (r.credits.given || p.AETH.Value() != wire.AckUnlimited) {
		r.credits.update(&p.AETH)
	}
	if d < 0 { // the last acknowledgement once more, perhaps with credits
		return
	}
	r.selective = q.marked(p)
	if r.rnrWait != 0 && info.HasAETH() && !p.AETH.IsACK() {
		if _, fatal := refusal(&p.AETH); !fatal {
			return // told so already; the timer decides
		}
	}
	switch {
	case operation(p.Opcode) == wire.RCAck:
		q.acknowledge(p)
	case operation(p.Opcode) == wire.RCAtomicAck:
		q.atomicResponse(p)
	case info.Read():
		q.readResponse(p, info)
	}
	if r.probed {
		q.probeAnswered()
	}
}

// acknowledge handles ACK, NAK and RNR NAK.
func (q *qp) acknowledge(p *wire.Packet) {
	r := &q.req
	switch {
	case p.AETH.IsACK():
		q.ackThrough(wire.PSNAdd(p.PSN, 1))
	case p.AETH.IsRNR():
		// Everything before it is acknowledged; answers may be missing.
		q.ackBelow(p.PSN)
		if r.rec == nil || !r.rec.isExecuted(p.PSN) {
			q.receiverNotReady(p.PSN, p.AETH.Value())
		}
	case len(p.Payload) > 0 && p.AETH.Syndrome == wire.NakPSNSeq && q.marked(p):
		q.e.Counters.RcvdSeqErr.Add(1)
		q.ackThrough(p.PSN)
		q.sacked(p)
	default: // a NAK, or reserved
		if status, fatal := refusal(&p.AETH); fatal {
			q.ackBelow(p.PSN)
			q.refused(p.PSN, status)
			return
		}
		switch {
		case q.ackThrough(p.PSN):
			q.e.Counters.RcvdSeqErr.Add(1)
			q.goBack()
		case r.rec != nil && !r.rec.isExecuted(p.PSN):
			// Answers before it are missing, and the peer keeps nothing of what it was sent from there on.
			q.e.Counters.RcvdSeqErr.Add(1)
			r.rec.dropped(p.PSN, r.max)
			r.window = max(r.window/2, minWindow)
		}
	}
}

// refusal is the status of a request that a NAK ends the connection over; not fatal where it may be sent again.
func refusal(a *wire.AETH) (status verbs.WCStatus, fatal bool) {
	switch a.Type() | a.Value() { // without the reserved bit
	case wire.NakPSNSeq:
		return 0, false
	case wire.NakInvalidRequest:
		return verbs.WCRemInvReqErr, true
	case wire.NakRemoteAccess:
		return verbs.WCRemAccessErr, true
	case wire.NakRemoteOperational:
		return verbs.WCRemOpErr, true
	}
	return verbs.WCBadRespErr, !a.IsRNR()
}

// refused fails the request that a PSN in flight belongs to, and with it the connection. A request before it is here only
// because its answer is missing, or the answer of one before that. The peer will not give that answer any more: its QP is
// in the error state. So those requests are flushed, as what comes behind is.
func (q *qp) refused(psn uint32, status verbs.WCStatus) {
	for n, _ := q.req.request(psn); q.req.first < n; {
		q.pop(verbs.WCWRFlushErr, 0)
	}
	q.failSend(status)
}

// ackThrough takes everything before PSN end as acknowledged. A READ or atomic among it whose response did not come
// makes the acknowledgement an implied NAK of that: the requester goes back there, or keeps account of what is missing,
// and the result is false.
func (q *qp) ackThrough(end uint32) bool {
	if q.ackBelow(end) {
		return true
	}
	if q.req.rec == nil {
		q.goBack()
	}
	return false
}

// ackBelow is ackThrough for an answer that says itself what is to be sent again: the requester does not go back.
func (q *qp) ackBelow(end uint32) bool {
	r := &q.req
	if r.rec != nil {
		return q.executedBefore(end)
	}
	for wire.PSNDiff(end, r.una) > 0 {
		s := r.at(r.first)
		wr := q.h.Send(0)
		if hasAnswer(wr.Opcode) {
			if r.selective {
				q.startRecovery()
				return q.executedBefore(end)
			}
			return false
		}
		past := wire.PSNAdd(s.firstPSN, s.packets)
		if wire.PSNDiff(end, past) < 0 {
			q.progress(end)
			return true
		}
		q.progress(past)
		q.complete(wr, 0)
	}
	return true
}

// ackBefore prepares for a response to a READ or atomic with the given PSN: what comes before that request is
// acknowledged by it. It returns the number of the request, which is the oldest unless responses before it are missing;
// ok is false if the packet is to be dropped.
func (q *qp) ackBefore(psn uint32) (n uint64, ok bool) {
	r := &q.req
	n, s := r.request(psn)
	passed := q.ackThrough(s.firstPSN)
	if !passed && r.rec == nil || wire.PSNDiff(psn, r.una) < 0 {
		return 0, false
	}
	if !hasAnswer(q.h.Send(int(n - r.first)).Opcode) {
		q.failResponse(n, verbs.WCBadRespErr) // a response in the middle of a SEND or WRITE
		return 0, false
	}
	if r.rec == nil && psn != r.una { // responses before it were lost
		if !r.selective {
			q.goBack()
			return 0, false
		}
		q.startRecovery()
	}
	return n, r.rec == nil || !r.rec.at(psn).is(arrived)
}

// failResponse fails the connection for a response to request n. While requests before it are incomplete it is dropped
// instead, as if lost: theirs is the first completion.
func (q *qp) failResponse(n uint64, status verbs.WCStatus) {
	if n == q.req.first {
		q.failSend(status)
	}
}

// readResponse places one packet of READ data. Its place follows from its PSN, so a peer may call the first packet of
// a repeated READ First or Middle: rxe says Middle, others First.
func (q *qp) readResponse(p *wire.Packet, info wire.Info) {
	n, ok := q.ackBefore(p.PSN)
	if !ok {
		return
	}
	r := &q.req
	s, wr := r.at(n), q.h.Send(int(n-r.first))
	if info.HasAETH() && !p.AETH.IsACK() {
		q.failResponse(n, verbs.WCBadRespErr)
		return
	}
	if emptyAnswer(wr.Opcode) && info.Only() && len(p.Payload) == 0 {
		q.answered(p.PSN)
		return
	}
	index := uint32(wire.PSNDiff(p.PSN, s.firstPSN))
	off := uint64(index) * uint64(q.mtu)
	want := min(wr.Length()-off, uint64(q.mtu))
	if wr.Opcode != verbs.RDMARead || uint64(len(p.Payload)) != want {
		q.failResponse(n, verbs.WCBadRespErr)
		return
	}
	if status := q.e.regions.Scatter(p.Payload, q.h.PD(), wr.SGList, off); status != verbs.WCSuccess {
		q.failResponse(n, status)
		return
	}
	q.answered(p.PSN)
}

// atomicResponse places the value that an atomic found.
func (q *qp) atomicResponse(p *wire.Packet) {
	n, ok := q.ackBefore(p.PSN)
	if !ok {
		return
	}
	wr := q.h.Send(int(n - q.req.first))
	if !isAtomic(wr.Opcode) || !p.AETH.IsACK() {
		q.failResponse(n, verbs.WCBadRespErr)
		return
	}
	var orig [8]byte
	binary.NativeEndian.PutUint64(orig[:], p.AtomicAckETH.Orig)
	if status := q.e.regions.Scatter(orig[:], q.h.PD(), wr.SGList, 0); status != verbs.WCSuccess {
		q.failResponse(n, status)
		return
	}
	q.answered(p.PSN)
}

// answered takes in that the answer of a PSN is in place.
func (q *qp) answered(psn uint32) {
	r := &q.req
	past := wire.PSNAdd(psn, 1)
	if r.rec != nil {
		r.rec.answered(psn)
		q.signOfLife(true)
		q.settle()
		return
	}
	s, wr := r.at(r.first), q.h.Send(0)
	q.progress(past)
	if past == wire.PSNAdd(s.firstPSN, s.packets) {
		q.complete(wr, answerLen(wr))
	}
}

// answerLen is the completion's byte count: of what the request brought.
func answerLen(wr *verbs.SendWR) uint32 {
	switch {
	case wr.Opcode == verbs.RDMARead:
		return uint32(wr.Length())
	case isAtomic(wr.Opcode):
		return 8
	}
	return 0
}

// progress moves the window's lower edge: the peer is alive and has everything before una.
func (q *qp) progress(una uint32) {
	r := &q.req
	acked := uint32(wire.PSNDiff(una, r.una))
	r.una = una
	if wire.PSNDiff(r.lastAsk, una) < 0 {
		r.lastAsk = una
	}
	r.retries, r.rnrRetries = 0, 0
	r.wentBack, r.excused = false, false
	if wire.PSNDiff(una, r.rnrPSN) > 0 {
		r.rnrWait = 0
	}
	r.window = min(r.window+acked, r.maxWindow)
	if a := r.asked; a != nil {
		done := 0
		for done < len(a.last) && wire.PSNDiff(una, a.last[done]) > 0 {
			done++
		}
		if done > 0 {
			a.last = a.last[:copy(a.last, a.last[done:])]
			a.n = max(0, a.n-done)
		}
	}
	r.timeout, r.probe, r.probes = 0, 0, 0 // set anew by startTimeout
	if r.rttStart != 0 && wire.PSNDiff(una, r.rttPSN) > 0 {
		q.measure()
	}
	// What was acknowledged need not be sent again, even if the requester had gone back to before it.
	if s := r.at(r.cur); r.cur == r.first && s.packets != 0 {
		if acked := uint32(wire.PSNDiff(una, s.firstPSN)); r.curPkt < acked && acked <= s.packets {
			r.curPkt = acked
		}
	}
}

// complete takes the oldest request, which is acknowledged, off the queue.
func (q *qp) complete(wr *verbs.SendWR, byteLen uint32) {
	r := &q.req
	if hasAnswer(wr.Opcode) {
		r.incomplete--
	}
	switch wr.Opcode {
	case verbs.Send, verbs.SendWithImm, verbs.SendWithInv:
		q.stats.sends++
	}
	if r.cur == r.first {
		r.cur++
		r.curPkt = 0
	}
	q.pop(verbs.WCSuccess, byteLen)
	q.popLocal()
}
