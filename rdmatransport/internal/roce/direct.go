package roce

// On the path: instead of packets. The peer's QP may be in this process, with nothing between the
// two that looks at packets (see stack.Path): the two are paired. A message is then copied from
// memory to memory, under the locks of both QPs, and both QPs count as if its packets had been
// exchanged and acknowledged. This is done only where nothing goes wrong. A message that finds no
// receive request, an invalid key, memory that faults, or packets in flight is sent in packets, and
// the protocol answers. The requests behind it wait until that is over, and are then moved directly
// again.
//
// The locks are held for memory.HoldMost bytes, and for longer only if nobody waits for them. A
// longer message is moved in parts of whole packets, and after each part both QPs are as if just
// these packets had been exchanged. So whatever happens to a QP or its memory in the middle of a
// message ends as it would with packets: the keys are looked up for each part, and where a part
// cannot be moved, the message goes on in packets.
//
// A goroutine that posts moves all that it has posted. One that has other QPs to serve, because it
// receives or runs timers, holds the locks once, and leaves the rest to a goroutine of its own.

import (
	"sync"
	"unsafe"

	"github.com/softrnic/softrnic/rdmatransport/internal/memory"
	"github.com/softrnic/softrnic/rdmatransport/internal/prefetch"
	"github.com/softrnic/softrnic/rdmatransport/internal/roce/send"
	"github.com/softrnic/softrnic/rdmatransport/roce/wire"
	"github.com/softrnic/softrnic/stack"
	"github.com/softrnic/softrnic/verbs"
)

// stations are the engines of this process by the interfaces they receive from: stack.NIC →
// *station.
var stations sync.Map

// station is a port of an engine.
type station struct {
	e    *Engine
	nic  stack.NIC
	port uint8
}

func stationOf(nic stack.NIC) *station {
	s, _ := stations.Load(nic)
	at, _ := s.(*station)
	return at
}

// directFlags are what sendDirect has to know of a QP.
type directFlags uint8

const (
	moving         directFlags = 1 << iota // messages are being moved, even while the QP is not locked; nobody else sends
	posting                                // the goroutine that holds the lock serves only this QP
	resumed                                // it is Modify, from SQD to RTS, that calls PostSend
	sharedReceives                         // the QP's receive requests come from an SRQ
)

// peer is the QP that packets would reach, nil if they had to leave the process or there is none.
// It is not locked, and perhaps destroyed. Once the two are paired it is remembered: where there
// are many QPs, each look at the table is a cache miss.
func (q *qp) peer() *qp {
	if q.path == nil {
		return nil
	}
	nic := q.path.Near()
	if nic == nil {
		return nil
	}
	if q.paired && q.near.nic == nic {
		return q.met
	}
	if at := q.near; at != nil && at.nic == nic {
		if p := at.e.qps.Get(q.dest); p != nil {
			return p
		}
	}
	q.near = stationOf(nic)
	if q.near == nil {
		return nil
	}
	return q.near.e.qps.Get(q.dest)
}

// pair notes whether q and p, the QP that peer has found, are each other's peers.
func (q *qp) pair(p *qp, paired bool) {
	if q.paired = paired; !paired {
		p = nil // which may be destroyed, and is not to be kept
	}
	if q.met != p {
		q.met = p
	}
}

// prefetchPeer has the processor fetch the peer, all of which sendDirect will need, while this QP's
// own state is looked at. Where 100,000 QPs send in turn, a WRITE of 8 bytes takes a sixth less
// with it.
func (q *qp) prefetchPeer() {
	if p := q.met; p != nil {
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
	samePorts := p.port == q.near.port && p.path.Near() == q.e.nics[q.port-1]
	return sameAddresses && samePorts && p.dest == q.num && p.mtu == q.mtu
}

// isSend tells of a SEND that can be moved directly; one with Invalidate goes in packets.
func isSend(op verbs.WROpcode) bool { return op == verbs.Send || op == verbs.SendWithImm }

// reth is what the first packet of a WRITE says.
func reth(wr *verbs.SendWR) wire.RETH {
	return wire.RETH{Addr: wr.RemoteAddr, RKey: wr.RKey, Length: uint32(wr.Length())}
}

// continues reports whether the peer has come as far with the message that q is in the middle of.
func (q *qp) continues(p *qp) bool {
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

// movedBytes is how much of the oldest request's message has been sent and acknowledged, where
// nothing is in flight.
func (q *qp) movedBytes() uint64 { return uint64(q.sending.Moved()) * uint64(q.mtu) }

// sendDirect moves the messages of the oldest requests, as far as that can be done without packets.
// It returns true if what is left has to be sent in packets, false if there is nothing left for the
// caller to send. It may unlock the QP for a while.
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

// moveMore goes on with what moveSome has left, up to the request of number end, if this goroutine
// serves only this QP: what others have posted meanwhile is left to another goroutine.
func (q *qp) moveMore(rest remainder, end uint32) remainder {
	posted := q.direct&posting != 0
	for rest >= moreLeft {
		if !posted || int32(q.sending.Oldest()-end) >= 0 {
			go q.moveInBackground()
			return leftToBackground
		}
		if rest == moreLeftLockWanted {
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

// moveInBackground moves what sendDirect has left.
func (q *qp) moveInBackground() {
	q.h.Lock()
	defer q.h.Unlock()
	q.direct &^= moving
	q.sendPosted()
}

// remainder is what is left of the send queue.
type remainder uint8

const (
	nothingLeft        remainder = iota // or the QP does not send any more
	packetsLeft                         // the oldest request has to be sent in packets
	leftToBackground                    // requests that another goroutine moves
	moreLeft                            // requests that can be moved
	moreLeftLockWanted                  // the same, and somebody waits for one of the locks
)

// moveSome moves messages for one hold of both locks. The QP is in RTS.
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
	case q.sending.Moved() == 0 && s.message != noMessage || q.sending.Moved() != 0 && !q.continues(p):
		return packetsLeft
	}
	if p.receiving.DropContradicted() { // packets that p kept are not q's, which has none in flight
		p.e.Counters.Suspect.Add(1)
	}
	for moved := uint64(0); q.h.SendLen() > 0; {
		if moved >= memory.HoldMost {
			if q.h.Wanted() || p.h.Wanted() {
				return moreLeftLockWanted
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

// moveNext moves the message of the oldest request to p, or the next part of it, and tells how much
// that was; false if that takes packets, and nothing has changed.
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

	// As if all these packets had come, in order, and been acknowledged.
	s := &p.resp
	s.hear(p.h)
	// Each part of a READ is a READ of its own, as where the window is too small for all.
	p.receiving.OnMovedDirectly(packets, !hasAnswer(wr.Opcode), last || wr.Opcode == verbs.RDMARead)
	if !last {
		q.describe()
		q.sending.MovedPart(packets)
		s.open(wr, off+n)
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
		q.received(p, wr)
	default:
		q.h.CompleteSend(verbs.WCSuccess, answerLen(wr))
	}
	return n, true
}

// received completes a request whose message is moved, and the peer's receive request with it.
func (q *qp) received(p *qp, wr *verbs.SendWR) {
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
	p.h.CompleteRecv(&wc, solicited) // last: whoever waits for it answers at once, and finds the locks free
}

// open notes that the first off bytes of a longer message have been placed.
func (r *responder) open(wr *verbs.SendWR, off uint64) {
	switch {
	case wr.Opcode == verbs.RDMARead:
	case isSend(wr.Opcode):
		r.message, r.taken, r.placed = sendMessage, true, off
	default:
		r.message, r.write, r.placed = writeMessage, reth(wr), off
	}
}

// moveLocal executes a local request. If that fails, transmit will execute it again, and see it
// fail.
func (q *qp) moveLocal(wr *verbs.SendWR) bool {
	if q.executeLocal(wr) != verbs.WCSuccess {
		return false
	}
	q.sending.MovedDirectly(send.Local, 0)
	q.h.CompleteSend(verbs.WCSuccess, 0)
	return true
}

// message is what a list of q's names.
func (q *qp) message(list []verbs.SGE) memory.Message {
	return memory.Message{Regions: q.e.regions, PD: q.h.PD(), List: list}
}

// destination is the memory that a receive request of q's names.
func (q *qp) destination(recv *verbs.RecvWR) memory.Message {
	return memory.Message{Regions: q.e.regions, PD: q.h.RecvPD(), List: recv.SGList}
}

// moveSend places n bytes of a SEND, from offset off on, in the peer's oldest receive request.
func (q *qp) moveSend(p *qp, wr *verbs.SendWR, off, n uint64) bool {
	if p.direct&sharedReceives != 0 && !memory.Sound(wr, q.message(wr.SGList), off, n) {
		return false
	}
	recv := p.h.Recv()
	return recv != nil && wr.Length() <= recv.Length() &&
		memory.Copy(p.destination(recv), q.message(wr.SGList), wr, off, n)
}

// moveWrite places n bytes of a WRITE, from offset off on, in the memory that it names.
func (q *qp) moveWrite(p *qp, wr *verbs.SendWR, off, n uint64) bool {
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

// readable reports whether both sides allow READs and atomics at all.
func (q *qp) readable(p *qp, need verbs.Access) bool {
	return q.h.Attr().MaxRDAtomic > 0 && p.receiving.Limit() > 0 && p.h.Attr().QPAccessFlags&need != 0
}

// moveRead fetches n bytes of what a READ names, from offset off on.
func (q *qp) moveRead(p *qp, wr *verbs.SendWR, off, n uint64) bool {
	if !q.readable(p, verbs.AccessRemoteRead) {
		return false
	}
	from, ok := p.region(wr.RKey, wr.RemoteAddr+off, n, verbs.AccessRemoteRead)
	return ok && memory.Read(q.message(wr.SGList), from, off)
}

// moveAtomic executes an atomic.
func (q *qp) moveAtomic(p *qp, wr *verbs.SendWR) bool {
	if !q.readable(p, verbs.AccessRemoteAtomic) {
		return false
	}
	word, ok := p.region(wr.RKey, wr.RemoteAddr, 8, verbs.AccessRemoteAtomic)
	return ok && wr.RemoteAddr%8 == 0 && word.Aligned() && memory.Atomic(wr, q.message(wr.SGList), word)
}
