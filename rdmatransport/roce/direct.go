package roce

// On the path: beside it. Where the peer's QP is in this process, with nothing between the two that would look at packets
// (see stack.Path), a message that finds everything in order moves from memory to memory under the locks of both QPs,
// and both count as if its packets had been exchanged and acknowledged. All that is not in order (a receive that is
// not posted, a key that is not valid, packets in flight) is left to the packets, which have an answer to it; the
// requests behind such a message wait until it is over, and then go this way again.
//
// The locks are held for memory.HoldMost bytes, and then for more only if nobody waits for them. A message that is longer
// moves in parts of whole packets, and in between both QPs are as if just these packets had been exchanged. Whatever
// happens to a QP or its memory in the middle of a message thus ends as it would with packets: the keys of the next part
// are looked up anew, and what cannot go on here does so in packets, from where it is.
//
// The goroutine that posts carries over what it posted. Those that have other QPs to serve (whoever receives, or runs
// timers) do so once, and leave the rest to a goroutine of its own.

import (
	"sync"

	"github.com/softrnic/softrnic/rdmatransport/internal/memory"
	"github.com/softrnic/softrnic/rdmatransport/roce/internal/send"
	"github.com/softrnic/softrnic/rdmatransport/roce/wire"
	"github.com/softrnic/softrnic/stack"
	"github.com/softrnic/softrnic/verbs"
)

// stations are the engines of this process by the interfaces they receive from: stack.NIC → *station.
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

// directFlags are what sendDirect is about.
type directFlags uint8

const (
	carrying       directFlags = 1 << iota // it is under way, if the QP is not locked for it just now: nobody else sends
	posting                                // the goroutine that holds the lock has posted what there is to send, and may take its time
	resumed                                // PostSend is Modify's, from SQD to RTS
	sharedReceives                         // the QP's receive requests come from an SRQ
)

// peer is the QP that packets would reach, nil if they had to leave the process or there is none. It is not locked, and
// perhaps destroyed.
func (q *qp) peer() *qp {
	if q.path == nil {
		return nil
	}
	nic := q.path.Near()
	if nic == nil {
		return nil
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

// pairsWith tells whether each of two QPs takes the other's packets, as fast as they come. Both are locked.
func (q *qp) pairsWith(p *qp) bool {
	switch {
	case q.limited() || p.limited(), p.destroyed || !receives(p.h.State()), p.service != wire.RC || q.service != wire.RC:
		return false
	}
	sameAddresses := p.ends.Src == q.ends.Dst && p.ends.Dst == q.ends.Src && p.ends.V1 == q.ends.V1
	samePorts := p.port == q.near.port && p.path.Near() == q.e.nics[q.port-1]
	return sameAddresses && samePorts && p.dest == q.num && p.mtu == q.mtu
}

func isSend(op verbs.WROpcode) bool { return op == verbs.Send || op == verbs.SendWithImm }

// reth is what the first packet of a WRITE says.
func reth(wr *verbs.SendWR) wire.RETH {
	return wire.RETH{Addr: wr.RemoteAddr, RKey: wr.RKey, Length: uint32(wr.Length())}
}

// continues tells whether the peer has come as far with the message that q is in the middle of.
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

// movedBytes is how much of the oldest request's message is at the peer already, where nothing is under way.
func (q *qp) movedBytes() uint64 { return uint64(q.sending.Moved()) * uint64(q.mtu) }

// sendDirect carries out what can be without packets, from the oldest request on. False: there is nothing left to send
// here. It may unlock the QP for a while.
func (q *qp) sendDirect() bool {
	switch {
	case q.direct&carrying != 0:
		return false
	case q.h.SendLen() == 0 || !q.sending.Still() || q.draining():
		return true
	}
	q.direct |= carrying
	end := q.sending.Oldest() + uint32(q.h.SendLen())
	rest := q.carrySome()
	if rest >= carryMore {
		rest = q.carryOn(rest, end)
	}
	if rest != carryElsewhere {
		q.direct &^= carrying
	}
	return rest == carryPackets
}

// carryOn goes on with what is left after carrySome, up to the request of number end if this goroutine may take its time:
// what others have posted meanwhile is none of its own.
func (q *qp) carryOn(rest carryRest, end uint32) carryRest {
	posted := q.direct&posting != 0
	for rest >= carryMore {
		if !posted || int32(q.sending.Oldest()-end) >= 0 {
			go q.carryElsewhere()
			return carryElsewhere
		}
		if rest == carryWanted {
			q.flush()
			q.h.Yield()
		}
		switch {
		case q.destroyed || !sends(q.h.State()):
			return carryNothing
		case q.draining():
			return carryPackets
		}
		rest = q.carrySome()
	}
	return rest
}

// carryElsewhere carries over what sendDirect has left.
func (q *qp) carryElsewhere() {
	q.h.Lock()
	defer q.h.Unlock()
	q.direct &^= carrying
	q.sendPosted()
}

// carryRest is what is left of the send queue.
type carryRest uint8

const (
	carryNothing   carryRest = iota // or the QP does not send any more
	carryPackets                    // what has to go in packets
	carryElsewhere                  // what another goroutine carries over
	carryMore                       // more of the same,
	carryWanted                     // and somebody waits for one of the locks
)

// carrySome is one hold of both locks, in RTS.
func (q *qp) carrySome() carryRest {
	p := q.peer()
	if p == nil {
		q.paired = false
		return carryPackets
	}
	if p != q {
		kept := q.h.LockPeer(p.h)
		defer p.h.Unlock()
		switch {
		case kept:
		case q.destroyed || !sends(q.h.State()):
			return carryNothing
		case q.draining() || q.peer() != p:
			return carryPackets
		}
	}
	if paired := q.pairsWith(p); paired != q.paired {
		q.paired = paired
	}
	s := &p.resp
	switch {
	case !q.paired || !p.receiving.Still(q.sending.Una()):
		return carryPackets
	case q.sending.Moved() == 0 && s.message != noMessage || q.sending.Moved() != 0 && !q.continues(p):
		return carryPackets
	}
	if p.receiving.DropContradicted() { // what it keeps claims to come from here, where nothing is under way
		p.e.Counters.Suspect.Add(1)
	}
	for moved := uint64(0); q.h.SendLen() > 0; {
		if moved >= memory.HoldMost {
			if q.h.Wanted() || p.h.Wanted() {
				return carryWanted
			}
			return carryMore
		}
		n, ok := q.carry(p)
		if !ok {
			return carryPackets
		}
		moved += max(n, memory.HoldLeast)
	}
	return carryNothing
}

// carry moves the message of the oldest request to p, or the next part of it, and tells how much that was; false if that
// takes packets, and nothing has changed.
func (q *qp) carry(p *qp) (moved uint64, ok bool) {
	wr := q.h.Send(0)
	if isLocal(wr.Opcode) {
		return 0, q.carryHere(wr)
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
		ok = q.carrySend(p, wr, off, n)
	case verbs.RDMAWrite, verbs.RDMAWriteWithImm:
		ok = q.carryWrite(p, wr, off, n)
	case verbs.RDMARead:
		ok = q.carryRead(p, wr, off, n)
	case verbs.AtomicCmpAndSwp, verbs.AtomicFetchAndAdd:
		packets, last = 1, true
		ok = q.carryAtomic(p, wr)
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
	q.stats.direct++
	switch wr.Opcode {
	case verbs.Send, verbs.SendWithImm, verbs.RDMAWriteWithImm:
		q.received(p, wr)
	default:
		q.h.CompleteSend(verbs.WCSuccess, answerLen(wr))
	}
	return n, true
}

// received completes a request that is carried over, and the peer's receive request with it.
func (q *qp) received(p *qp, wr *verbs.SendWR) {
	wc := verbs.WC{Opcode: verbs.WCRecvRDMAWithImm, SrcQP: p.dest, ByteLen: uint32(wr.Length())}
	if isSend(wr.Opcode) {
		wc.Opcode = verbs.WCRecv
		q.stats.sends++
	}
	if wr.Opcode != verbs.Send {
		wc.Flags, wc.ImmData = verbs.WCWithImm, wr.ImmData
	}
	solicited := wr.Flags&verbs.SendSolicited != 0
	q.h.CompleteSend(verbs.WCSuccess, 0)
	p.recvs++
	p.h.CompleteRecv(&wc, solicited) // last: whoever waits for it answers at once, and finds the locks free
}

// open takes in that off bytes of a message have come, and not all.
func (r *responder) open(wr *verbs.SendWR, off uint64) {
	switch {
	case wr.Opcode == verbs.RDMARead:
	case isSend(wr.Opcode):
		r.message, r.taken, r.placed = sendMessage, true, off
	default:
		r.message, r.write, r.placed = writeMessage, reth(wr), off
	}
}

// carryHere carries a local request out. One that fails does so again when it is taken the other way.
func (q *qp) carryHere(wr *verbs.SendWR) bool {
	if q.carryOut(wr) != verbs.WCSuccess {
		return false
	}
	q.sending.MovedDirectly(send.Local, 0)
	q.h.CompleteSend(verbs.WCSuccess, 0)
	return true
}

// ordinary is the memory that q's peer names, where nothing can go wrong with it.
func (q *qp) ordinary(rkey uint32, addr, n uint64, need verbs.Access) ([]byte, bool) {
	s, ok := q.region(rkey, addr, n, need)
	if !ok {
		return nil, false
	}
	return s.Ordinary()
}

// message is what a list of q's names.
func (q *qp) message(list []verbs.SGE) memory.Message {
	return memory.Message{Regions: q.e.regions, PD: q.h.PD(), List: list}
}

// carrySend places n bytes of a SEND, from offset off on, in the peer's oldest receive request.
func (q *qp) carrySend(p *qp, wr *verbs.SendWR, off, n uint64) bool {
	if p.direct&sharedReceives != 0 && !memory.Sound(wr, q.message(wr.SGList), off, n) {
		return false
	}
	recv := p.h.Recv()
	return recv != nil && wr.Length() <= recv.Length() &&
		memory.Copy(p.message(recv.SGList), q.message(wr.SGList), wr, off, n)
}

// carryWrite places n bytes of a WRITE, from offset off on, in the memory that it names.
func (q *qp) carryWrite(p *qp, wr *verbs.SendWR, off, n uint64) bool {
	if p.h.Attr().QPAccessFlags&verbs.AccessRemoteWrite == 0 {
		return false
	}
	if off == 0 && n < wr.Length() { // the whole range is checked before the first byte is placed
		if _, ok := p.region(wr.RKey, wr.RemoteAddr, wr.Length(), verbs.AccessRemoteWrite); !ok {
			return false
		}
	}
	b, ok := p.ordinary(wr.RKey, wr.RemoteAddr+off, n, verbs.AccessRemoteWrite)
	if !ok {
		return false
	}
	if wr.Opcode == verbs.RDMAWriteWithImm && off+n == wr.Length() {
		if p.direct&sharedReceives != 0 && !memory.Sound(wr, q.message(wr.SGList), off, n) || p.h.Recv() == nil {
			return false
		}
	}
	return memory.Write(wr, q.message(wr.SGList), b, off)
}

// readable tells whether both sides allow READs and atomics at all.
func (q *qp) readable(p *qp, need verbs.Access) bool {
	return q.h.Attr().MaxRDAtomic > 0 && p.receiving.Limit() > 0 && p.h.Attr().QPAccessFlags&need != 0
}

// carryRead fetches n bytes of what a READ names, from offset off on.
func (q *qp) carryRead(p *qp, wr *verbs.SendWR, off, n uint64) bool {
	if !q.readable(p, verbs.AccessRemoteRead) {
		return false
	}
	b, ok := p.ordinary(wr.RKey, wr.RemoteAddr+off, n, verbs.AccessRemoteRead)
	return ok && q.e.regions.Scatter(b, q.h.PD(), wr.SGList, off) == verbs.WCSuccess
}

// carryAtomic carries an atomic out.
func (q *qp) carryAtomic(p *qp, wr *verbs.SendWR) bool {
	if !q.readable(p, verbs.AccessRemoteAtomic) {
		return false
	}
	word, ok := p.region(wr.RKey, wr.RemoteAddr, 8, verbs.AccessRemoteAtomic)
	return ok && wr.RemoteAddr%8 == 0 && word.Aligned() && memory.Atomic(wr, q.message(wr.SGList), word)
}
