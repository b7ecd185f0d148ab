package roce

// On the path: what the peer's requests are answered with. Package receive says what is due: READ
// responses and results of atomics, in the order of their requests, and then one acknowledgement or
// NAK for all the rest. (IBTA Vol 1 §9.7.5.1.3)

import (
	"github.com/softrnic/softrnic/rdmatransport/internal/roce/receive"
	"github.com/softrnic/softrnic/rdmatransport/roce/wire"
	"github.com/softrnic/softrnic/rdmatransport/trace"
	"github.com/softrnic/softrnic/verbs"
)

// respond sends what is due: responses, up to a burst, and then an acknowledgement of all. What is
// left after a burst follows when the timer fires.
func (q *qp) respond() {
	s := &q.receiving
	if s.Responds() && !q.sendResponses() {
		return
	}
	owed := s.Owed()
	switch owed {
	case receive.Nothing:
		return
	case receive.Ack:
		q.sendAck(wire.AETH{Syndrome: wire.AckUnlimited, MSN: s.MSN()}, s.AckPSN())
	case receive.SACK:
		q.sendSACK()
	default:
		q.sendNAK(s.NAK())
	}
	if s.OnAcknowledged(owed); owed == receive.LastNAK {
		q.failRecv(verbs.WCStatus(s.Reason()))
	}
}

// sendResponses sends the pending responses. It returns false if some are left for now, or the
// connection has ended.
func (q *qp) sendResponses() bool {
	s := &q.receiving
	if s.Pausing() || q.crowded() {
		return false
	}
	sent := uint32(0)
	for r := s.Pending(); r != nil; r = s.Pending() {
		if r.Deferred && !q.executeDeferred(r) {
			return false
		}
		for most := s.Burst(r); r.Packets > 0 && sent < most; {
			if !q.pass() {
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

// sendResponseRun sends the packets in the middle of a READ's response, up to most of them, whose
// memory is looked for once. It returns how many; the next one, if there is one, is for
// sendResponse: one at either end, or whose memory cannot be read.
func (q *qp) sendResponseRun(r *receive.Response, most uint32) (sent uint32) {
	if r.Kind != receive.Read || r.First() || q.pace != nil {
		return 0
	}
	middles := min(r.Packets-1, most) // the last packet is not in the middle
	if middles < 2 {
		return 0
	}
	q.scopeTo(r)
	from, ok := q.region(r.RETH.RKey, r.RETH.Addr, uint64(middles)*uint64(q.mtu), verbs.AccessRemoteRead)
	if !ok {
		return 0
	}
	sent = q.sendMiddles(wire.RCReadResponseMiddle, r.PSN, middles, from)
	q.receiving.OnResponsePackets(r, sent, sent*q.mtu)
	return sent
}

// scopeTo has the regions of a response's protection domain meant, which on an XRC target is its
// request's.
func (q *qp) scopeTo(r *receive.Response) {
	if q.service == wire.XRC {
		q.resp.pd, _ = r.Owner.(*verbs.PD)
	}
}

// sendResponse sends the next packet of a response. It returns false if the region is gone, or
// faults, which ends the connection.
func (q *qp) sendResponse(r *receive.Response) bool {
	p := wire.Packet{BTH: wire.BTH{PSN: r.PSN}, AETH: wire.AETH{Syndrome: wire.AckUnlimited, MSN: r.MSN}}
	n := uint32(0)
	switch r.Kind {
	case receive.Atomic:
		p.Opcode = wire.RCAtomicAck
		p.AtomicAckETH.Orig = r.Orig
		q.sendHeader(&p)
	case receive.Empty:
		p.Opcode = wire.RCReadResponseOnly
		q.sendHeader(&p)
	case receive.Read:
		q.scopeTo(r)
		n = min(r.RETH.Length, q.mtu)
		p.Opcode = readOpcode(r.First(), r.Packets == 1)
		data, ok := q.region(r.RETH.RKey, r.RETH.Addr, uint64(n), verbs.AccessRemoteRead)
		if !ok {
			return q.giveUp(wire.NakRemoteAccess, r.PSN, verbs.WCRemAccessErr)
		}
		if header, b := q.datagram(&p, int(n)); b != nil {
			h := p.EncodeHeader(b)
			var i icrc
			sum := i.begin(header, b[:h])
			if !data.Read(b[h:], sum) {
				q.out.Drop()
				return q.giveUp(wire.NakRemoteOperational, r.PSN, verbs.WCRemOpErr)
			}
			q.sealCopied(header, b, h+int(n), sum)
		}
	}
	q.receiving.OnResponsePackets(r, 1, n)
	return true
}

// giveUp ends the connection over a READ that was accepted and cannot be answered to its end.
func (q *qp) giveUp(nak uint8, psn uint32, status verbs.WCStatus) bool {
	q.receiving.DropPending()
	q.sendNAK(wire.AETH{Syndrome: nak, MSN: q.receiving.MSN()}, psn)
	q.failRecv(status)
	return false
}

// readOpcode is the opcode of a READ response. The first packet of a repetition from the middle is
// a Middle: rxe's requester insists on it, and others go by the PSN.
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

// sendAck sends an acknowledge packet.
func (q *qp) sendAck(a wire.AETH, psn uint32) {
	p := wire.Packet{BTH: wire.BTH{Opcode: wire.RCAck, PSN: psn}, AETH: a}
	q.sendHeader(&p)
}

// sendSACK tells the peer what is kept behind a gap, and so what is missing.
func (q *qp) sendSACK() {
	s := &q.receiving
	p := wire.Packet{
		BTH:  wire.BTH{Opcode: wire.RCAck, PSN: s.PSN()},
		AETH: wire.AETH{Syndrome: wire.NakPSNSeq, MSN: s.MSN()},
	}
	q.traceNAK(trace.NAKSent, p.AETH.Syndrome, p.PSN)
	sack := s.SACK()
	if header, b := q.datagram(&p, len(sack)); b != nil {
		copy(b[p.EncodeHeader(b):], sack)
		q.seal(header, b)
	}
}

// failRecv ends the connection on the responder's side: the receive request that a broken message
// had taken completes with status, everything else is flushed. Where no request was taken, an event
// says what the peer did (IBTA Vol 1 §11.6.3.2).
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
