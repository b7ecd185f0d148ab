package rocetransport

// Receive path of requests. Package receive classifies each packet: in order, duplicate or early. A
// packet in order is checked as in IBTA Vol 1 §9.7.4, and executed before the next one. response.go
// sends the answer.

import (
	"github.com/softrnic/softrnic/rdmatransport/internal/memory"
	"github.com/softrnic/softrnic/rdmatransport/internal/rocetransport/receive"
	"github.com/softrnic/softrnic/rdmatransport/wire"
	"github.com/softrnic/softrnic/stack"
	"github.com/softrnic/softrnic/verbs"
)

// msgKind is the kind of a message of several packets.
type msgKind uint8

const (
	noMessage msgKind = iota
	sendMessage
	writeMessage
)

// request handles one request packet.
func (q *qp) request(p *wire.Packet, info wire.Info) {
	o := q.receiving.OnRequest(p)
	if o != receive.InOrder {
		q.e.Counters.count(o)
		if o.Has(receive.Duplicate) {
			q.count().duplicates++
		}
	}
	if o.Has(receive.InOrder) {
		q.execute(p, info)
		if q.receiving.Refused() {
			q.countRefused(info)
		}
		if q.receiving.Keeps() {
			q.executeKept()
		}
	}
}

// count counts unusual outcomes.
func (c *Counters) count(o receive.Outcome) {
	if o.Has(receive.Suspect) {
		c.Suspect.Add(1)
	}
	if o.Has(receive.Gap) {
		c.OutOfSeqRequest.Add(1)
	}
	if o.Has(receive.Duplicate) {
		c.DuplicateRequest.Add(1)
	}
}

// countRefused counts a request that ends the connection.
func (q *qp) countRefused(info wire.Info) {
	switch {
	case info.Write():
		q.h.CountRemoteError(verbs.CompCntrRemoteWrite)
	case info.Read():
		q.h.CountRemoteError(verbs.CompCntrRemoteRead)
	}
}

// executeKept executes early packets that are now in order.
func (q *qp) executeKept() {
	var p wire.Packet
	for q.receiving.NextKept(&p) {
		before := q.resp
		q.execute(&p, p.Opcode.Info())
		if q.receiving.Refused() {
			q.resp = before
			q.receiving.OnKeptRefused()
			q.e.Counters.Suspect.Add(1)
			return
		}
	}
}

// execute handles the expected request packet.
func (q *qp) execute(p *wire.Packet, info wire.Info) {
	r := &q.resp
	r.noteRequest(q.h)

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
		q.receiving.OnAckRequest()
	}
}

// noteRequest records the peer's first request. An application in RTR gets an event.
func (r *responder) noteRequest(h verbs.QPHandle) {
	if !r.gotRequest {
		r.gotRequest = true
		if h.State() == verbs.StateRTR {
			h.Event(verbs.EventCommEst)
		}
	}
}

// inSequence reports whether the packet continues the open message, or begins one if none is open
// (C9-66 ff.).
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
		return flags&verbs.AccessRemoteRead != 0 && q.receiving.Limit() > 0
	case info.Atomic():
		return flags&verbs.AccessRemoteAtomic != 0 && q.receiving.Limit() > 0
	case info.AtomicWrite():
		return flags&verbs.AccessRemoteWrite != 0 && q.receiving.Limit() > 0
	case info.Flush(): // execFlush checks the access flags
		return q.receiving.Limit() > 0
	}
	return true
}

// validLength checks the size of a data packet. All packets except the last are full, and the last
// is empty only if it is the only one (C9-93, C9-94).
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
		r.placed = 0
	}
	if r.placed+uint64(len(p.Payload)) > wr.Length() {
		return q.refuse(wire.NakInvalidRequest, verbs.WCLocLenErr)
	}
	if status := q.e.regions.ScatterRecv(p.Payload, q.h, wr, r.placed, p.PSN); status != verbs.WCSuccess {
		return q.refuse(wire.NakRemoteOperational, status)
	}
	r.placed += uint64(len(p.Payload))
	r.message = sendMessage
	if info.Last() {
		r.message = noMessage
		wc := verbs.WC{Opcode: verbs.WCRecv, ByteLen: uint32(r.placed)}
		if info.HasIETH() {
			if q.e.regions.InvalidateWindow(q.h, p.InvalidateRKey) != memory.Allowed {
				return q.refuse(wire.NakRemoteAccess, verbs.WCRemInvReqErr)
			}
			wc.Flags |= verbs.WCWithInv
			wc.InvalidatedRKey = p.InvalidateRKey
		}
		q.completeRecv(p, info, &wc)
	}
	q.receiving.OnExecuted(info.Last())
	return true
}

// execWrite places a WRITE packet. The key is looked up for each packet: a region that is
// deregistered in the middle of a message is not written any more.
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
			return q.refuse(wire.NakRemoteAccess, r.writeStatus(verbs.WCRemAccessErr))
		}
		r.write, r.placed = p.RETH, 0
	}
	left := uint64(r.write.Length) - r.placed
	fits := n <= left && (n == left) == info.Last()
	if !fits || r.write.Length > MaxMessage {
		return q.refuse(wire.NakInvalidRequest, verbs.WCRemInvReqErr)
	}
	to, ok := q.region(r.write.RKey, r.write.Addr+r.placed, n, verbs.AccessRemoteWrite)
	if !ok {
		return q.refuse(wire.NakRemoteAccess, r.writeStatus(verbs.WCRemAccessErr))
	}
	if !to.Write(p.Payload, q.h, p.PSN) {
		return q.refuse(wire.NakRemoteOperational, r.writeStatus(verbs.WCRemOpErr))
	}
	r.placed += n
	r.message = writeMessage
	if info.Last() {
		r.message = noMessage
		q.h.CountRemote(verbs.CompCntrRemoteWrite, 1, r.placed)
		if info.HasImmDt() {
			wc := verbs.WC{Opcode: verbs.WCRecvRDMAWithImm, ByteLen: r.write.Length}
			q.completeRecv(p, info, &wc)
		}
	}
	q.receiving.OnExecuted(info.Last())
	return true
}

// writeStatus returns the status of a receive request taken by a WRITE with immediate, if the WRITE
// has no access to the memory, or the memory faults (IBTA Vol 1 §11.6.2, Local Access Error).
// Without a receive request it returns status, which an event reports.
func (r *responder) writeStatus(status verbs.WCStatus) verbs.WCStatus {
	if r.taken {
		return verbs.WCLocAccessErr
	}
	return status
}

// receiveRun is the fast path for packets in the middle of a WRITE. It places the packets of a
// frame after p, which was just executed, if they differ from p only in consecutive PSNs. While
// the QP is locked, the checks of request, execute and execWrite would give the same results as for
// p. Only the memory is checked, once for all. receiveRun stops at the first packet that differs,
// which is then received normally.
func (q *qp) receiveRun(d *stack.Datagram, p *wire.Packet) {
	r := &q.resp
	rest, size, mtu := d.Rest(), d.SegmentSize, int(q.mtu)
	// Each packet is counted.
	marked := q.notify != nil && d.TrafficClass&ecnMask == congestionExperienced
	if size != wire.BTHLen+mtu+wire.ICRCLen || r.placed >= uint64(r.write.Length) || marked || !q.receiving.FastPath() {
		return
	}
	// At least one byte remains for the last packet.
	most := int(min(uint64(len(rest)/size), (uint64(r.write.Length)-r.placed-1)/uint64(mtu)))
	if most < 2 {
		return
	}
	to, ok := q.region(r.write.RKey, r.write.Addr+r.placed, uint64(most*mtu), verbs.AccessRemoteWrite)
	if !ok {
		return
	}
	sequence, n := p.Sequence(), 0
	for ; n < most; n++ {
		b := rest[n*size:]
		bth := [wire.BTHLen]byte(b) // a copy, because the sender may change the packet's memory
		if !sequence.Next(&bth) || !to.Part(n*mtu, mtu).Write(b[wire.BTHLen:wire.BTHLen+mtu], q.h, wire.PSNAdd(p.PSN, uint32(n)+1)) {
			break
		}
	}
	if n > 0 {
		d.Skip(n)
		r.placed += uint64(n * mtu)
		s := q.count()
		s.rcvdPkts += uint64(n)
		s.rcvdBytes += uint64(n * mtu)
		q.receiving.OnExecutedRun(uint32(n))
	}
}

// completeRecv completes the message's receive request.
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

// execRead checks a READ and queues its responses, which take one PSN per packet.
func (q *qp) execRead(p *wire.Packet) bool {
	if p.RETH.Length > MaxMessage || q.receiving.Full() {
		return q.refuse(wire.NakInvalidRequest, verbs.WCRemInvReqErr)
	}
	if _, ok := q.region(p.RETH.RKey, p.RETH.Addr, uint64(p.RETH.Length), verbs.AccessRemoteRead); !ok {
		return q.refuse(wire.NakRemoteAccess, verbs.WCRemAccessErr)
	}
	q.answer(receive.Response{Kind: receive.Read, RETH: p.RETH})
	return false
}

// execAtomic executes an atomic once, and keeps its result for duplicates.
func (q *qp) execAtomic(p *wire.Packet) bool {
	if q.receiving.Full() {
		return q.refuse(wire.NakInvalidRequest, verbs.WCRemInvReqErr)
	}
	return q.modifyWord(receive.Atomic, operation(p.Opcode), &p.AtomicETH, verbs.AccessRemoteAtomic)
}

// answer accepts a READ, an atomic or the like. Its response acknowledges it and all earlier
// requests.
func (q *qp) answer(r receive.Response) {
	if q.service == wire.XRC && !r.Deferred {
		r.Owner = q.resp.pd
	}
	q.receiving.OnAccepted(&r)
}

// packets returns the number of packets for n bytes.
func (q *qp) packets(n uint32) uint32 { return max(1, (n+q.mtu-1)/q.mtu) }

// region returns the memory that a peer names. Zero bytes need no region (C9-88).
func (q *qp) region(rkey uint32, addr, n uint64, need verbs.Access) (memory.Span, bool) {
	b, denial := q.e.regions.RemoteIn(q.scope(), q.h, rkey, addr, n, need)
	return b, denial == memory.Allowed
}

// notReady asks the requester to retry later, as no receive request is posted.
func (q *qp) notReady() bool {
	if q.service == wire.UC {
		q.e.Counters.NoReceive.Add(1)
		return q.dropMessage()
	}
	q.e.Counters.SentRNR.Add(1)
	q.receiving.OnNotReady(wire.RNRNak | q.h.Attr().MinRNRTimer)
	return false
}

// refuse ends the connection because of a request. After the NAK is sent, the message's receive
// request completes with status, and all others are flushed. A UC QP sends no NAK and drops the
// message. Only an error of the UC QP's own memory ends its connection.
func (q *qp) refuse(nak uint8, status verbs.WCStatus) bool {
	if q.service == wire.UC {
		if nak == wire.NakRemoteOperational {
			q.failRecv(status)
		} else if status == verbs.WCLocLenErr {
			q.e.Counters.TooLong.Add(1)
		}
		return q.dropMessage()
	}
	q.receiving.OnRefused(nak, uint8(status))
	return false
}
