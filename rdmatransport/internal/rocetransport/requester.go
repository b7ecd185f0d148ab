package rocetransport

// Send path of requests. Work requests become packets on the goroutine that posted them, or on the
// one that received the acknowledgement that opened the window. (IBTA Vol 1 §9.7.3, §9.7.5)

import (
	"github.com/softrnic/softrnic/rdmatransport/internal/rocetransport/send"
	"github.com/softrnic/softrnic/rdmatransport/wire"
	"github.com/softrnic/softrnic/verbs"
)

// transmit sends the packets that the window, the peer's resources and fences allow.
func (q *qp) transmit() {
	s := &q.sending
	if q.h.SendLen() == 0 {
		return
	}
	q.describe()
	s.Uncork()
	if q.blocked() {
		return
	}
	s.DetectLosses()
	in := q.settings()
	var b send.Burst
	for {
		if in &^= send.Open; q.out != nil {
			in |= send.Open
		}
		switch s.Next(in, &b) {
		case send.Wait:
			return
		case send.Transmit:
			if !q.sendBurst(&b) || b.Final {
				return
			}
		case send.ExecuteLocal:
			if status := q.executeLocal(q.h.Send(b.Request)); status != verbs.WCSuccess {
				s.Fail(&b, uint8(status))
			} else {
				q.complete(s.LocalExecuted().Completed)
			}
		case send.Refuse:
			s.Fail(&b, uint8(verbs.WCLocQPOpErr))
		case send.GiveUp:
			q.failSend(verbs.WCStatus(b.Reason))
			return
		}
	}
}

// settings returns the properties of the QP that package send needs.
func (q *qp) settings() (in send.Setting) {
	if q.draining() {
		in |= send.Draining
	}
	if q.pairedQP != nil {
		in |= send.Direct
	}
	if q.pace != nil || q.hasQueue() {
		in |= send.Paced
	}
	return in
}

// describe passes new requests to the send state.
func (q *qp) describe() {
	for i := q.sending.Posted(); i < q.h.SendLen(); i++ {
		q.describeOne(q.h.Send(i))
	}
}

func (q *qp) describeOne(wr *verbs.PostedSend) {
	kind, length := kindOf(wr.Opcode), wr.Length()
	if isLocal(wr) {
		kind, length = send.Local, 0
	}
	q.sending.Post(kind, length, wr.Flags&verbs.SendFence != 0)
}

// sendBurst sends the packets of a burst. It returns false if the adapter or the rate limit does
// not allow that yet. With either, each burst is a single packet.
func (q *qp) sendBurst(b *send.Burst) bool {
	if q.full() || q.pace != nil && !q.paceBurst(b) {
		return false
	}
	wr := q.h.Send(b.Request)
	switch b.Kind {
	case send.Read:
		q.sendRead(wr, b.Packet, b.PSN, b.Packets)
	case send.Atomic:
		if status := q.sendSmall(wr, b.PSN); status != verbs.WCSuccess {
			q.sending.Fail(b, uint8(status))
			return true
		}
	default:
		for sent := uint32(0); sent < b.Packets; {
			n, status := q.sendRun(wr, b.Packet+sent, wire.PSNAdd(b.PSN, sent), b.Packets-sent, b.AckReq)
			if sent += n; status != verbs.WCSuccess {
				if sent > 0 {
					b.Packets, b.AckReq = sent, false
					q.sending.Sent(b)
				}
				q.sending.Fail(b, uint8(status))
				return true
			}
		}
	}
	if b.EndsFrame && q.out != nil {
		q.out.Cut()
	}
	if b.Repeats() {
		q.e.Counters.Repeated.Add(1)
		q.count().repeated++
	}
	q.sending.Sent(b)
	return true
}

// paceBurst reports whether the rate allows a burst now. The burst requests an acknowledgement if
// the next one will have to wait.
func (q *qp) paceBurst(b *send.Burst) bool {
	if !q.rateAllows() {
		return false
	}
	if now := q.e.now(); !b.AckReq && q.pace.ackReqDue(q.mtu, now) {
		q.pace.ackRequested(now)
		b.AckReq = true
	}
	return true
}

// sendRun sends packet k of a SEND or WRITE, or up to most packets from k on. ask: the last of them
// requests an acknowledgement. It returns the number of packets sent before an error.
//
// Packets in the middle of a message differ only in the PSN and the payload. If the payload is
// contiguous, its memory is looked up once.
func (q *qp) sendRun(wr *verbs.PostedSend, k, psn, most uint32, ask bool) (sent uint32, status verbs.WCStatus) {
	middles := most
	if ask {
		middles--
	}
	off := uint64(k) * uint64(q.mtu)
	// The last packet is not in the middle.
	middles = min(middles, uint32((max(wr.Length(), off+1)-off-1)/uint64(q.mtu)))
	opcode := dataOpcode(wr.Opcode, false, false) | wire.Opcode(q.service)<<5
	inMiddle, inOnePiece := k > 0 && middles > 1, len(wr.SGList) == 1 && wr.Inline() == nil
	if inMiddle && inOnePiece && opcode.Info().HeaderLen() == wire.BTHLen {
		if from, ok := q.e.regions.Local(q.h.PD(), &wr.SGList[0], off, uint64(middles)*uint64(q.mtu)); ok {
			if sent = q.sendMiddles(opcode, psn, middles, from); sent < middles {
				return sent, verbs.WCLocProtErr
			}
			return sent, verbs.WCSuccess
		}
	}
	if status = q.sendData(wr, k, psn, ask && most == 1); status != verbs.WCSuccess {
		return 0, status
	}
	return 1, status
}

// sendData sends packet k of a SEND or WRITE. ask: it requests an acknowledgement. The payload is
// copied once, from user memory into the frame, and the ICRC is computed over the copy. Memory that
// changes in flight therefore cannot make a packet invalid.
func (q *qp) sendData(wr *verbs.PostedSend, k, psn uint32, ask bool) verbs.WCStatus {
	off := uint64(k) * uint64(q.mtu)
	n := int(min(wr.Length()-off, uint64(q.mtu)))
	last := off+uint64(n) == wr.Length()
	p := wire.Packet{BTH: wire.BTH{
		Opcode: dataOpcode(wr.Opcode, k == 0, last) | wire.Opcode(q.service)<<5,
		PSN:    psn,
		AckReq: ask,
	}}
	info := p.Opcode.Info()
	if info.HasRETH() {
		p.RETH = wire.RETH{Addr: wr.RemoteAddr, RKey: wr.RKey, Length: uint32(wr.Length())}
	}
	p.XRCETH.SRQ = wr.RemoteSRQN
	p.Imm = wr.ImmData
	p.InvalidateRKey = wr.InvalidateRKey
	// Only packets that complete a receive request may request an event there (IBTA Vol 1 §9.2.3).
	p.Solicited = last && wr.Flags&verbs.SendSolicited != 0 && (info.Send() || info.HasImmDt())
	header, b := q.datagram(&p, n)
	if b == nil {
		return verbs.WCSuccess // treated as lost: the timeout retransmits it
	}
	h := p.EncodeHeader(b)
	payload := b[h : h+n]
	if data := wr.Inline(); data != nil {
		copy(payload, data[off:])
		q.seal(header, b)
		return verbs.WCSuccess
	}
	var i icrc
	sum := i.begin(header, b[:h])
	if status := q.e.regions.Gather(payload, q.h.PD(), wr.SGList, off, sum); status != verbs.WCSuccess {
		q.out.Drop()
		return status
	}
	q.sealCopied(header, b, h+n, sum)
	return verbs.WCSuccess
}

// sendRead requests n packets of a READ, from packet k with PSN psn on. A long READ is requested in
// pieces that fit the window, so that its responses cannot overrun queues on the path. To the peer,
// each piece is a separate READ.
func (q *qp) sendRead(wr *verbs.PostedSend, k, psn, n uint32) {
	off := uint64(k) * uint64(q.mtu)
	length := min(wr.Length()-off, uint64(n)*uint64(q.mtu))
	p := wire.Packet{BTH: wire.BTH{Opcode: wire.RCReadRequest, PSN: psn, AckReq: true}}
	p.XRCETH.SRQ = wr.RemoteSRQN
	p.RETH = wire.RETH{Addr: wr.RemoteAddr + off, RKey: wr.RKey, Length: uint32(length)}
	q.sendHeader(&p)
}

func (q *qp) sendAtomic(wr *verbs.PostedSend, psn uint32) {
	p := wire.Packet{BTH: wire.BTH{Opcode: wire.RCCmpSwap, PSN: psn, AckReq: true}}
	p.XRCETH.SRQ = wr.RemoteSRQN
	p.AtomicETH = wire.AtomicETH{Addr: wr.RemoteAddr, RKey: wr.RKey, Swap: wr.Swap, Compare: wr.CompareAdd}
	if wr.Opcode == verbs.AtomicFetchAndAdd {
		p.Opcode = wire.RCFetchAdd
		p.AtomicETH.Swap, p.AtomicETH.Compare = wr.CompareAdd, 0
	}
	q.sendHeader(&p)
}
