package rocetransport

// In-process path. The peer's QP may be in this process, and nothing between the QPs may inspect
// packets (see stack.Path). The two QPs are then paired: messages are copied from memory to memory,
// under the locks of both QPs. Both QPs count as if the packets had been exchanged and
// acknowledged. This path handles only the case without errors. A message is sent in packets if
// there is no receive request, a key is invalid, memory faults, or packets are in flight. The
// protocol then handles the error. Later requests wait until that is done, and are then moved
// directly again.
//
// Package direct decides which goroutine moves messages, and how long it holds the locks. A long
// message is moved in parts of whole packets. After each part, both QPs are in the same state as if
// exactly these packets had been exchanged. Keys are looked up for each part. If a part cannot be
// moved, the message continues in packets.

import (
	"sync"
	"unsafe"

	"github.com/softrnic/softrnic/rdmatransport/internal/direct"
	"github.com/softrnic/softrnic/rdmatransport/internal/memory"
	"github.com/softrnic/softrnic/rdmatransport/internal/prefetch"
	"github.com/softrnic/softrnic/rdmatransport/internal/rocetransport/send"
	"github.com/softrnic/softrnic/rdmatransport/wire"
	"github.com/softrnic/softrnic/stack"
	"github.com/softrnic/softrnic/verbs"
)

// enginePorts maps the network interfaces of this process to engines: stack.NIC → *enginePort.
var enginePorts sync.Map

func enginePortOf(nic stack.NIC) *enginePort {
	s, _ := enginePorts.Load(nic)
	at, _ := s.(*enginePort)
	return at
}

// peer returns the QP that packets would reach, or nil if it is not in this process. The QP is not
// locked, and may be closed. Paired QPs are cached, because with many QPs each table lookup is a
// cache miss.
func (q *qp) peer() *qp {
	if q.path == nil {
		return nil
	}
	nic := q.path.LocalNIC()
	if nic == nil {
		return nil
	}
	if q.pairedQP != nil && q.peerPort.nic == nic {
		return q.pairedQP
	}
	if at := q.peerPort; at != nil && at.nic == nic {
		if p := at.e.qps.Get(q.dest); p != nil {
			return p
		}
	}
	q.peerPort = enginePortOf(nic)
	if q.peerPort == nil {
		return nil
	}
	return q.peerPort.e.qps.Get(q.dest)
}

// pair records whether q and p, the result of peer, are each other's peers.
func (q *qp) pair(p *qp, paired bool) {
	if !paired {
		p = nil // p may be closed, and must not be kept
	}
	if q.pairedQP != p {
		q.pairedQP = p
	}
}

// prefetchPeer prefetches the peer's state, which sendDirect needs, while this QP's own state is
// processed. With 100,000 QPs that send in turn, it saves a sixth of the time of an 8-byte WRITE.
func (q *qp) prefetchPeer() {
	if p := q.pairedQP; p != nil {
		prefetch.Write(unsafe.Slice((*byte)(unsafe.Pointer(p)), unsafe.Sizeof(*p)), 0)
	}
}

// pairsWith reports whether each of two QPs accepts the other's packets, and neither has a rate
// limit. Both are locked.
func (q *qp) pairsWith(p *qp) bool {
	switch {
	case q.limited() || p.limited(), p.destroyed || !receives(p.h.State()), p.service != wire.RC || q.service != wire.RC:
		return false
	}
	sameAddresses := p.ends.Src == q.ends.Dst && p.ends.Dst == q.ends.Src && p.ends.V1 == q.ends.V1
	samePorts := p.port == q.peerPort.port && p.path.LocalNIC() == q.e.nics[q.port-1]
	return sameAddresses && samePorts && p.dest == q.num && p.mtu == q.mtu
}

// isSend reports whether op is a SEND that can be moved directly. A SEND with Invalidate is sent in
// packets.
func isSend(op verbs.WROpcode) bool { return op == verbs.Send || op == verbs.SendWithImm }

// reth returns the RETH of a WRITE's first packet.
func reth(wr *verbs.PostedSend) wire.RETH {
	return wire.RETH{Addr: wr.RemoteAddr, RKey: wr.RKey, Length: uint32(wr.Length())}
}

// peerInSync reports whether the peer is at the same offset as q in q's current message.
func (q *qp) peerInSync(p *qp) bool {
	s := &p.resp
	switch wr, off := q.h.Send(0), q.movedBytes(); {
	case wr.Opcode == verbs.RDMARead:
		return s.message == noMessage
	case isSend(wr.Opcode):
		return s.message == sendMessage && s.placed == off
	default:
		return s.message == writeMessage && s.write == reth(wr) && s.placed == off
	}
}

// movedBytes returns the number of bytes of the oldest request that are sent and acknowledged, if
// nothing is in flight.
func (q *qp) movedBytes() uint64 { return uint64(q.sending.Moved()) * uint64(q.mtu) }

// sendDirect moves the messages of the oldest requests, as many as possible without packets. It
// returns true if the rest must be sent in packets, and false if nothing is left for the caller. It
// may unlock the QP temporarily.
func (q *qp) sendDirect() bool {
	switch {
	case q.mover.Moving():
		return false
	case q.h.SendLen() == 0 || !q.sending.Quiescent() || q.draining():
		return true
	}
	return q.mover.Move(q, q.h) == direct.Wire
}

// Oldest, MoveSome, Flush, MayContinue, SendAll and Go implement direct.QP.
func (q *qp) Oldest() uint32 { return q.sending.Oldest() }

func (q *qp) Flush() { q.sendGathered() }

func (q *qp) SendAll() { q.sendPosted() }

func (q *qp) Go(f func()) { q.e.timers.Clock().Go(f) }

func (q *qp) MayContinue() direct.Result {
	switch {
	case q.destroyed || !sends(q.h.State()):
		return direct.Done
	case q.draining():
		return direct.Wire
	}
	return direct.More
}

// MoveSome is called in RTS.
func (q *qp) MoveSome() direct.Result {
	p := q.peer()
	if p == nil {
		q.pair(nil, false)
		return direct.Wire
	}
	if p != q {
		kept := q.h.LockPeer(p.h)
		defer q.h.UnlockPeer(p.h)
		switch {
		case kept:
		case q.destroyed || !sends(q.h.State()):
			return direct.Done
		case q.draining() || q.peer() != p:
			return direct.Wire
		}
	}
	q.pair(p, q.pairsWith(p))
	s := &p.resp
	switch {
	case q.pairedQP == nil || !p.receiving.Quiescent(q.sending.Una()):
		return direct.Wire
	case q.sending.Moved() == 0 && s.message != noMessage || q.sending.Moved() != 0 && !q.peerInSync(p):
		return direct.Wire
	}
	if p.receiving.DropContradicted() { // packets that p kept are not from q, which has none in flight
		p.e.Counters.Suspect.Add(1)
	}
	for hold := direct.NewHold(q.h, p.h); q.h.SendLen() > 0; {
		if r := hold.Over(); r != direct.Done {
			return r
		}
		n, ok := q.moveNext(p)
		if !ok {
			return direct.Wire
		}
		hold.Add(n)
	}
	return direct.Done
}

// moveNext moves the message of the oldest request, or its next part, to p, and returns its size.
// It returns false, and changes nothing, if packets are needed.
func (q *qp) moveNext(p *qp) (moved uint64, ok bool) {
	wr := q.h.Send(0)
	if isLocal(wr) {
		return 0, q.moveLocal(wr)
	}
	off := q.movedBytes()
	n, last := direct.Part(wr.Length() - off)
	packets := uint32(1)
	if n > uint64(q.mtu) {
		packets = q.packets(uint32(n))
	}
	switch wr.Opcode {
	case verbs.Send, verbs.SendWithImm:
		ok = q.moveSend(p, wr, off, n)
	case verbs.RDMAWrite, verbs.RDMAWriteWithImm:
		ok = q.moveWrite(p, wr, off, n)
	case verbs.RDMARead:
		ok = q.moveRead(p, wr, off, n)
	case verbs.AtomicCmpAndSwp, verbs.AtomicFetchAndAdd:
		packets, last = 1, true
		ok = q.moveAtomic(p, wr)
	}
	if !ok {
		return 0, false
	}

	// The counts are as if these packets had been received in order and acknowledged.
	s := &p.resp
	s.noteRequest(p.h)
	// Each part of a READ is a separate READ, as with a small window.
	p.receiving.OnMovedDirectly(packets, !hasAnswer(wr.Opcode), last || wr.Opcode == verbs.RDMARead)
	p.h.CountMoved(wr, n, last)
	if !last {
		q.describe()
		q.sending.MovedPart(packets)
		s.openMessage(wr, off+n)
		return n, true
	}
	q.sending.MovedDirectly(kindOf(wr.Opcode), packets)
	s.message, s.taken = noMessage, false
	from, to := q.count(), p.count()
	from.direct++
	if hasAnswer(wr.Opcode) {
		from, to = to, from
	}
	from.sentBytes += wr.Length()
	to.rcvdBytes += wr.Length()
	switch wr.Opcode {
	case verbs.Send, verbs.SendWithImm, verbs.RDMAWriteWithImm:
		q.completeBoth(p, wr)
	default:
		q.h.CompleteSend(verbs.WCSuccess, answerLen(wr))
	}
	return n, true
}

// completeBoth completes a moved request and the peer's receive request.
func (q *qp) completeBoth(p *qp, wr *verbs.PostedSend) {
	wc := verbs.WC{Opcode: verbs.WCRecvRDMAWithImm, SrcQP: p.dest, ByteLen: uint32(wr.Length())}
	if isSend(wr.Opcode) {
		wc.Opcode = verbs.WCRecv
		q.count().sends++
	}
	if wr.Opcode != verbs.Send {
		wc.Flags, wc.ImmData = verbs.WCWithImm, wr.ImmData
	}
	solicited := wr.Flags&verbs.SendSolicited != 0
	q.h.CompleteSend(verbs.WCSuccess, 0)
	p.recvs++
	// Last, because a waiting application may answer at once, and then finds the locks free.
	p.h.CompleteRecv(&wc, solicited)
}

// openMessage records that the first off bytes of a longer message are placed.
func (r *responder) openMessage(wr *verbs.PostedSend, off uint64) {
	switch {
	case wr.Opcode == verbs.RDMARead:
	case isSend(wr.Opcode):
		r.message, r.taken, r.placed = sendMessage, true, off
	default:
		r.message, r.write, r.placed = writeMessage, reth(wr), off
	}
}

// moveLocal executes a local request. If it fails, transmit executes it again and handles the
// error.
func (q *qp) moveLocal(wr *verbs.PostedSend) bool {
	if q.executeLocal(wr) != verbs.WCSuccess {
		return false
	}
	q.sending.MovedDirectly(send.Local, 0)
	q.h.CompleteSend(verbs.WCSuccess, 0)
	return true
}

// own returns the memory of a send request that is moved to the paired QP.
func (q *qp) own(wr *verbs.PostedSend) memory.Message {
	return memory.Message{Regions: q.e.regions, PD: q.h.PD(), List: wr.SGList, SameDevice: q.pairedQP.e == q.e}
}

// receiver returns the QP as the receiver of a message.
func (q *qp) receiver() direct.Receiver {
	return direct.Receiver{QP: q.h, Regions: q.e.regions, SRQ: q.sharedReceives}
}

// moveSend places n bytes of a SEND, from offset off on, in the peer's oldest receive request.
func (q *qp) moveSend(p *qp, wr *verbs.PostedSend, off, n uint64) bool {
	to := p.receiver()
	return to.Send(wr, q.own(wr), off, n)
}

// moveWrite places n bytes of a WRITE, from offset off on, in its remote memory.
func (q *qp) moveWrite(p *qp, wr *verbs.PostedSend, off, n uint64) bool {
	if p.h.Attr().QPAccessFlags&verbs.AccessRemoteWrite == 0 {
		return false
	}
	if off == 0 && n < wr.Length() { // the whole range is checked before the first byte is placed
		if _, ok := p.region(wr.RKey, wr.RemoteAddr, wr.Length(), verbs.AccessRemoteWrite); !ok {
			return false
		}
	}
	to, ok := p.region(wr.RKey, wr.RemoteAddr+off, n, verbs.AccessRemoteWrite)
	if !ok {
		return false
	}
	if wr.Opcode == verbs.RDMAWriteWithImm && off+n == wr.Length() {
		if r := p.receiver(); r.Recv(wr, q.own(wr), off, n) == nil {
			return false
		}
	}
	return memory.Write(wr, q.own(wr), to, off)
}

// readable reports whether both sides allow READs and atomics.
func (q *qp) readable(p *qp, need verbs.Access) bool {
	return q.h.Attr().MaxRDAtomic > 0 && p.receiving.Limit() > 0 && p.h.Attr().QPAccessFlags&need != 0
}

// moveRead reads n bytes of a READ from its remote memory, from offset off on.
func (q *qp) moveRead(p *qp, wr *verbs.PostedSend, off, n uint64) bool {
	if !q.readable(p, verbs.AccessRemoteRead) {
		return false
	}
	from, ok := p.region(wr.RKey, wr.RemoteAddr+off, n, verbs.AccessRemoteRead)
	return ok && memory.Read(q.own(wr), from, off)
}

// moveAtomic executes an atomic.
func (q *qp) moveAtomic(p *qp, wr *verbs.PostedSend) bool {
	if !q.readable(p, verbs.AccessRemoteAtomic) {
		return false
	}
	word, ok := p.region(wr.RKey, wr.RemoteAddr, 8, verbs.AccessRemoteAtomic)
	return ok && wr.RemoteAddr%8 == 0 && word.Aligned() && memory.Atomic(wr, q.own(wr), word)
}
