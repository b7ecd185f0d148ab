package iwarp

// On the path: beside it. Where a connection ends in this process, with nothing between its ends that would look at the
// stream (see stack.Stream), a message that finds the stream empty and everything in order moves from memory to memory
// under the locks of both QPs, and both count as if its segments had passed. All else goes through the stream (what MPA
// starts with, a key that is not valid, a receive that is not posted), and what is posted behind it waits until the
// other end has taken it in: no message overtakes another.
//
// The locks are held for memory.HoldMost bytes, and then for more only if nobody waits for them. A message that is longer
// moves in parts, and in between both QPs are as if just these segments had passed. Whatever happens to a QP or its
// memory in the middle of a message thus ends as it would with segments: the keys of the next part are looked up anew,
// and what cannot go on here does so through the stream, from where it is.
//
// The goroutine that posts carries over what it posted. Those that have other work (TCP's, and whoever receives) do so once,
// and leave the rest to a goroutine of its own.

import (
	"net/netip"
	"sync"

	"github.com/softrnic/softrnic/rdmatransport/internal/memory"
	"github.com/softrnic/softrnic/rdmatransport/iwarp/rdmap"
	"github.com/softrnic/softrnic/stack"
	"github.com/softrnic/softrnic/verbs"
)

// places are the ends of this process's connections that QPs have: place → *conn.
var places sync.Map

// place is one end of a TCP connection; nic is that of local.
type place struct {
	nic           stack.NIC
	local, remote netip.AddrPort
}

// meet lets the ends of a connection find each other, if both are in this process.
func (c *conn) meet() {
	far := c.stream.Near()
	nics := c.e.net.NICs()
	if far == nil || c.route.Port < 1 || int(c.route.Port) > len(nics) {
		return
	}
	c.place = place{nics[c.route.Port-1], addrPort(c.stream.LocalAddr()), addrPort(c.stream.RemoteAddr())}
	places.Store(c.place, c)
	if o, ok := places.Load(place{far, c.place.remote, c.place.local}); ok {
		other := o.(*conn)
		c.other.Store(other)
		other.other.Store(c)
	}
}

// part undoes meet.
func (c *conn) part() {
	if c.place.nic != nil {
		places.CompareAndDelete(c.place, c)
	}
	if other := c.other.Swap(nil); other != nil {
		other.other.CompareAndSwap(c, nil)
	}
}

// resume sends what waited for the other end.
func (c *conn) resume() {
	q := c.qp
	q.h.Lock()
	defer q.h.Unlock()
	if q.conn == c {
		q.transmit()
	}
}

// sendDirect carries out what can be without the stream, from the request that is next on. done: some was, or all has
// to be looked at again; wait: what is next waits for what is under way. The QP may have been unlocked for a while.
func (q *qp) sendDirect() (done, wait bool) {
	c := q.conn
	switch {
	case c.other.Load() == nil:
		return false, false
	case q.carrying:
		return false, true
	}
	q.carrying = true
	end := q.tx.cursor.first + uint64(q.h.SendLen())
	rest := q.carrySome(c)
	if rest >= carryMore {
		rest = q.carryOn(rest, end)
	}
	q.carrying = rest == carryElsewhere
	return rest <= carryAgain, rest >= carryWaits
}

// carryOn goes on with what is left after carrySome, up to the request of number end if this goroutine may take its time:
// what others have posted meanwhile is none of its own.
func (q *qp) carryOn(rest carryRest, end uint64) carryRest {
	posted := q.posting
	for rest >= carryMore {
		if !posted || q.tx.cursor.first >= end {
			go q.carryElsewhere()
			return carryElsewhere
		}
		if rest == carryWanted {
			q.h.Yield()
		}
		c := q.conn
		if c == nil || !q.waiting() {
			return carryAgain
		}
		rest = q.carrySome(c)
	}
	return rest
}

// carryElsewhere carries over what sendDirect has left.
func (q *qp) carryElsewhere() {
	q.h.Lock()
	defer q.h.Unlock()
	q.carrying = false
	q.transmitPosted()
}

// carryRest is what is left of the send queue.
type carryRest uint8

const (
	carryNothing   carryRest = iota
	carryAgain               // all is to be looked at again
	carryStream              // what has to go through the stream
	carryWaits               // what has to wait
	carryElsewhere           // what another goroutine carries over
	carryMore                // more of the same,
	carryWanted              // and somebody waits for one of the locks
)

// carrySome is one hold of both locks. q waits to send on c.
func (q *qp) carrySome(c *conn) carryRest {
	d := c.other.Load()
	if d == nil || c.stream.Near() == nil || d.stream.Near() == nil {
		return carryStream
	}
	p, t := d.qp, &q.tx
	kept := q.h.LockPeer(p.h)
	defer p.h.Unlock()
	if !kept && (q.conn != c || !q.waiting()) {
		return carryAgain
	}
	switch {
	case p.conn != d || d.other.Load() != c || p.tx.lifecycle.ended() || !p.rx.allowed && !d.mayReceive(),
		p.h.State() != verbs.StateRTS || q.h.State() != verbs.StateRTS:
		return carryStream
	case !t.cursor.atOldest() || t.reads.rtr:
		return carryWaits // transmit is called when that changes
	case c.sent != d.fed:
		d.awaited = true
		return carryWaits
	}
	p.rx.allowed, p.rx.heard = true, true
	for moved := uint64(0); q.h.SendLen() > 0; {
		if moved >= memory.HoldMost {
			if q.h.Wanted() || p.h.Wanted() {
				return carryWanted
			}
			return carryMore
		}
		wr := q.h.Send(0)
		switch {
		case t.responses.n > 0 && !t.cursor.is(movedInPart):
			return carryAgain // answers go first: one may have come to be due just now
		case isRead(wr.Opcode) && c.fed != d.sent:
			return carryWaits // the peer's answer may not overtake what that has sent before
		}
		n, ok := q.carry(p, wr)
		if !ok {
			return carryStream
		}
		moved += max(n, memory.HoldLeast)
	}
	return carryNothing
}

// waiting tells whether a request is next of which nothing has gone through the stream, and could be sent.
func (q *qp) waiting() bool {
	t := &q.tx
	return t.lifecycle.is(open) && !t.output.full && t.cursor.mayMove() && t.cursor.unsent(q.h.SendLen()) > 0
}

// carry moves a request's message to p, or the next part of it, and tells how much that was; false if it has to go through
// the stream, and nothing has changed.
func (q *qp) carry(p *qp, wr *verbs.SendWR) (moved uint64, ok bool) {
	t := &q.tx
	n := wr.Length() - t.cursor.off
	last := n <= memory.HoldMost
	if !last {
		n = memory.HoldMost
	}
	var answer uint32
	switch wr.Opcode {
	case verbs.Send, verbs.SendWithInv:
		ok = q.carrySend(p, wr, n)
	case verbs.RDMAWrite, verbs.RDMAWriteWithImm:
		ok = q.carryWrite(p, wr, n)
	case verbs.RDMARead:
		answer = uint32(wr.Length())
		ok = q.carryRead(p, wr, n)
	case verbs.AtomicCmpAndSwp, verbs.AtomicFetchAndAdd:
		last, answer = true, 8
		ok = q.carryAtomic(p, wr)
	}
	switch {
	case !ok:
		return 0, false
	case !last:
		q.carriedPart(p, wr.Opcode, t.cursor.off+n)
		return n, true
	}
	t.cursor.moved()
	q.direct++
	if isSend(wr.Opcode) || wr.Opcode == verbs.RDMAWriteWithImm {
		q.received(p, wr)
	} else {
		q.h.CompleteSend(verbs.WCSuccess, answer)
	}
	return n, true
}

// received completes a request that is carried over, and the peer's receive request with it.
func (q *qp) received(p *qp, wr *verbs.SendWR) {
	wc := verbs.WC{Opcode: verbs.WCRecv, ByteLen: uint32(wr.Length())}
	switch wr.Opcode {
	case verbs.SendWithInv:
		wc.Flags, wc.InvalidatedRKey = verbs.WCWithInv, wr.InvalidateRKey
	case verbs.RDMAWriteWithImm:
		wc.Opcode, wc.Flags, wc.ImmData = verbs.WCRecvRDMAWithImm, verbs.WCWithImm, wr.ImmData
	}
	solicited := wr.Flags&verbs.SendSolicited != 0
	q.skip(p, rdmap.QueueSend)
	q.h.CompleteSend(verbs.WCSuccess, 0)
	p.h.CompleteRecv(&wc, solicited) // last: whoever waits for it answers at once, and finds the locks free
}

// carriedPart takes in that some of the message that is next, but not all, has been carried over: off bytes.
func (q *qp) carriedPart(p *qp, op verbs.WROpcode, off uint64) {
	t := &q.tx
	t.cursor.movedTo(off)
	switch {
	case op == verbs.RDMARead:
		t.reads.place(off)
	case isSend(op):
		p.rx.queues[rdmap.QueueSend].SkipTo(uint32(off))
	default:
		p.rx.writing = off
	}
}

// message is what a list of q's names.
func (q *qp) message(list []verbs.SGE) memory.Message {
	return memory.Message{Regions: q.e.regions, PD: q.h.PD(), List: list}
}

// carrySend places n bytes of a SEND in the peer's oldest receive request.
func (q *qp) carrySend(p *qp, wr *verbs.SendWR, n uint64) bool {
	length, off := wr.Length(), q.tx.cursor.off
	if length > MaxMessage || p.srq && !memory.Sound(wr, q.message(wr.SGList), off, n) {
		return false
	}
	recv := p.h.Recv()
	if recv == nil || length > recv.Length() || !memory.Copy(p.message(recv.SGList), q.message(wr.SGList), wr, off, n) {
		return false
	}
	return wr.Opcode == verbs.Send || off+n < length || p.invalidate(wr.InvalidateRKey)
}

// skip counts a message of one of the queues on both sides.
func (q *qp) skip(p *qp, queue int) {
	q.tx.numbers.advance(queue)
	p.rx.queues[queue].Skip()
}

// carryWrite places n bytes of a WRITE in the memory that it names.
func (q *qp) carryWrite(p *qp, wr *verbs.SendWR, n uint64) bool {
	off := q.tx.cursor.off
	if n > 0 && p.h.Attr().QPAccessFlags&verbs.AccessRemoteWrite == 0 {
		return false
	}
	to, denial := p.e.regions.Remote(p.h, wr.RKey, wr.RemoteAddr+off, n, verbs.AccessRemoteWrite)
	b, plain := to.Ordinary()
	if denial != memory.Allowed || !plain {
		return false
	}
	last, imm := off+n == wr.Length(), wr.Opcode == verbs.RDMAWriteWithImm
	if imm && last && (p.srq && !memory.Sound(wr, q.message(wr.SGList), off, n) || p.h.Recv() == nil) {
		return false
	}
	if !memory.Write(wr, q.message(wr.SGList), b, off) {
		return false
	}
	if last {
		p.rx.writing, p.rx.written = 0, off+n
		if imm {
			p.rx.written = 0
		}
	}
	return true
}

// readable tells whether both sides allow READs and atomics at all.
func (q *qp) readable(p *qp) bool { return q.conn.ord > 0 && p.tx.responses.depth > 0 }

// carryRead fetches n bytes of what a READ names.
func (q *qp) carryRead(p *qp, wr *verbs.SendWR, n uint64) bool {
	length, off := wr.Length(), q.tx.cursor.off
	if off == 0 && (!q.readable(p) || n > 0 && p.h.Attr().QPAccessFlags&verbs.AccessRemoteRead == 0) {
		return false
	}
	if off == 0 && n < length { // a request names all of it
		if _, denial := p.e.regions.Remote(p.h, wr.RKey, wr.RemoteAddr, length, verbs.AccessRemoteRead); denial != memory.Allowed {
			return false
		}
	}
	from, denial := p.e.regions.Remote(p.h, wr.RKey, wr.RemoteAddr+off, n, verbs.AccessRemoteRead)
	b, plain := from.Ordinary()
	if denial != memory.Allowed || !plain || q.e.regions.Scatter(b, q.h.PD(), wr.SGList, off) != verbs.WCSuccess {
		return false
	}
	if off+n == length {
		q.skip(p, rdmap.QueueReadRequest)
		q.tx.reads.moved()
	}
	return true
}

// carryAtomic carries an atomic out.
func (q *qp) carryAtomic(p *qp, wr *verbs.SendWR) bool {
	if !q.readable(p) {
		return false
	}
	word, err := p.atomicWord(&rdmap.AtomicRequestHeader{STag: wr.RKey, TO: wr.RemoteAddr})
	if err != nil || !memory.Atomic(wr, q.message(wr.SGList), word) {
		return false
	}
	q.skip(p, rdmap.QueueReadRequest)
	q.tx.reads.moved()
	p.skip(q, rdmap.QueueAtomicResponse)
	return true
}
