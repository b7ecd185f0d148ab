package roce

// On the path: the incoming half. A request is checked, in the order of IBTA Vol 1 §9.7.4, and executed before the next
// packet is looked at; what is to be answered is left to response.go.

import (
	"time"

	"github.com/softrnic/softrnic/rdmatransport/internal/memory"
	"github.com/softrnic/softrnic/rdmatransport/roce/wire"
	"github.com/softrnic/softrnic/verbs"
)

// responder is the state of a QP's receive side on the wire.
type responder struct {
	psn uint32 // the PSN expected next
	msn uint32 // messages completed, 24 bits

	recvOff uint64 // bytes of the open message placed in its receive request
	write   wire.RETH
	written uint32 // bytes of it placed at write.Addr

	srqn uint32    // XRC: the SRQ that the open message is for
	pd   *verbs.PD // and of the SRQ of what is being carried out or answered

	early *early // nil before the first packet that came too early

	// What is owed to the requester; see response.go.
	replies *replies // nil before the first READ, atomic or the like
	resume  time.Duration
	rnrEnd  time.Duration // when the time is over that an RNR NAK asked for
	ackPSN  uint32        // newest PSN of a SEND or WRITE: only responses acknowledge READs and atomics
	burst   uint32        // responses that are sent at once, where READs have shown how many the peer can take; or 0
	rnrTop  uint32        // one past the highest PSN that has come since an RNR NAK, or psn
	depth   uint8         // max_dest_rd_atomic
	ackDue  bool
	sackDue bool  // the peer is to be told of what is held
	nak     uint8 // syndrome that is due once all before it is answered; 0 is none
	fatal   bool  // nak ends the connection, with status
	status  verbs.WCStatus

	message msgKind // the message that a First packet opened
	taken   bool    // it has taken a receive request
	heard   bool    // a request was executed or refused
	nakSent bool    // a sequence or RNR NAK went out and what it asked for has not come
	rnr     bool    // it was an RNR NAK: what was in flight then says nothing about what it asked for
	marks   bool    // the peer marks its requests: those without are not its
}

// msgKind is what a message of several packets is.
type msgKind uint8

const (
	noMessage msgKind = iota
	sendMessage
	writeMessage
)

// request handles one request packet.
func (q *qp) request(p *wire.Packet, info wire.Info) {
	r := &q.resp
	if r.fatal {
		return
	}
	m := q.marking(p)
	if m == unmarked && r.marks {
		q.e.Counters.Suspect.Add(1)
		return
	}
	switch d := wire.PSNDiff(p.PSN, r.psn); {
	case d < 0:
		q.e.Counters.DuplicateRequest.Add(1)
		q.duplicate(p, info)
		return
	case d > 0:
		if m != unmarked && q.cameEarly(p, m) {
			return
		}
		if !r.nakSent || r.rnr && q.repeatedWithout(p.PSN) {
			q.e.Counters.OutOfSeqRequest.Add(1)
			if r.early != nil {
				r.early.gap = !r.nakSent
			}
			q.nakSequence()
		} else if m != unmarked && p.AckReq && !r.rnr {
			q.nakSequence() // a peer that marks its packets probes with the last, and does not go back twice for one loss
		}
		return
	}
	e := r.early
	if m != unmarked {
		r.marks = true
		if e != nil && e.ahead {
			q.cameBehind(p, m)
		}
	}
	r.nakSent, r.rnr = false, false
	r.nak = 0
	turn := r.psn
	q.execute(p, info)
	if e != nil {
		e.gap = false
		if e.held != nil {
			q.executeHeld(turn)
		}
	}
}

// nakSequence asks the peer to go back to the packet that is expected.
func (q *qp) nakSequence() {
	r := &q.resp
	r.nakSent, r.rnr = true, false
	r.nak = wire.NakPSNSeq
}

// execute handles the request packet that is expected.
func (q *qp) execute(p *wire.Packet, info wire.Info) {
	r := &q.resp
	r.hear(q.h)

	if !r.inSequence(p, info) || !q.permitted(info) {
		q.refuse(wire.NakInvalidRequest, verbs.WCRemInvReqErr)
		return
	}
	if q.service == wire.XRC && !q.selectSRQ(p) {
		q.refuse(wire.NakRemoteAccess, verbs.WCRemAccessErr)
		return
	}
	var done bool
	switch {
	case info.Send():
		done = q.execSend(p, info)
	case info.Write():
		done = q.execWrite(p, info)
	case info.Read():
		done = q.execRead(p)
	case info.Atomic():
		done = q.execAtomic(p)
	case info.AtomicWrite():
		done = q.execAtomicWrite(p)
	case info.Flush():
		done = q.execFlush(p)
	}
	if done && p.AckReq {
		r.ackDue = true
	}
}

// hear notes the peer's first request: an application that waits in RTR is told.
func (r *responder) hear(h verbs.QPHandle) {
	if !r.heard {
		r.heard = true
		if h.State() == verbs.StateRTR {
			h.Event(verbs.EventCommEst)
		}
	}
}

// inSequence checks that the packet continues the open message, or opens one where none is open (C9-66 ff.).
func (r *responder) inSequence(p *wire.Packet, info wire.Info) bool {
	if !info.Known() {
		return false
	}
	switch r.message {
	case sendMessage:
		return info.Send() && !info.First()
	case writeMessage:
		return info.Write() && !info.First()
	}
	return info.First()
}

// permitted checks the operation against the QP's access flags.
func (q *qp) permitted(info wire.Info) bool {
	flags := q.h.Attr().QPAccessFlags
	switch {
	case info.Write():
		return flags&verbs.AccessRemoteWrite != 0
	case info.Read():
		return flags&verbs.AccessRemoteRead != 0 && q.resp.depth > 0
	case info.Atomic():
		return flags&verbs.AccessRemoteAtomic != 0 && q.resp.depth > 0
	case info.AtomicWrite():
		return flags&verbs.AccessRemoteWrite != 0 && q.resp.depth > 0
	case info.Flush(): // which right it needs, execFlush knows
		return q.resp.depth > 0
	}
	return true
}

// validLength checks a data packet's size: full unless it is the last, and then not empty unless it is the only one
// (C9-93, C9-94).
func (q *qp) validLength(p *wire.Packet, info wire.Info) bool {
	n := uint32(len(p.Payload))
	switch {
	case !info.Last():
		return n == q.mtu
	case !info.First():
		return n > 0 && n <= q.mtu
	}
	return n <= q.mtu
}

// execSend places a SEND packet into the oldest receive request.
func (q *qp) execSend(p *wire.Packet, info wire.Info) bool {
	r := &q.resp
	if !q.validLength(p, info) {
		return q.refuse(wire.NakInvalidRequest, verbs.WCRemInvReqErr)
	}
	wr := q.h.Recv()
	if wr == nil {
		return q.notReady()
	}
	r.taken = true
	if info.First() {
		r.recvOff = 0
	}
	if r.recvOff+uint64(len(p.Payload)) > wr.Length() {
		return q.refuse(wire.NakInvalidRequest, verbs.WCLocLenErr)
	}
	if status := q.e.regions.Scatter(p.Payload, q.scope(), wr.SGList, r.recvOff); status != verbs.WCSuccess {
		return q.refuse(wire.NakRemoteOperational, status)
	}
	r.recvOff += uint64(len(p.Payload))
	r.message = sendMessage
	if info.Last() {
		r.message = noMessage
		wc := verbs.WC{Opcode: verbs.WCRecv, ByteLen: uint32(r.recvOff)}
		if info.HasIETH() {
			if q.e.regions.InvalidateWindow(q.h, p.InvalidateRKey) != memory.Allowed {
				return q.refuse(wire.NakRemoteAccess, verbs.WCRemInvReqErr)
			}
			wc.Flags |= verbs.WCWithInv
			wc.InvalidatedRKey = p.InvalidateRKey
		}
		q.completeRecv(p, info, &wc)
		r.endMessage()
	}
	r.ackPSN = r.psn
	r.psn = wire.PSNAdd(r.psn, 1)
	return true
}

// execWrite places a WRITE packet. The key is looked up for every packet: a region that is deregistered in the middle
// of a message is not written to any more.
func (q *qp) execWrite(p *wire.Packet, info wire.Info) bool {
	r := &q.resp
	n := uint64(len(p.Payload))
	if info.HasImmDt() {
		if q.h.Recv() == nil {
			return q.notReady()
		}
		r.taken = true
	}
	if !q.validLength(p, info) {
		return q.refuse(wire.NakInvalidRequest, verbs.WCRemInvReqErr)
	}
	if info.First() {
		// The whole range is checked before the first byte is placed.
		if _, ok := q.region(p.RETH.RKey, p.RETH.Addr, uint64(p.RETH.Length), verbs.AccessRemoteWrite); !ok {
			return q.refuse(wire.NakRemoteAccess, verbs.WCRemAccessErr)
		}
		r.write, r.written = p.RETH, 0
	}
	left := uint64(r.write.Length - r.written)
	if n > left || info.Last() && n != left || !info.Last() && n == left || r.write.Length > MaxMessage {
		return q.refuse(wire.NakInvalidRequest, verbs.WCRemInvReqErr)
	}
	to, ok := q.region(r.write.RKey, r.write.Addr+uint64(r.written), n, verbs.AccessRemoteWrite)
	if !ok {
		return q.refuse(wire.NakRemoteAccess, verbs.WCRemAccessErr)
	}
	if !to.Write(p.Payload) {
		return q.refuse(wire.NakRemoteOperational, verbs.WCRemOpErr)
	}
	r.written += uint32(n)
	r.message = writeMessage
	if info.Last() {
		r.message = noMessage
		if info.HasImmDt() {
			wc := verbs.WC{Opcode: verbs.WCRecvRDMAWithImm, ByteLen: r.write.Length}
			q.completeRecv(p, info, &wc)
		}
		r.endMessage()
	}
	r.ackPSN = r.psn
	r.psn = wire.PSNAdd(r.psn, 1)
	return true
}

// completeRecv completes the receive request that the message consumed.
func (q *qp) completeRecv(p *wire.Packet, info wire.Info, wc *verbs.WC) {
	if info.HasImmDt() {
		wc.Flags |= verbs.WCWithImm
		wc.ImmData = p.Imm
	}
	wc.SrcQP = q.dest
	q.recvs++
	q.resp.taken = false
	q.h.CompleteRecv(wc, p.Solicited)
}

// execRead checks a READ and queues its responses, which take as many PSNs as there are packets.
func (q *qp) execRead(p *wire.Packet) bool {
	r := &q.resp
	if p.RETH.Length > MaxMessage || r.full() {
		return q.refuse(wire.NakInvalidRequest, verbs.WCRemInvReqErr)
	}
	if _, ok := q.region(p.RETH.RKey, p.RETH.Addr, uint64(p.RETH.Length), verbs.AccessRemoteRead); !ok {
		return q.refuse(wire.NakRemoteAccess, verbs.WCRemAccessErr)
	}
	q.answer(job{kind: readJob, psn: p.PSN, packets: q.packets(p.RETH.Length), reth: p.RETH})
	return false
}

// execAtomic carries out an atomic, once: its result is kept for duplicates.
func (q *qp) execAtomic(p *wire.Packet) bool {
	if q.resp.full() {
		return q.refuse(wire.NakInvalidRequest, verbs.WCRemInvReqErr)
	}
	return q.modifyWord(job{kind: atomicJob, psn: p.PSN, packets: 1}, operation(p.Opcode), &p.AtomicETH, verbs.AccessRemoteAtomic)
}

// answer ends a READ or atomic that is new. Its responses acknowledge it, and all that came before it.
func (q *qp) answer(j job) {
	r := &q.resp
	r.endMessage()
	j.msn, j.pd = r.msn, r.pd
	r.remember(j)
	r.insert(j)
	r.psn = wire.PSNAdd(r.psn, j.packets)
	r.ackDue = false
}

func (r *responder) endMessage() { r.msn = wire.PSNAdd(r.msn, 1) }

// packets is how many packets carry n bytes.
func (q *qp) packets(n uint32) uint32 { return max(1, (n+q.mtu-1)/q.mtu) }

// region finds the memory that a peer names. Nothing is needed for zero bytes (C9-88).
func (q *qp) region(rkey uint32, addr, n uint64, need verbs.Access) (memory.Span, bool) {
	b, denial := q.e.regions.RemoteIn(q.scope(), q.h, rkey, addr, n, need)
	return b, denial == memory.Allowed
}

// notReady asks the requester to come again: no receive request is posted.
func (q *qp) notReady() bool {
	if q.service == wire.UC {
		q.e.Counters.NoReceive.Add(1)
		return q.dropMessage()
	}
	q.e.Counters.SentRNR.Add(1)
	r := &q.resp
	r.nak = wire.RNRNak | q.h.Attr().MinRNRTimer
	r.nakSent, r.rnr, r.rnrTop = true, true, r.psn
	r.rnrEnd = q.e.now() + wire.RNRTimer(q.h.Attr().MinRNRTimer)
	return false
}

// repeatedWithout tells that a packet behind the one that an RNR NAK was about shows that the requester has sent that
// again, and it was lost: if the requester has gone back, or has nothing in flight from before, as the time is over that it
// was asked to wait for.
func (q *qp) repeatedWithout(psn uint32) bool {
	r := &q.resp
	switch d := wire.PSNDiff(psn, r.rnrTop); {
	case r.nak != 0: // the RNR NAK is not sent yet
	case d < -1:
		return true
	case d == -1 || r.rnrTop == r.psn: // the former may be one packet that came twice
		if q.e.now() >= r.rnrEnd {
			return true
		}
	}
	r.rnrTop = wire.PSNAdd(psn, 1)
	return false
}

// refuse answers a request that ends the connection. A receive request that the message had taken completes with
// status; the others are flushed once the NAK is out. On UC only what is wrong with the request itself ends the
// connection.
func (q *qp) refuse(nak uint8, status verbs.WCStatus) bool {
	r := &q.resp
	if q.service == wire.UC {
		if nak == wire.NakRemoteOperational {
			q.failRecv(status)
		} else if status == verbs.WCLocLenErr {
			q.e.Counters.TooLong.Add(1)
		}
		return q.dropMessage()
	}
	r.nak = nak
	r.fatal = true
	r.status = status
	return false
}

// duplicate answers what was executed before: data is acknowledged again, READs are read again, all else is answered with
// the result it had (C9-104 ff.).
func (q *qp) duplicate(p *wire.Packet, info wire.Info) {
	r := &q.resp
	if !info.Answered() {
		if info.Known() {
			r.ackDue = true
		}
		return
	}
	if r.replies == nil {
		return
	}
	history := r.replies.history
	for i := range history {
		// The newest first: PSNs wrap, and an old one may have come round.
		old := &history[(r.replies.oldest+len(history)-1-i)%len(history)]
		into := wire.PSNDiff(p.PSN, old.psn)
		if into < 0 || into >= int32(old.packets) {
			continue
		}
		if old.waits() {
			return // it will be answered
		}
		if old.kind == atomicJob && info.Atomic() || old.kind == emptyJob && (info.AtomicWrite() || info.Flush()) {
			again := *old
			again.replay, again.msn = true, r.msn
			r.insert(again)
		}
		if old.kind == readJob && info.Read() {
			// The same READ or a later part of it. (rxe numbers and checks it so, too.)
			from := uint64(into) * uint64(q.mtu)
			if !r.willAnswer(p.PSN, q.packets(p.RETH.Length)) && p.RETH.RKey == old.reth.RKey && p.RETH.Addr == old.reth.Addr+from &&
				uint64(p.RETH.Length) <= uint64(old.reth.Length)-from {
				if into > 0 && q.marking(p) == unmarked {
					q.missed(old)
				}
				r.insert(job{
					kind: readJob, replay: true, partial: into > 0,
					psn: p.PSN, packets: q.packets(p.RETH.Length), msn: r.msn, pd: old.pd, reth: p.RETH,
				})
			}
		}
		return
	}
}
