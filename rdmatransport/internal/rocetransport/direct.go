package rocetransport

// In-process path. The peer's QP may be in this process, with nothing in between that inspects
// packets (see stack.Path). The two QPs are then paired: messages are copied from memory to memory,
// under the locks of both QPs. Both QPs count as if the packets had been exchanged and
// acknowledged. This path only handles the case without errors. A message is sent in packets if
// there is no receive request, a key is invalid, memory faults, or packets are in flight. The
// protocol then handles the error. Later requests wait for the end of that, and are moved directly
// again.
//
// The locks are held for memory.HoldMost bytes, and longer only if nothing waits for them. A longer
// message is moved in parts of whole packets. After each part, both QPs are in the state as if
// exactly these packets had been exchanged. A change of a QP or its memory in the middle of a
// message thus has the same result as with packets. Keys are looked up for each part, and if a part
// cannot be moved, the message continues in packets.
//
// A goroutine that posts moves everything that it posted. A goroutine that serves other QPs,
// because it receives or runs timers, holds the locks once, and leaves the rest to a new goroutine.

import (
	"sync"
	"unsafe"

	"github.com/softrnic/softrnic/internal/rdmatransport/prefetch"
	"github.com/softrnic/softrnic/internal/rdmatransport/wire"
	"github.com/softrnic/softrnic/rdmatransport/internal/memory"
	"github.com/softrnic/softrnic/rdmatransport/internal/rocetransport/send"
	"github.com/softrnic/softrnic/stack"
	"github.com/softrnic/softrnic/verbs"
)

// enginePorts maps the network interfaces of this process to engines: stack.NIC → *enginePort.
var enginePorts sync.Map

// enginePort is a port of an engine.
type enginePort struct {
	e    *Engine
	nic  stack.NIC
	port uint8
}

func enginePortOf(nic stack.NIC) *enginePort {
	s, _ := enginePorts.Load(nic)
	at, _ := s.(*enginePort)
	return at
}

// directFlags is the state of sendDirect.
type directFlags uint8

const (
	moving         directFlags = 1 << iota // messages are being moved, even while the QP is not locked; nothing else may send
	posting                                // the goroutine with the lock serves only this QP
	resumed                                // PostSend is called by Modify, from SQD to RTS
	sharedReceives                         // receive requests come from an SRQ
)

// peer returns the QP that packets would reach, or nil if it is not in this process. It is not
// locked, and may be destroyed. Paired QPs are cached: with many QPs, each table lookup is a cache
// miss.
func (q *qp) peer() *qp {
	if q.path == nil {
		return nil
	}
	nic := q.path.LocalNIC()
	if nic == nil {
		return nil
	}
	if q.paired && q.peerPort.nic == nic {
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
	if q.paired = paired; !paired {
		p = nil // p may be destroyed, and must not be kept
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

// peerInSync reports whether the peer is at the same offset of the message that q is in the middle
// of.
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

// movedBytes returns how many bytes of the oldest request are sent and acknowledged, if nothing is
// in flight.
func (q *qp) movedBytes() uint64 { return uint64(q.sending.Moved()) * uint64(q.mtu) }

// sendDirect moves the messages of the oldest requests, as far as possible without packets. It
// returns true if the rest must be sent in packets, and false if nothing is left for the caller. It
// may unlock the QP temporarily.
func (q *qp) sendDirect() bool {
	switch {
	case q.direct&moving != 0:
		return false
	case q.h.SendLen() == 0 || !q.sending.Quiescent() || q.draining():
		return true
	}
	q.direct |= moving
	end := q.sending.Oldest() + uint32(q.h.SendLen())
	rest := q.moveSome()
	if rest >= moreLeft {
		rest = q.moveMore(rest, end)
	}
	if rest != leftToBackground {
		q.direct &^= moving
	}
	return rest == packetsLeft
}

// moveMore continues after moveSome, up to the request with number end, if this goroutine serves
// only this QP. Requests that others post meanwhile are left to another goroutine.
func (q *qp) moveMore(rest remainder, end uint32) remainder {
	posted := q.direct&posting != 0
	for rest >= moreLeft {
		if !posted || int32(q.sending.Oldest()-end) >= 0 {
			go q.moveInBackground()
			return leftToBackground
		}
		if rest == moreLeftContended {
			q.flush()
			q.h.Yield()
		}
		switch {
		case q.destroyed || !sends(q.h.State()):
			return nothingLeft
		case q.draining():
			return packetsLeft
		}
		rest = q.moveSome()
	}
	return rest
}

// moveInBackground moves the rest after sendDirect.
func (q *qp) moveInBackground() {
	q.h.Lock()
	defer q.unlockOnly()
	q.direct &^= moving
	q.sendPosted()
}

// remainder describes the rest of the send queue.
type remainder uint8

const (
	nothingLeft       remainder = iota // or the QP no longer sends
	packetsLeft                        // the oldest request must be sent in packets
	leftToBackground                   // another goroutine moves the rest
	moreLeft                           // more requests can be moved
	moreLeftContended                  // the same, with a waiter on one of the locks
)

// moveSome moves messages while it holds both locks once. The QP is in RTS.
func (q *qp) moveSome() remainder {
	p := q.peer()
	if p == nil {
		q.pair(nil, false)
		return packetsLeft
	}
	if p != q {
		kept := q.h.LockPeer(p.h)
		defer q.h.UnlockPeer(p.h)
		switch {
		case kept:
		case q.destroyed || !sends(q.h.State()):
			return nothingLeft
		case q.draining() || q.peer() != p:
			return packetsLeft
		}
	}
	q.pair(p, q.pairsWith(p))
	s := &p.resp
	switch {
	case !q.paired || !p.receiving.Quiescent(q.sending.Una()):
		return packetsLeft
	case q.sending.Moved() == 0 && s.message != noMessage || q.sending.Moved() != 0 && !q.peerInSync(p):
		return packetsLeft
	}
	if p.receiving.DropContradicted() { // packets that p kept are not from q, which has none in flight
		p.e.Counters.Suspect.Add(1)
	}
	for moved := uint64(0); q.h.SendLen() > 0; {
		if moved >= memory.HoldMost {
			if q.h.Contended() || p.h.Contended() {
				return moreLeftContended
			}
			return moreLeft
		}
		n, ok := q.moveNext(p)
		if !ok {
			return packetsLeft
		}
		moved += max(n, memory.HoldLeast)
	}
	return nothingLeft
}

// moveNext moves the message of the oldest request, or its next part, to p, and returns its size.
// It returns false, and changes nothing, if packets are needed.
func (q *qp) moveNext(p *qp) (moved uint64, ok bool) {
	wr := q.h.Send(0)
	if isLocal(wr) {
		return 0, q.moveLocal(wr)
	}
	off := q.movedBytes()
	n := wr.Length() - off
	last := n <= memory.HoldMost
	if !last {
		n = memory.HoldMost
	}
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

	// As if these packets had been received in order and acknowledged.
	s := &p.resp
	s.noteRequest(p.h)
	// Each part of a READ is a separate READ, as with a small window.
	p.receiving.OnMovedDirectly(packets, !hasAnswer(wr.Opcode), last || wr.Opcode == verbs.RDMARead)
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
	p.h.CompleteRecv(&wc, solicited) // last, because a waiting application may answer at once, and then finds the locks free
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

// message returns the memory of a scatter/gather list of q.
func (q *qp) message(list []verbs.SGE) memory.Message {
	return memory.Message{Regions: q.e.regions, PD: q.h.PD(), List: list}
}

// destination returns the memory of a receive request of q.
func (q *qp) destination(recv *verbs.PostedRecv) memory.Message {
	return memory.Message{Regions: q.e.regions, PD: q.h.RecvPD(), List: recv.SGList}
}

// moveSend places n bytes of a SEND, from offset off on, in the peer's oldest receive request.
func (q *qp) moveSend(p *qp, wr *verbs.PostedSend, off, n uint64) bool {
	if p.direct&sharedReceives != 0 && !memory.Sound(wr, q.message(wr.SGList), off, n) {
		return false
	}
	recv := p.h.Recv()
	return recv != nil && wr.Length() <= recv.Length() &&
		memory.Copy(p.destination(recv), q.message(wr.SGList), wr, off, n)
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
		unsound := p.direct&sharedReceives != 0 && !memory.Sound(wr, q.message(wr.SGList), off, n)
		if unsound || p.h.Recv() == nil {
			return false
		}
	}
	return memory.Write(wr, q.message(wr.SGList), to, off)
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
	return ok && memory.Read(q.message(wr.SGList), from, off)
}

// moveAtomic executes an atomic.
func (q *qp) moveAtomic(p *qp, wr *verbs.PostedSend) bool {
	if !q.readable(p, verbs.AccessRemoteAtomic) {
		return false
	}
	word, ok := p.region(wr.RKey, wr.RemoteAddr, 8, verbs.AccessRemoteAtomic)
	return ok && wr.RemoteAddr%8 == 0 && word.Aligned() && memory.Atomic(wr, q.message(wr.SGList), word)
}
