package iwarptransport

// In-process path. If both ends of a connection are in this process, and nothing between them
// inspects the stream (see stack.Stream), messages can be moved directly: copied from memory to
// memory, under the locks of both QPs. Both QPs count the message as if its segments had been sent
// and received. Everything sent through the stream before must have been received, so that no
// message overtakes another. Some requests go through the stream: those with an invalid key, with
// memory that faults, or without a posted receive request. MPA's set-up also goes through the
// stream.
//
// Package direct decides which goroutine moves messages, and how long it holds the locks. A long
// message is moved in parts. Between two parts, both QPs are in the same state as if the segments
// of the moved parts had been sent. Keys are looked up for each part. A message that can no longer
// be moved continues through the stream.

import (
	"github.com/softrnic/softrnic/rdmatransport/internal/direct"
	"github.com/softrnic/softrnic/rdmatransport/internal/memory"
	"github.com/softrnic/softrnic/rdmatransport/rdmap"
	"github.com/softrnic/softrnic/verbs"
)

// resumeTransmit sends requests that waited until the peer had received everything sent before.
func (c *conn) resumeTransmit() {
	q := c.qp
	q.h.Lock()
	defer q.h.Unlock()
	if q.conn == c {
		q.transmit()
	}
}

// sendDirect moves as many requests directly as possible, from the next one on. done says that it
// has moved some, or that the queue may have changed. wait says that the next request has to wait.
// If neither is set, the next request goes through the stream. The QP may have been unlocked
// meanwhile.
func (q *qp) sendDirect() (done, wait bool) {
	c := q.conn
	switch {
	case c.peerConn.Load() == nil:
		return false, false
	case q.mover.Moving():
		return false, true
	}
	r := q.mover.Move(q, q.h)
	return r <= direct.Changed, r >= direct.Waits
}

// Oldest, MoveSome, Flush, MayContinue, SendAll and Go implement direct.QP.
func (q *qp) Oldest() uint32 { return uint32(q.sending.cursor.first) }

func (q *qp) Flush() {} // the stream has its own buffer

func (q *qp) SendAll() { q.transmitPosted() }

func (q *qp) Go(f func()) { q.e.timers.Clock().Go(f) }

func (q *qp) MayContinue() direct.Result {
	if q.conn == nil || !q.mayMove() {
		return direct.Changed
	}
	return direct.More
}

// MoveSome is called while the QP has something to send.
func (q *qp) MoveSome() direct.Result {
	c := q.conn
	d := c.peerConn.Load()
	if d == nil || c.stream.LocalNIC() == nil || d.stream.LocalNIC() == nil {
		return direct.Wire
	}
	p, s := d.qp, &q.sending
	kept := q.h.LockPeer(p.h)
	defer q.h.UnlockPeer(p.h)
	if !kept && (q.conn != c || !q.mayMove()) {
		return direct.Changed
	}
	paired := p.conn == d && d.peerConn.Load() == c
	inRTS := p.h.State() == verbs.StateRTS && q.h.State() == verbs.StateRTS
	switch {
	case !paired, !inRTS, p.sending.lifecycle.ended(), !p.receiving.allowed && !d.mayReceive():
		return direct.Wire
	case !s.cursor.atOldest() || s.reads.rtr:
		return direct.Waits // transmit is called when everything is received
	case c.sent != d.received:
		d.peerWaits = true
		return direct.Waits
	}
	p.receiving.allowed, p.receiving.gotFPDU = true, true
	if p.sending.lifecycle.is(awaitingPeer) { // p may send from now on, as after an FPDU
		p.sending.lifecycle.on(onPeerFPDU)
		q.Go(d.resumeTransmit)
	}
	for hold := direct.NewHold(q.h, p.h); q.h.SendLen() > 0; {
		if r := hold.Over(); r != direct.Done {
			return r
		}
		wr := q.h.Send(0)
		switch {
		case s.responses.n > 0 && !s.cursor.is(partlyMoved):
			return direct.Waits // responses go first: transmit sends what is due, or is called when it is
		case isRead(wr.Opcode) && c.received != d.sent:
			return direct.Waits // the response must not overtake the peer's earlier data
		case isRead(wr.Opcode) && p.h.Placing():
			return direct.Wire // nor what this side has written before: see response.placed
		}
		n, ok := q.moveNext(p, wr)
		if !ok {
			return direct.Wire
		}
		hold.Add(n)
	}
	return direct.Done
}

// mayMove reports whether the next request can be sent now, and none of it was sent through the
// stream.
func (q *qp) mayMove() bool {
	s := &q.sending
	return s.lifecycle.is(open) && !s.output.full && s.cursor.mayMove() && s.cursor.unsent(q.h.SendLen()) > 0
}

// moveNext moves the message of the next request, wr, or its next part, to p. It returns the number
// of bytes moved. If ok is false, nothing has changed, and the message must go through the stream.
func (q *qp) moveNext(p *qp, wr *verbs.PostedSend) (moved uint64, ok bool) {
	s := &q.sending
	n, last := direct.Part(wr.Length() - s.cursor.off)
	var response uint32 // bytes of the response
	if wr.Fault() != verbs.WCSuccess {
		return 0, false
	}
	switch wr.Opcode {
	case verbs.Send, verbs.SendWithInv:
		ok = q.moveSend(p, wr, n)
	case verbs.RDMAWrite, verbs.RDMAWriteWithImm:
		ok = q.moveWrite(p, wr, n)
	case verbs.RDMARead:
		response = uint32(wr.Length())
		ok = q.moveRead(p, wr, n)
	case verbs.AtomicCmpAndSwp, verbs.AtomicFetchAndAdd:
		last, response = true, 8
		ok = q.moveAtomic(p, wr)
	}
	if !ok {
		return 0, false
	}
	p.h.CountMoved(wr, n, last)
	if !last {
		q.movedPart(p, wr.Opcode, s.cursor.off+n)
		return n, true
	}
	s.cursor.moved()
	q.direct++
	if isSend(wr.Opcode) || wr.Opcode == verbs.RDMAWriteWithImm {
		q.completeBoth(p, wr)
	} else {
		q.h.CompleteSend(verbs.WCSuccess, response)
	}
	return n, true
}

// completeBoth completes a moved request and the peer's receive request.
func (q *qp) completeBoth(p *qp, wr *verbs.PostedSend) {
	wc := verbs.WC{Opcode: verbs.WCRecv, ByteLen: uint32(wr.Length())}
	switch wr.Opcode {
	case verbs.SendWithInv:
		wc.Flags, wc.InvalidatedRKey = verbs.WCWithInv, wr.InvalidateRKey
	case verbs.RDMAWriteWithImm:
		wc.Opcode, wc.Flags, wc.ImmData = verbs.WCRecvRDMAWithImm, verbs.WCWithImm, wr.ImmData
	}
	solicited := wr.Flags&verbs.SendSolicited != 0
	q.countMessage(p, rdmap.QueueSend)
	q.h.CompleteSend(verbs.WCSuccess, 0)
	p.h.CompleteRecv(&wc, solicited) // last, so that a waiting application finds the locks free
}

// movedPart records that the first off bytes of the next message are moved, but not all.
func (q *qp) movedPart(p *qp, op verbs.WROpcode, off uint64) {
	s := &q.sending
	s.cursor.movedTo(off)
	switch {
	case op == verbs.RDMARead:
		s.reads.place(off)
	case isSend(op):
		p.receiving.queues[rdmap.QueueSend].SkipTo(uint32(off))
	default:
		p.receiving.writeBytes = off
	}
}

// own returns the memory of a send request.
func (q *qp) own(wr *verbs.PostedSend) memory.Message {
	return memory.Message{Regions: q.e.regions, PD: q.h.PD(), List: wr.SGList}
}

// receiver returns the QP as the receiver of a message.
func (q *qp) receiver() direct.Receiver {
	return direct.Receiver{QP: q.h, Regions: q.e.regions, SRQ: q.srq}
}

// moveSend places n bytes of a SEND in the peer's oldest receive request.
func (q *qp) moveSend(p *qp, wr *verbs.PostedSend, n uint64) bool {
	length, off := wr.Length(), q.sending.cursor.off
	to := p.receiver()
	if length > MaxMessage || !to.Send(wr, q.own(wr), off, n) {
		return false
	}
	return wr.Opcode == verbs.Send || off+n < length || p.invalidate(wr.InvalidateRKey)
}

// countMessage counts a message on a DDP queue as sent by q and received by p.
func (q *qp) countMessage(p *qp, queue int) {
	q.sending.numbers.advance(queue)
	p.receiving.queues[queue].Skip()
}

// moveWrite places n bytes of a WRITE in its remote memory.
func (q *qp) moveWrite(p *qp, wr *verbs.PostedSend, n uint64) bool {
	off := q.sending.cursor.off
	if n > 0 && p.h.Attr().QPAccessFlags&verbs.AccessRemoteWrite == 0 {
		return false
	}
	to, denial := p.e.regions.Remote(p.h, wr.RKey, wr.RemoteAddr+off, n, verbs.AccessRemoteWrite)
	if denial != memory.Allowed {
		return false
	}
	last := off+n == wr.Length()
	if last && wr.Opcode == verbs.RDMAWriteWithImm {
		if r := p.receiver(); r.Recv(wr, q.own(wr), off, n) == nil {
			return false
		}
	}
	if !memory.Write(wr, q.own(wr), to, off) {
		return false
	}
	if last {
		p.receiving.writeBytes, p.receiving.lastWrite = 0, off+n
		if wr.Opcode == verbs.RDMAWriteWithImm {
			p.receiving.lastWrite = 0
		}
	}
	return true
}

// allowReads reports whether both sides allow READs and atomics.
func (q *qp) allowReads(p *qp) bool { return q.conn.ord > 0 && p.sending.responses.depth > 0 }

// moveRead reads n bytes of a READ from its remote memory.
func (q *qp) moveRead(p *qp, wr *verbs.PostedSend, n uint64) bool {
	length, off := wr.Length(), q.sending.cursor.off
	if off == 0 && (!q.allowReads(p) || n > 0 && p.h.Attr().QPAccessFlags&verbs.AccessRemoteRead == 0) {
		return false
	}
	// For a READ, the whole message is checked first, as for a Read Request.
	if off == 0 && n < length {
		if _, denial := p.e.regions.Remote(p.h, wr.RKey, wr.RemoteAddr, length, verbs.AccessRemoteRead); denial != memory.Allowed {
			return false
		}
	}
	from, denial := p.e.regions.Remote(p.h, wr.RKey, wr.RemoteAddr+off, n, verbs.AccessRemoteRead)
	if denial != memory.Allowed || !memory.Read(q.own(wr), from, off) {
		return false
	}
	if off+n == length {
		q.countMessage(p, rdmap.QueueReadRequest)
		q.sending.reads.moved()
	}
	return true
}

// moveAtomic executes an atomic.
func (q *qp) moveAtomic(p *qp, wr *verbs.PostedSend) bool {
	if !q.allowReads(p) {
		return false
	}
	word, err := p.atomicWord(&rdmap.AtomicRequestHeader{STag: wr.RKey, TO: wr.RemoteAddr})
	if err != nil || !memory.Atomic(wr, q.own(wr), word) {
		return false
	}
	q.countMessage(p, rdmap.QueueReadRequest)
	q.sending.reads.moved()
	p.countMessage(q, rdmap.QueueAtomicResponse)
	return true
}
