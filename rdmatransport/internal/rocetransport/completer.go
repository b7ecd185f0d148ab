package rocetransport

// Receive path of acknowledgements and responses. They complete work requests in order, and open
// the window. If one is missing, the requester goes back. (IBTA Vol 1 §9.7.5.1.2–§9.7.5.2)

import (
	"encoding/binary"

	"github.com/softrnic/softrnic/rdmatransport/internal/rocetransport/send"
	"github.com/softrnic/softrnic/rdmatransport/trace"
	"github.com/softrnic/softrnic/rdmatransport/wire"
	"github.com/softrnic/softrnic/verbs"
)

// response handles an acknowledgement, a READ response or an atomic response.
func (q *qp) response(p *wire.Packet, info wire.Info) {
	if info.HasAETH() && p.AETH.IsACK() && (q.sending.HasCredits() || p.AETH.Value() != wire.AckUnlimited) {
		n, given := p.AETH.Credits()
		q.sending.OnCredits(p.PSN, p.AETH.MSN, n, given)
	}
	marked := q.marked(p)
	if len(p.Payload) > 0 && operation(p.Opcode) == wire.RCAck && !marked {
		q.e.Counters.Malformed.Add(1)
		return
	}
	if !q.sending.OnResponse(p.PSN, marked) {
		return
	}
	switch {
	case operation(p.Opcode) == wire.RCAck:
		q.acknowledge(p)
	case operation(p.Opcode) == wire.RCAtomicAck:
		q.atomicResponse(p)
	case info.Read():
		q.readResponse(p, info)
	}
}

// marked reports whether a response has the connection's mark: the peer then keeps packets after a
// gap.
func (q *qp) marked(p *wire.Packet) bool { return q.mark != 0 && p.Reserved7 == q.mark.Newest() }

// acknowledge handles ACK, NAK and RNR NAK.
func (q *qp) acknowledge(p *wire.Packet) {
	s, c := &q.sending, &q.e.Counters
	if p.AETH.IsACK() {
		q.act(s.OnAck(wire.PSNAdd(p.PSN, 1)))
		return
	}
	q.traceNAK(trace.NAKReceived, p.AETH.Syndrome, p.PSN)
	if p.AETH.IsRNR() {
		o, isNew := s.OnRNR(p.PSN, wire.RNRTimer(p.AETH.Value()))
		if isNew {
			c.RcvdRNR.Add(1)
			q.count().rcvdRNR++
		}
		if o.Action == send.RNRRetriesExceeded {
			c.RNRRetryExceeded.Add(1)
			q.failRequest(&o, verbs.WCRNRRetryExcErr)
		} else {
			q.act(o)
		}
		return
	}
	if status, fatal := refusal(&p.AETH); fatal {
		o := s.OnRefusal(p.PSN)
		q.failRequest(&o, status)
		return
	}
	var o send.Outcome
	var isNew bool
	if len(p.Payload) > 0 && p.AETH.Syndrome == wire.NakPSNSeq {
		o, isNew = s.OnSelectiveNAK(p.PSN, p.Payload)
	} else {
		o, isNew = s.OnSequenceNAK(p.PSN)
	}
	if isNew {
		c.RcvdSeqErr.Add(1)
	}
	q.act(o)
}

// refusal returns the status of a request after a NAK. fatal is false if the request may be
// retransmitted.
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
	return verbs.WCBadRespErr, true
}

// failResponse fails the connection because of a request's response. Requests complete in order. If
// earlier requests are incomplete, the response is therefore dropped instead, as if it were lost.
func (q *qp) failResponse(request int, status verbs.WCStatus) {
	if request == 0 {
		q.failSend(status)
	}
}

// readResponse places one packet of READ data. Its PSN determines its offset, so the first packet
// of a repeated READ may be First or Middle: rxe sends Middle, others send First.
func (q *qp) readResponse(p *wire.Packet, info wire.Info) {
	i, packet, o, ok := q.sending.OnAnswer(p.PSN)
	if !q.act(o) || !ok {
		return
	}
	wr := q.h.Send(i)
	if info.HasAETH() && !p.AETH.IsACK() {
		q.failResponse(i, verbs.WCBadRespErr)
		return
	}
	if emptyAnswer(wr.Opcode) && info.Only() && len(p.Payload) == 0 {
		q.act(q.sending.OnAnswered(p.PSN))
		return
	}
	off := uint64(packet) * uint64(q.mtu)
	if wr.Opcode != verbs.RDMARead || uint64(len(p.Payload)) != min(wr.Length()-off, uint64(q.mtu)) {
		q.failResponse(i, verbs.WCBadRespErr) // this may be in the middle of a SEND or WRITE
		return
	}
	if status := q.e.regions.ScatterResponse(p.Payload, q.h, wr, off, p.PSN); status != verbs.WCSuccess {
		q.failResponse(i, status)
		return
	}
	q.act(q.sending.OnAnswered(p.PSN))
}

// atomicResponse places the previous value of an atomic.
func (q *qp) atomicResponse(p *wire.Packet) {
	i, _, o, ok := q.sending.OnAnswer(p.PSN)
	if !q.act(o) || !ok {
		return
	}
	wr := q.h.Send(i)
	if !isAtomic(wr.Opcode) || !p.AETH.IsACK() {
		q.failResponse(i, verbs.WCBadRespErr)
		return
	}
	var orig [8]byte
	binary.NativeEndian.PutUint64(orig[:], p.AtomicAckETH.Orig)
	if status := q.e.regions.ScatterResponse(orig[:], q.h, wr, 0, p.PSN); status != verbs.WCSuccess {
		q.failResponse(i, status)
		return
	}
	q.act(q.sending.OnAnswered(p.PSN))
}
