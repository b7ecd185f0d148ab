package roce

// On the path: request packets that came too early, kept until what is missing before them has come; only from a peer
// that marks its packets (wire.Mark), which is then told what is kept.
//
// They are kept and executed in order, not placed at once: a WRITE behind a request that turns out to be in error must
// leave no trace, an application may wait for the last byte of a message to change, and keys and receive requests are
// to be looked at when a packet's turn comes. That is a second copy for packets behind a gap, and none for others.

import (
	"bytes"
	"time"

	"github.com/softrnic/softrnic/rdmatransport/roce/internal/send"
	"github.com/softrnic/softrnic/rdmatransport/roce/wire"
)

// reorder is the packets of one QP behind a gap. It exists while there is a gap.
type reorder struct {
	have [send.MaxSpan / 64]uint64 // which are here, by slot
	size [send.MaxSpan]uint16      // bytes of each
	data []byte                    // slots of as many bytes as a packet can have, by PSN modulo the span

	count    int
	top      uint32        // one past the highest PSN here
	until    int           // packets until the peer is told again
	told     bool          // the peer was told of some
	deadline time.Duration // when all are dropped, unless something that was missing comes before
}

// hold keeps a packet.
func (q *qp) hold(p *wire.Packet) bool {
	r := &q.resp
	h := r.early.held
	room, mask := int(q.mtu)+headerRoom, send.Span(q.mtu)-1
	slot := p.PSN & mask
	kept := h.data[int(slot)*room:]
	switch bit := uint64(1) << (slot % 64); {
	case h.have[slot/64]&bit != 0:
		if !samePacket(kept[:h.size[slot]], p) {
			q.suspect()
			return false
		}
	default:
		b := kept[:p.Size()]
		n := p.EncodeHeader(b)
		n += copy(b[n:], p.Payload)
		clear(b[n:]) // pad, and an ICRC that nobody will look at again
		h.have[slot/64] |= bit
		h.size[slot] = uint16(len(b))
		h.count++
	}
	if wire.PSNDiff(p.PSN, h.top) > 0 {
		q.e.Counters.OutOfSeqRequest.Add(1)
		h.until = min(h.until, send.LossEvidence) // another gap; by then it is no mere change of order
	}
	if wire.PSNDiff(p.PSN, h.top) >= 0 {
		h.top = wire.PSNAdd(p.PSN, 1)
	}
	if h.until--; h.until <= 0 || p.AckReq {
		h.until = sackEvery
		r.sackDue = true
	}
	return true
}

// samePacket tells whether a packet is the one that is kept, but for what may differ when it is sent again: its request for an
// acknowledgement and its mark, the ECN bits, the ICRC.
func samePacket(kept []byte, p *wire.Packet) bool {
	if len(kept) != p.Size() {
		return false
	}
	var header [wire.MaxHeaderLen]byte
	n := p.EncodeHeader(header[:])
	return bytes.Equal(kept[:4], header[:4]) && bytes.Equal(kept[wire.BTHLen:n], header[wire.BTHLen:n]) &&
		bytes.Equal(kept[n:n+len(p.Payload)], p.Payload)
}

// executeHeld executes the packets whose turn has come with the one before, whose PSN was last.
func (q *qp) executeHeld(last uint32) {
	r := &q.resp
	h := r.early.held
	room, mask := int(q.mtu)+headerRoom, send.Span(q.mtu)-1
	if r.psn != last {
		h.deadline = q.e.now() + heldLongest
	}
	var p wire.Packet
	for !r.fatal && r.psn != last {
		// A READ takes the PSNs of its responses: packets that claim them are none of its peer's.
		for psn := wire.PSNAdd(last, 1); psn != r.psn && wire.PSNDiff(psn, last) <= int32(mask); psn = wire.PSNAdd(psn, 1) {
			h.take(psn & mask)
		}
		slot := r.psn & mask
		if !h.take(slot) {
			break
		}
		_ = p.Parse(h.data[int(slot)*room:][:h.size[slot]]) // it did before
		last = r.psn
		before := *r
		q.execute(&p, p.Opcode.Info()) // if it leaves the PSN, it is to come again
		if r.fatal {
			// If it is the peer's, it is in error also when it comes in its turn.
			*r = before
			q.suspect()
			if !r.ackDue { // else the acknowledgement goes, and a packet from further on brings the NAK
				q.nakSequence()
			}
			return
		}
	}
	if r.sackDue = h.count > 0; !r.sackDue {
		q.dropHeld()
	}
	r.early.gap = r.sackDue && !r.nakSent
}

// take frees a slot; false if it was free.
func (h *reorder) take(slot uint32) bool {
	bit := uint64(1) << (slot % 64)
	if h.have[slot/64]&bit == 0 {
		return false
	}
	h.have[slot/64] &^= bit
	h.count--
	return true
}

// sendSack tells the peer what is kept, and so what is missing.
func (q *qp) sendSack() {
	r := &q.resp
	h := r.early.held
	h.told = true
	words := (int(wire.PSNDiff(h.top, r.psn)) - 1 + 63) / 64
	p := wire.Packet{
		BTH:  wire.BTH{Opcode: wire.RCAck, PSN: r.psn},
		AETH: wire.AETH{Syndrome: wire.NakPSNSeq, MSN: r.msn},
	}
	header, b := q.datagram(&p, 8*words)
	if b == nil {
		return
	}
	sack := wire.Sack(b[p.EncodeHeader(b):])
	all := h.have[:send.Span(q.mtu)/64]
	for i := range words {
		from := int(r.psn+1) + 64*i
		at, shift := from/64, from%64
		sack.PutWord(i, all[at&(len(all)-1)]>>shift|all[(at+1)&(len(all)-1)]<<(64-shift))
	}
	q.seal(header, b)
}

// dropHeld forgets what is kept.
func (q *qp) dropHeld() {
	if h := q.resp.held(); h != nil {
		q.resp.early.held, q.resp.sackDue = nil, false
		q.e.giveReorder(h)
	}
}

// takeReorder is an empty store; nil where too many QPs have one.
func (e *Engine) takeReorder() *reorder {
	if e.reorders.Add(1) > maxReorders {
		e.reorders.Add(-1)
		return nil
	}
	h, _ := e.reorderPool.Get().(*reorder)
	if h == nil {
		h = &reorder{data: make([]byte, reorderBytes)}
	}
	return h
}

func (e *Engine) giveReorder(h *reorder) {
	clear(h.have[:])
	h.count = 0
	e.reorders.Add(-1)
	e.reorderPool.Put(h)
}
