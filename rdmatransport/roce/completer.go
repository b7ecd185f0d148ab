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
	if wire.PSNDiff(p.PSN, r.una) < 0 || wire.PSNDiff(p.PSN, r.max) >= 0 {
		// A duplicate of what is acknowledged, or an answer to nothing we sent ("ghost"): no state changes. An RNR or
		// sequence NAK may name the PSN before una only if it is stale.
		return
	}
	if r.rnrWait != 0 && info.HasAETH() && !p.AETH.IsACK() {
		return // told so already; the timer decides
	}
	switch {
	case p.Opcode == wire.RCAck:
		q.acknowledge(p)
	case p.Opcode == wire.RCAtomicAck:
		q.atomicResponse(p)
	case info.Read():
		q.readResponse(p, info)
	}
}

// acknowledge handles ACK, NAK and RNR NAK.
func (q *qp) acknowledge(p *wire.Packet) {
	switch {
	case p.AETH.IsACK():
		q.ackThrough(wire.PSNAdd(p.PSN, 1))
	case p.AETH.IsRNR():
		// Everything before it is acknowledged.
		if q.ackThrough(p.PSN) {
			q.receiverNotReady(p.AETH.Value())
		}
	default: // a NAK, or reserved
		if !q.ackThrough(p.PSN) {
			return
		}
		switch p.AETH.Type() | p.AETH.Value() { // without the reserved bit
		case wire.NakPSNSeq:
			q.e.Counters.RcvdSeqErr.Add(1)
			q.goBack()
		case wire.NakInvalidRequest:
			q.failSend(verbs.WCRemInvReqErr)
		case wire.NakRemoteAccess:
			q.failSend(verbs.WCRemAccessErr)
		case wire.NakRemoteOperational:
			q.failSend(verbs.WCRemOpErr)
		default:
			q.failSend(verbs.WCBadRespErr)
		}
	}
}

// ackThrough takes everything before PSN end as acknowledged. A READ or atomic among it whose response did not come
// makes the acknowledgement an implied NAK of that: the requester goes back there, and the result is false.
func (q *qp) ackThrough(end uint32) bool {
	r := &q.req
	for wire.PSNDiff(end, r.una) > 0 {
		s := r.at(r.first)
		wr := q.h.Send(0)
		if isReadOrAtomic(wr.Opcode) {
			q.goBack()
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
// acknowledged by it. It returns the request, which is then the oldest, or nil if the packet is to be dropped.
func (q *qp) ackBefore(psn uint32) *verbs.SendWR {
	r := &q.req
	for {
		s := r.at(r.first)
		past := wire.PSNAdd(s.firstPSN, s.packets)
		if wire.PSNDiff(psn, past) < 0 {
			break
		}
		if !q.ackThrough(past) {
			return nil
		}
	}
	wr := q.h.Send(0)
	switch {
	case !isReadOrAtomic(wr.Opcode):
		q.failSend(verbs.WCBadRespErr) // a response in the middle of a SEND or WRITE
		return nil
	case psn != r.una:
		q.goBack() // responses before it were lost
		return nil
	}
	return wr
}

// readResponse places one packet of READ data. Its place follows from its PSN, so a peer may call the first packet of
// a repeated READ First or Middle: rxe says Middle, others First.
func (q *qp) readResponse(p *wire.Packet, info wire.Info) {
	wr := q.ackBefore(p.PSN)
	if wr == nil {
		return
	}
	if info.HasAETH() && !p.AETH.IsACK() {
		q.failSend(verbs.WCBadRespErr)
		return
	}
	r := &q.req
	s := r.at(r.first)
	index := uint32(wire.PSNDiff(p.PSN, s.firstPSN))
	off := uint64(index) * uint64(q.mtu)
	want := min(wr.Length()-off, uint64(q.mtu))
	if wr.Opcode != verbs.RDMARead || uint64(len(p.Payload)) != want {
		q.failSend(verbs.WCBadRespErr)
		return
	}
	if status := q.e.regions.Scatter(p.Payload, q.h.PD(), wr.SGList, off); status != verbs.WCSuccess {
		q.failSend(status)
		return
	}
	q.progress(wire.PSNAdd(p.PSN, 1))
	if index == s.packets-1 {
		q.complete(wr, uint32(wr.Length()))
	}
}

// atomicResponse places the value that an atomic found.
func (q *qp) atomicResponse(p *wire.Packet) {
	wr := q.ackBefore(p.PSN)
	if wr == nil {
		return
	}
	if !isAtomic(wr.Opcode) || !p.AETH.IsACK() {
		q.failSend(verbs.WCBadRespErr)
		return
	}
	var orig [8]byte
	binary.NativeEndian.PutUint64(orig[:], p.AtomicAckETH.Orig)
	if status := q.e.regions.Scatter(orig[:], q.h.PD(), wr.SGList, 0); status != verbs.WCSuccess {
		q.failSend(status)
		return
	}
	q.progress(wire.PSNAdd(p.PSN, 1))
	q.complete(wr, 8)
}

// progress moves the window's lower edge: the peer is alive and has everything before una.
func (q *qp) progress(una uint32) {
	r := &q.req
	acked := uint32(wire.PSNDiff(una, r.una))
	r.una = una
	r.retries, r.rnrRetries = 0, 0
	r.wentBack = false
	r.rnrWait = 0
	r.window = min(r.window+acked, r.maxWindow)
	done := 0
	for done < len(r.reads) && wire.PSNDiff(una, r.reads[done]) > 0 {
		done++
	}
	if done > 0 {
		r.reads = r.reads[:copy(r.reads, r.reads[done:])]
		r.asked = max(0, r.asked-done)
	}
	r.timeout = 0 // set anew by startTimeout
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
	if isReadOrAtomic(wr.Opcode) {
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
}
