package rocetransport

// Send path of responses and acknowledgements. Package receive selects them: READ responses and
// results of atomics in the order of their requests, and then one acknowledgement or NAK for the
// rest. (IBTA Vol 1 §9.7.5.1.3)

import (
	"math"

	"github.com/softrnic/softrnic/rdmatransport/internal/rocetransport/receive"
	"github.com/softrnic/softrnic/rdmatransport/trace"
	"github.com/softrnic/softrnic/rdmatransport/wire"
	"github.com/softrnic/softrnic/verbs"
)

// respond sends due responses, up to a burst, and then one acknowledgement. The rest after a burst
// follows when the timer fires. While data has not arrived in a backend, nothing is answered.
func (q *qp) respond() {
	s := &q.receiving
	if q.h.Placing() || s.Responds() && !q.sendResponses() {
		return
	}
	owed := s.Owed()
	switch owed {
	case receive.Nothing:
		return
	case receive.Ack:
		q.sendAck(wire.AETH{Syndrome: wire.AckUnlimited, MSN: s.MSN()}, s.AckPSN())
	case receive.SACK:
		q.sendSACK(s.SACK())
	case receive.TrimmedSACK:
		q.sendSACK(s.TrimmedSACK())
	default:
		q.sendNAK(s.NAK())
	}
	if s.OnAcknowledged(owed); owed == receive.LastNAK {
		q.failRecv(verbs.WCStatus(s.Reason()))
	}
	if owed == receive.SACK && s.Owed() == receive.TrimmedSACK {
		q.respond()
	}
}

// sendResponses sends pending responses. It returns false if some must wait, or the connection has
// ended.
func (q *qp) sendResponses() bool {
	s := &q.receiving
	if s.Pausing() || q.blocked() {
		return false
	}
	sent := uint32(0)
	for r := s.Pending(); r != nil; r = s.Pending() {
		if r.Deferred && !q.executeDeferred(r) {
			return false
		}
		most := s.Burst(r)
		if q.hasQueue() {
			most = math.MaxUint32
		}
		for r.Packets > 0 && sent < most {
			if q.full() || !q.rateAllows() {
				return false
			}
			n := q.sendResponseRun(r, most-sent)
			if n == 0 {
				if !q.sendResponse(r) {
					return false
				}
				n = 1
			}
			sent += n
		}
		if r.Packets > 0 {
			s.OnBurst()
			return false
		}
		s.OnResponseSent()
	}
	return true
}

// sendResponseRun sends up to most packets in the middle of a READ response, with a single lookup
// of the memory. It returns their number. sendResponse sends all other packets: those at either
// end, and those whose memory cannot be read.
func (q *qp) sendResponseRun(r *receive.Response, most uint32) (sent uint32) {
	if r.Kind != receive.Read || r.First() || q.pace != nil || q.hasQueue() {
		return 0
	}
	middles := min(r.Packets-1, most) // the last packet is not in the middle
	if middles < 2 {
		return 0
	}
	q.setScope(r)
	from, ok := q.region(r.RETH.RKey, r.RETH.Addr, uint64(middles)*uint64(q.mtu), verbs.AccessRemoteRead)
	if !ok || from.InBackend() {
		return 0
	}
	sent = q.sendMiddles(wire.RCReadResponseMiddle, r.PSN, middles, from)
	q.receiving.OnResponsePackets(r, sent, sent*q.mtu)
	q.countResponse(r, sent*q.mtu)
	return sent
}

// countResponse counts n bytes of a READ response that were sent, and the READ after the last.
func (q *qp) countResponse(r *receive.Response, n uint32) {
	switch {
	case r.Replay():
	case r.Packets == 0:
		q.h.CountRemote(verbs.CompCntrRemoteRead, 1, uint64(n))
	default:
		q.h.CountRemote(verbs.CompCntrRemoteRead, 0, uint64(n))
	}
}

// setScope selects the protection domain of a response. On an XRC target, it is that of its
// request.
func (q *qp) setScope(r *receive.Response) {
	if q.service == wire.XRC {
		q.resp.pd, _ = r.Owner.(*verbs.PD)
	}
}

// sendResponse sends the next packet of a response. It returns false if the region is gone or
// faults, which ends the connection, or if its backend has not been read yet.
func (q *qp) sendResponse(r *receive.Response) bool {
	p := wire.Packet{BTH: wire.BTH{PSN: r.PSN}, AETH: wire.AETH{Syndrome: wire.AckUnlimited, MSN: r.MSN}}
	n, fetched := uint32(0), false
	switch r.Kind {
	case receive.Atomic:
		p.Opcode = wire.RCAtomicAck
		p.AtomicAckETH.Orig = r.Orig
		q.sendHeader(&p)
	case receive.Empty:
		p.Opcode = wire.RCReadResponseOnly
		q.sendHeader(&p)
	case receive.Read:
		q.setScope(r)
		n = min(r.RETH.Length, q.mtu)
		p.Opcode = readOpcode(r.First(), r.Packets == 1)
		data, ok := q.region(r.RETH.RKey, r.RETH.Addr, uint64(n), verbs.AccessRemoteRead)
		if !ok {
			return q.failPending(wire.NakRemoteAccess, r.PSN, verbs.WCRemAccessErr)
		}
		if fetched = data.InBackend(); fetched {
			var state verbs.Fetched
			if data, state = data.Fetch(q.h, int(r.RETH.Length-n)); state == verbs.FetchFailed {
				return q.failPending(wire.NakRemoteOperational, r.PSN, verbs.WCRemOpErr)
			} else if state == verbs.FetchPending {
				return false
			}
		}
		if header, b := q.datagram(&p, int(n)); b != nil {
			h := p.EncodeHeader(b)
			var i icrc
			sum := i.begin(header, b[:h])
			if !data.Read(b[h:], sum) {
				q.out.Drop()
				return q.failPending(wire.NakRemoteOperational, r.PSN, verbs.WCRemOpErr)
			}
			q.sealCopied(header, b, h+int(n), sum)
		}
	}
	q.receiving.OnResponsePackets(r, 1, n)
	if r.Kind == receive.Read {
		q.countResponse(r, n)
		if fetched && r.Packets == 0 {
			q.h.EndFetch()
		}
	}
	return true
}

// failPending ends the connection if an accepted request cannot be answered in full.
func (q *qp) failPending(nak uint8, psn uint32, status verbs.WCStatus) bool {
	if q.receiving.Pending().Kind == receive.Read {
		q.h.CountRemoteError(verbs.CompCntrRemoteRead)
	}
	q.receiving.DropPending()
	q.sendNAK(wire.AETH{Syndrome: nak, MSN: q.receiving.MSN()}, psn)
	q.failRecv(status)
	return false
}

// readOpcode returns the opcode of a READ response. A response that repeats the end of a READ
// begins with a Middle: rxe's requester requires it, and others use only the PSN.
func readOpcode(first, last bool) wire.Opcode {
	switch {
	case first && last:
		return wire.RCReadResponseOnly
	case first:
		return wire.RCReadResponseFirst
	case last:
		return wire.RCReadResponseLast
	}
	return wire.RCReadResponseMiddle
}

// sendNAK sends a NAK or an RNR NAK.
func (q *qp) sendNAK(a wire.AETH, psn uint32) {
	q.traceNAK(trace.NAKSent, a.Syndrome, psn)
	q.sendAck(a, psn)
}

// sendAck sends an acknowledgement packet.
func (q *qp) sendAck(a wire.AETH, psn uint32) {
	p := wire.Packet{BTH: wire.BTH{Opcode: wire.RCAck, PSN: psn}, AETH: a}
	q.sendHeader(&p)
}

// sendSACK reports the packets kept after a gap, or which one was trimmed.
func (q *qp) sendSACK(sack wire.Sack) {
	s := &q.receiving
	p := wire.Packet{
		BTH:  wire.BTH{Opcode: wire.RCAck, PSN: s.PSN()},
		AETH: wire.AETH{Syndrome: wire.NakPSNSeq, MSN: s.MSN()},
	}
	q.traceNAK(trace.NAKSent, p.AETH.Syndrome, p.PSN)
	if header, b := q.datagram(&p, len(sack)); b != nil {
		copy(b[p.EncodeHeader(b):], sack)
		q.seal(header, b)
	}
}

// failRecv ends the connection on the responder's side. The receive request of a broken message
// completes with status, and all others are flushed. Without a receive request, an event reports
// the error (IBTA Vol 1 §11.6.3.2).
func (q *qp) failRecv(status verbs.WCStatus) {
	switch {
	case q.resp.taken:
		wc := verbs.WC{Status: status, Opcode: verbs.WCRecv}
		q.h.CompleteRecv(&wc, true)
	case status == verbs.WCRemAccessErr:
		q.h.Event(verbs.EventQPAccessErr)
	default:
		q.h.Event(verbs.EventQPReqErr)
	}
	q.fail()
}
