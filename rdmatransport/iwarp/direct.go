package iwarp

// On the path: beside it. Where a connection ends in this process, with nothing between its ends that would look at the
// stream (see stack.Stream), a message that finds the stream empty and everything in order moves from memory to memory
// under the locks of both QPs, and both count as if its segments had passed. All else goes through the stream (what MPA
// starts with, a key that is not valid, a receive that is not posted), and what is posted behind it waits until the
// other end has taken it in: no message overtakes another.

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
		q.pump()
	}
}

// sendDirect carries out what can be without the stream, from the request that is next on. done: some was, or all has
// to be looked at again; wait: what is next waits for what is under way. The QP may have been unlocked for a while.
func (q *qp) sendDirect() (done, wait bool) {
	c := q.conn
	d := c.other.Load()
	if d == nil || c.stream.Near() == nil || d.stream.Near() == nil {
		return false, false
	}
	p := d.qp
	kept := q.h.LockPeer(p.h)
	defer p.h.Unlock()
	t := &q.tx
	if !kept && (q.conn != c || !q.waiting()) {
		return true, false
	}
	switch {
	case p.conn != d || d.other.Load() != c || p.tx.ending || !p.rx.allowed && !d.mayReceive(),
		p.h.State() != verbs.StateRTS || q.h.State() != verbs.StateRTS:
		return false, false
	case t.first != t.cur || t.readyAnswer || t.answers.n > 0:
		return false, true // pump is called when that changes
	case c.sent != d.fed:
		d.awaited = true
		return false, true
	}
	p.rx.allowed, p.rx.heard = true, true
	for q.h.SendLen() > 0 {
		wr := q.h.Send(0)
		if asks(wr.Opcode) && c.fed != d.sent {
			return done, true // the answer may not overtake what the peer has sent
		}
		var wc verbs.WC
		if !q.carry(p, wr, &wc) {
			break
		}
		q.direct++
		solicited := wr.Flags&verbs.SendSolicited != 0
		received := wr.Opcode == verbs.Send || wr.Opcode == verbs.SendWithInv || wr.Opcode == verbs.RDMAWriteWithImm
		q.sentRequest(true)
		if received { // last: whoever waits for it answers at once, and finds the locks free
			q.skip(p, rdmap.QueueSend)
			p.h.CompleteRecv(&wc, solicited)
		}
		done = true
	}
	return done, false
}

// waiting tells whether a request is next that is not begun, and could be.
func (q *qp) waiting() bool {
	t := &q.tx
	return t.open && !t.full && !t.ending && t.ready == noReady && t.off == 0 && !t.wrote &&
		t.cur < t.first+uint64(q.h.SendLen())
}

// asks tells whether an operation has an answer.
func asks(op verbs.WROpcode) bool {
	return op == verbs.RDMARead || op == verbs.AtomicCmpAndSwp || op == verbs.AtomicFetchAndAdd
}

// carry moves a request's message to p, and makes wc what it completes there; false if it has to go through the stream,
// and nothing has changed.
func (q *qp) carry(p *qp, wr *verbs.SendWR, wc *verbs.WC) bool {
	switch wr.Opcode {
	case verbs.Send, verbs.SendWithInv:
		return q.carrySend(p, wr, wc)
	case verbs.RDMAWrite, verbs.RDMAWriteWithImm:
		return q.carryWrite(p, wr, wc)
	case verbs.RDMARead:
		return q.carryRead(p, wr)
	case verbs.AtomicCmpAndSwp, verbs.AtomicFetchAndAdd:
		return q.carryAtomic(p, wr)
	}
	return false
}

// message is what a list of q's names.
func (q *qp) message(list []verbs.SGE) memory.Message {
	return memory.Message{Regions: q.e.regions, PD: q.h.PD(), List: list}
}

// carrySend places a SEND in the peer's oldest receive request.
func (q *qp) carrySend(p *qp, wr *verbs.SendWR, wc *verbs.WC) bool {
	recv, n := p.h.Recv(), wr.Length()
	if recv == nil || n > recv.Length() || n > MaxMessage {
		return false
	}
	var status verbs.WCStatus
	if data := wr.Inline(); data != nil {
		status = p.e.regions.Scatter(data, p.h.PD(), recv.SGList, 0)
	} else {
		status = memory.Copy(p.message(recv.SGList), q.message(wr.SGList), n)
	}
	if status != verbs.WCSuccess {
		return false
	}
	wc.Opcode, wc.ByteLen = verbs.WCRecv, uint32(n)
	if wr.Opcode == verbs.SendWithInv {
		if !p.invalidate(wr.InvalidateRKey) {
			return false
		}
		wc.Flags |= verbs.WCWithInv
		wc.InvalidatedRKey = wr.InvalidateRKey
	}
	return true
}

// skip counts a message of one of the queues on both sides.
func (q *qp) skip(p *qp, queue int) {
	q.tx.msn[queue]++
	p.rx.queues[queue].Skip()
}

// carryWrite places a WRITE in the memory that it names.
func (q *qp) carryWrite(p *qp, wr *verbs.SendWR, wc *verbs.WC) bool {
	n, imm := wr.Length(), wr.Opcode == verbs.RDMAWriteWithImm
	if n > 0 && p.h.Attr().QPAccessFlags&verbs.AccessRemoteWrite == 0 || imm && p.h.Recv() == nil {
		return false
	}
	to, denial := p.e.regions.Remote(p.h, wr.RKey, wr.RemoteAddr, n, verbs.AccessRemoteWrite)
	b, plain := to.Ordinary()
	if denial != memory.Allowed || !plain {
		return false
	}
	if !memory.Write(wr, q.message(wr.SGList), b) {
		return false
	}
	p.rx.written = n
	if imm {
		p.rx.written = 0
		*wc = verbs.WC{Opcode: verbs.WCRecvRDMAWithImm, Flags: verbs.WCWithImm, ImmData: wr.ImmData, ByteLen: uint32(n)}
	}
	return true
}

// readable tells whether both sides allow READs and atomics at all.
func (q *qp) readable(p *qp) bool { return q.tx.ord > 0 && p.tx.answers.depth > 0 }

// carryRead fetches what a READ names.
func (q *qp) carryRead(p *qp, wr *verbs.SendWR) bool {
	n := wr.Length()
	if !q.readable(p) || n > 0 && p.h.Attr().QPAccessFlags&verbs.AccessRemoteRead == 0 {
		return false
	}
	from, denial := p.e.regions.Remote(p.h, wr.RKey, wr.RemoteAddr, n, verbs.AccessRemoteRead)
	b, plain := from.Ordinary()
	if denial != memory.Allowed || !plain || q.e.regions.Scatter(b, q.h.PD(), wr.SGList, 0) != verbs.WCSuccess {
		return false
	}
	q.skip(p, rdmap.QueueReadRequest)
	q.tx.nextID++
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
	q.tx.nextID++
	p.skip(q, rdmap.QueueAtomicResponse)
	return true
}
