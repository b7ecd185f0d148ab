package iwarp

// On the path: beside it. Where both ends of a connection are in this process, and nothing between
// them looks at the stream (see stack.Stream), messages can be moved directly: from memory to
// memory, under the locks of both QPs. Both QPs then count the message as if its segments had been
// sent and received. That is done only if everything that was sent through the stream before has
// been received, so that no message overtakes another; and only if nothing is wrong with the
// request. The rest goes through the stream: a request whose key is not valid, whose memory faults,
// or whose receive request is not posted, and MPA's set-up.
//
// The locks are held for memory.HoldMost bytes, and for more only if nobody waits for them. A
// longer message is moved in parts, and between two parts both QPs are as if the segments of those
// parts had been sent. So whatever happens to a QP or its memory in the middle of a message has the
// same result as with segments: keys are looked up anew for each part, and what can no longer be
// moved directly goes through the stream, from where it is.
//
// A goroutine that posts moves everything that it has posted. Others, such as TCP's, have more to
// do: they move one part, and start a goroutine for the rest.

import (
	"net/netip"
	"sync"

	"github.com/softrnic/softrnic/rdmatransport/internal/memory"
	"github.com/softrnic/softrnic/rdmatransport/iwarp/rdmap"
	"github.com/softrnic/softrnic/stack"
	"github.com/softrnic/softrnic/verbs"
)

// endpoints has the connections of this process whose streams QPs have, and whose other end may be
// in it and is not known yet.
var endpoints = struct {
	mu    sync.Mutex // taken last
	alone map[endpoint]*conn
}{alone: map[endpoint]*conn{}}

// endpoint is one end of a TCP connection; nic has the address local.
type endpoint struct {
	nic           stack.NIC
	local, remote netip.AddrPort
}

// pair lets the ends of a connection find each other, if both are in this process.
func (c *conn) pair() {
	far := c.stream.LocalNIC()
	nics := c.e.net.NICs()
	if far == nil || c.port < 1 || int(c.port) > len(nics) {
		return
	}
	here := endpoint{nics[c.port-1], addrPort(c.stream.LocalAddr()), addrPort(c.stream.RemoteAddr())}
	there := endpoint{far, here.remote, here.local}
	endpoints.mu.Lock()
	defer endpoints.mu.Unlock()
	other := endpoints.alone[there]
	if other == nil {
		c.alone = &here
		endpoints.alone[here] = c
		return
	}
	delete(endpoints.alone, there)
	other.alone = nil
	c.other.Store(other)
	other.other.Store(c)
}

// unpair undoes pair.
func (c *conn) unpair() {
	endpoints.mu.Lock()
	if c.alone != nil && endpoints.alone[*c.alone] == c {
		delete(endpoints.alone, *c.alone)
	}
	c.alone = nil
	endpoints.mu.Unlock()
	if other := c.other.Swap(nil); other != nil {
		other.other.CompareAndSwap(c, nil)
	}
}

// resumeTransmit sends the requests that waited until the other end had received everything that
// was sent.
func (c *conn) resumeTransmit() {
	q := c.qp
	q.h.Lock()
	defer q.h.Unlock()
	if q.conn == c {
		q.transmit()
	}
}

// sendDirect moves requests directly, from the next one on, as far as possible. It returns done if
// it has moved some, or if the queue may have changed, and wait if the next request has to wait. If
// neither is true, the next request goes through the stream. The QP may have been unlocked
// meanwhile.
func (q *qp) sendDirect() (done, wait bool) {
	c := q.conn
	switch {
	case c.other.Load() == nil:
		return false, false
	case q.moving:
		return false, true
	}
	q.moving = true
	end := q.tx.cursor.first + uint64(q.h.SendLen())
	rest := q.moveSome(c)
	if rest >= directMore {
		rest = q.moveRest(rest, end)
	}
	q.moving = rest == directDeferred
	return rest <= directAgain, rest >= directWaits
}

// moveRest moves what moveSome has left. A goroutine that posts moves the requests before number
// end, which it has posted itself; what others have posted meanwhile is left to another goroutine.
func (q *qp) moveRest(rest directResult, end uint64) directResult {
	posted := q.posting
	for rest >= directMore {
		if !posted || q.tx.cursor.first >= end {
			go q.moveDeferred()
			return directDeferred
		}
		if rest == directYields {
			q.h.Yield()
		}
		c := q.conn
		if c == nil || !q.mayMove() {
			return directAgain
		}
		rest = q.moveSome(c)
	}
	return rest
}

// moveDeferred moves what moveRest has left to another goroutine.
func (q *qp) moveDeferred() {
	q.h.Lock()
	defer q.h.Unlock()
	q.moving = false
	q.transmitPosted()
}

// directResult is what is to be done about the requests that are left in the send queue.
type directResult uint8

const (
	directDone     directResult = iota
	directAgain                 // the queue may have changed: look at it again
	directStream                // the next request goes through the stream
	directWaits                 // the next request waits
	directDeferred              // another goroutine moves them
	directMore                  // they can be moved
	directYields                // they can be moved, but somebody waits for one of the locks
)

// moveSome moves requests for as long as it may hold both locks. q has something to send on c.
func (q *qp) moveSome(c *conn) directResult {
	d := c.other.Load()
	if d == nil || c.stream.LocalNIC() == nil || d.stream.LocalNIC() == nil {
		return directStream
	}
	p, t := d.qp, &q.tx
	kept := q.h.LockPeer(p.h)
	defer q.h.UnlockPeer(p.h)
	if !kept && (q.conn != c || !q.mayMove()) {
		return directAgain
	}
	paired := p.conn == d && d.other.Load() == c
	inRTS := p.h.State() == verbs.StateRTS && q.h.State() == verbs.StateRTS
	switch {
	case !paired, !inRTS, p.tx.lifecycle.ended(), !p.rx.allowed && !d.mayReceive():
		return directStream
	case !t.cursor.atOldest() || t.reads.rtr:
		return directWaits // transmit is called when that changes
	case c.sent != d.received:
		d.otherWaits = true
		return directWaits
	}
	p.rx.allowed, p.rx.heard = true, true
	if p.tx.lifecycle.is(awaitingPeer) { // as with an FPDU: p may send from now on
		p.tx.lifecycle.on(onPeerFPDU)
		go d.resumeTransmit()
	}
	for moved := uint64(0); q.h.SendLen() > 0; {
		if moved >= memory.HoldMost {
			if q.h.Wanted() || p.h.Wanted() {
				return directYields
			}
			return directMore
		}
		wr := q.h.Send(0)
		switch {
		case t.responses.n > 0 && !t.cursor.is(movedInPart):
			return directAgain // responses go first: one may have become due just now
		case isRead(wr.Opcode) && c.received != d.sent:
			return directWaits // the peer's response may not overtake what the peer has sent before
		}
		n, ok := q.moveNext(p, wr)
		if !ok {
			return directStream
		}
		moved += max(n, memory.HoldLeast)
	}
	return directDone
}

// mayMove reports whether a request could be sent now of which nothing has gone through the stream.
func (q *qp) mayMove() bool {
	t := &q.tx
	return t.lifecycle.is(open) && !t.output.full && t.cursor.mayMove() && t.cursor.unsent(q.h.SendLen()) > 0
}

// moveNext moves the message of the next request, wr, to p, or the next part of it, and returns how
// many bytes that was. If not ok, nothing has changed, and it has to go through the stream.
func (q *qp) moveNext(p *qp, wr *verbs.PostedSend) (moved uint64, ok bool) {
	t := &q.tx
	n := wr.Length() - t.cursor.off
	last := n <= memory.HoldMost
	if !last {
		n = memory.HoldMost
	}
	var response uint32 // bytes that come back
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
	switch {
	case !ok:
		return 0, false
	case !last:
		q.movedPart(p, wr.Opcode, t.cursor.off+n)
		return n, true
	}
	t.cursor.moved()
	q.direct++
	if isSend(wr.Opcode) || wr.Opcode == verbs.RDMAWriteWithImm {
		q.completeBoth(p, wr)
	} else {
		q.h.CompleteSend(verbs.WCSuccess, response)
	}
	return n, true
}

// completeBoth completes a request that was moved, and the peer's receive request with it.
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
	p.h.CompleteRecv(&wc, solicited) // this is last, so that an application that waits for it finds the locks free
}

// movedPart notes that off bytes of the next message, and not all of it, have been moved.
func (q *qp) movedPart(p *qp, op verbs.WROpcode, off uint64) {
	t := &q.tx
	t.cursor.movedTo(off)
	switch {
	case op == verbs.RDMARead:
		t.reads.place(off)
	case isSend(op):
		p.rx.queues[rdmap.QueueSend].SkipTo(uint32(off))
	default:
		p.rx.writeBytes = off
	}
}

// message is the memory that a gather or scatter list of q's names.
func (q *qp) message(list []verbs.SGE) memory.Message {
	return memory.Message{Regions: q.e.regions, PD: q.h.PD(), List: list}
}

// destination is the memory that a receive request of q's names.
func (q *qp) destination(recv *verbs.PostedRecv) memory.Message {
	return memory.Message{Regions: q.e.regions, PD: q.h.RecvPD(), List: recv.SGList}
}

// moveSend places n bytes of a SEND in the peer's oldest receive request.
func (q *qp) moveSend(p *qp, wr *verbs.PostedSend, n uint64) bool {
	length, off := wr.Length(), q.tx.cursor.off
	if length > MaxMessage || p.srq && !memory.Sound(wr, q.message(wr.SGList), off, n) {
		return false
	}
	recv := p.h.Recv()
	if recv == nil || length > recv.Length() || !memory.Copy(p.destination(recv), q.message(wr.SGList), wr, off, n) {
		return false
	}
	return wr.Opcode == verbs.Send || off+n < length || p.invalidate(wr.InvalidateRKey)
}

// countMessage counts a message on one of DDP's queues as sent by q and received by p.
func (q *qp) countMessage(p *qp, queue int) {
	q.tx.numbers.advance(queue)
	p.rx.queues[queue].Skip()
}

// moveWrite places n bytes of a WRITE in the memory that it names.
func (q *qp) moveWrite(p *qp, wr *verbs.PostedSend, n uint64) bool {
	off := q.tx.cursor.off
	if n > 0 && p.h.Attr().QPAccessFlags&verbs.AccessRemoteWrite == 0 {
		return false
	}
	to, denial := p.e.regions.Remote(p.h, wr.RKey, wr.RemoteAddr+off, n, verbs.AccessRemoteWrite)
	if denial != memory.Allowed {
		return false
	}
	last, imm := off+n == wr.Length(), wr.Opcode == verbs.RDMAWriteWithImm
	if imm && last {
		unsound := p.srq && !memory.Sound(wr, q.message(wr.SGList), off, n)
		if unsound || p.h.Recv() == nil {
			return false
		}
	}
	if !memory.Write(wr, q.message(wr.SGList), to, off) {
		return false
	}
	if last {
		p.rx.writeBytes, p.rx.lastWrite = 0, off+n
		if imm {
			p.rx.lastWrite = 0
		}
	}
	return true
}

// allowReads reports whether both sides allow READs and atomics at all.
func (q *qp) allowReads(p *qp) bool { return q.conn.ord > 0 && p.tx.responses.depth > 0 }

// moveRead fetches n bytes of what a READ names.
func (q *qp) moveRead(p *qp, wr *verbs.PostedSend, n uint64) bool {
	length, off := wr.Length(), q.tx.cursor.off
	if off == 0 && (!q.allowReads(p) || n > 0 && p.h.Attr().QPAccessFlags&verbs.AccessRemoteRead == 0) {
		return false
	}
	if off == 0 && n < length { // a Read Request names all of the message
		if _, denial := p.e.regions.Remote(p.h, wr.RKey, wr.RemoteAddr, length, verbs.AccessRemoteRead); denial != memory.Allowed {
			return false
		}
	}
	from, denial := p.e.regions.Remote(p.h, wr.RKey, wr.RemoteAddr+off, n, verbs.AccessRemoteRead)
	if denial != memory.Allowed || !memory.Read(q.message(wr.SGList), from, off) {
		return false
	}
	if off+n == length {
		q.countMessage(p, rdmap.QueueReadRequest)
		q.tx.reads.moved()
	}
	return true
}

// moveAtomic executes an atomic.
func (q *qp) moveAtomic(p *qp, wr *verbs.PostedSend) bool {
	if !q.allowReads(p) {
		return false
	}
	word, err := p.atomicWord(&rdmap.AtomicRequestHeader{STag: wr.RKey, TO: wr.RemoteAddr})
	if err != nil || !memory.Atomic(wr, q.message(wr.SGList), word) {
		return false
	}
	q.countMessage(p, rdmap.QueueReadRequest)
	q.tx.reads.moved()
	p.countMessage(q, rdmap.QueueAtomicResponse)
	return true
}
