package roce

// On the path: beside it. Where the peer's QP is in this process, with nothing between the two that would look at packets
// (see stack.Path), a message that finds everything in order moves from memory to memory under the locks of both QPs,
// and both count as if its packets had been exchanged and acknowledged. All that is not in order (a receive that is
// not posted, a key that is not valid, packets in flight) is left to the packets, which have an answer to it; the
// requests behind such a message wait until it is over, and then go this way again.

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

// meets tells whether each of two QPs takes the other's packets, as fast as they come. Both are locked.
func (q *qp) meets(p *qp) bool {
	return !q.limited() && !p.limited() && !p.destroyed && receives(p.h.State()) && p.service == wire.RC && q.service == wire.RC &&
		p.port == q.near.port && p.ends.Src == q.ends.Dst && p.ends.Dst == q.ends.Src && p.ends.V1 == q.ends.V1 &&
		p.dest == q.num && p.mtu == q.mtu && p.path.Near() == q.e.nics[q.port-1]
}

// ready tells that the responder waits for a new message with the given PSN, and owes nothing.
func (r *responder) ready(psn uint32) bool {
	return r.psn == psn && r.message == noMessage && !r.fatal && r.nak == 0 && !r.ackDue && !r.owes() && r.resume == 0 && r.held() == nil
}

// sendDirect carries out what can be without packets, from the oldest request on. False: there is nothing left to send.
// It may unlock the QP for a while.
func (q *qp) sendDirect() bool {
	s := &q.sending
	if q.h.SendLen() == 0 || !s.Fresh() || q.draining() {
		return true
	}
	p := q.peer()
	if p == nil {
		q.met = false
		return true
	}
	if p != q {
		kept := q.h.LockPeer(p.h)
		defer p.h.Unlock()
		switch {
		case kept:
		case q.destroyed || q.h.State() != verbs.StateRTS:
			return false
		case !s.Fresh() || q.peer() != p:
			return true
		}
	}
	if met := q.meets(p); met != q.met {
		q.met = met
	}
	if !q.met || !p.resp.ready(s.NextPSN()) {
		return true
	}
	for q.h.SendLen() > 0 {
		if !q.carry(p) {
			return true
		}
	}
	return false
}

// carry moves the oldest request's message to p; false if that takes packets, and nothing has changed.
func (q *qp) carry(p *qp) bool {
	wr := q.h.Send(0)
	if isLocal(wr.Opcode) {
		return q.carryHere(wr)
	}
	n := wr.Length()
	packets := uint32(1)
	if n > uint64(q.mtu) {
		packets = q.packets(uint32(n))
	}
	var byteLen uint32
	var ok bool
	wc := verbs.WC{SrcQP: p.dest, ByteLen: uint32(n)}
	switch wr.Opcode {
	case verbs.Send, verbs.SendWithImm:
		wc.Opcode = verbs.WCRecv
		ok = q.carrySend(p, wr)
	case verbs.RDMAWrite, verbs.RDMAWriteWithImm:
		wc.Opcode = verbs.WCRecvRDMAWithImm
		ok = q.carryWrite(p, wr)
	case verbs.RDMARead:
		byteLen = uint32(n)
		ok = q.carryRead(p, wr)
	case verbs.AtomicCmpAndSwp, verbs.AtomicFetchAndAdd:
		byteLen, packets = 8, 1
		ok = q.carryAtomic(p, wr)
	}
	if !ok {
		return false
	}

	// As if all its packets had come, in order.
	s := &p.resp
	s.nakSent = false
	s.hear(p.h)
	s.psn = wire.PSNAdd(s.psn, packets)
	if !hasAnswer(wr.Opcode) {
		s.ackPSN = wire.PSNAdd(s.psn, 1<<24-1)
	}
	s.endMessage()

	// As if they had been acknowledged.
	q.sending.MovedDirectly(kindOf(wr.Opcode), packets)
	q.stats.direct++

	received, solicited := false, wr.Flags&verbs.SendSolicited != 0
	switch wr.Opcode {
	case verbs.Send, verbs.SendWithImm:
		q.stats.sends++
		received = true
	case verbs.RDMAWriteWithImm:
		received = true
	}
	if wr.Opcode != verbs.Send {
		wc.Flags, wc.ImmData = verbs.WCWithImm, wr.ImmData
	}
	q.h.CompleteSend(verbs.WCSuccess, byteLen)
	if received { // last: whoever waits for it answers at once, and finds the locks free
		p.recvs++
		p.h.CompleteRecv(&wc, solicited)
	}
	return true
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

// carrySend places a SEND in the peer's oldest receive request.
func (q *qp) carrySend(p *qp, wr *verbs.SendWR) bool {
	recv := p.h.Recv()
	if recv == nil || wr.Length() > recv.Length() {
		return false
	}
	if data := wr.Inline(); data != nil {
		return p.e.regions.Scatter(data, p.h.PD(), recv.SGList, 0) == verbs.WCSuccess
	}
	return memory.Copy(p.message(recv.SGList), q.message(wr.SGList), wr.Length()) == verbs.WCSuccess
}

// carryWrite places a WRITE in the memory that it names.
func (q *qp) carryWrite(p *qp, wr *verbs.SendWR) bool {
	n := wr.Length()
	if p.h.Attr().QPAccessFlags&verbs.AccessRemoteWrite == 0 || wr.Opcode == verbs.RDMAWriteWithImm && p.h.Recv() == nil {
		return false
	}
	b, ok := p.ordinary(wr.RKey, wr.RemoteAddr, n, verbs.AccessRemoteWrite)
	return ok && memory.Write(wr, q.message(wr.SGList), b)
}

// readable tells whether both sides allow READs and atomics at all.
func (q *qp) readable(p *qp, need verbs.Access) bool {
	return q.h.Attr().MaxRDAtomic > 0 && p.resp.depth > 0 && p.h.Attr().QPAccessFlags&need != 0
}

// carryRead fetches what a READ names.
func (q *qp) carryRead(p *qp, wr *verbs.SendWR) bool {
	if !q.readable(p, verbs.AccessRemoteRead) {
		return false
	}
	b, ok := p.ordinary(wr.RKey, wr.RemoteAddr, wr.Length(), verbs.AccessRemoteRead)
	return ok && q.e.regions.Scatter(b, q.h.PD(), wr.SGList, 0) == verbs.WCSuccess
}

// carryAtomic carries an atomic out.
func (q *qp) carryAtomic(p *qp, wr *verbs.SendWR) bool {
	if !q.readable(p, verbs.AccessRemoteAtomic) {
		return false
	}
	word, ok := p.region(wr.RKey, wr.RemoteAddr, 8, verbs.AccessRemoteAtomic)
	return ok && wr.RemoteAddr%8 == 0 && word.Aligned() && memory.Atomic(wr, q.message(wr.SGList), word)
}
