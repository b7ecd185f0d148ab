package roce

// On the path: request packets that came too early, kept until what is missing before them has come; only from a peer
// that marks its packets (wire.SelectiveMark), which is then told what is kept.
//
// They are kept and executed in order, not placed at once: a WRITE behind a request that turns out to be in error must
// leave no trace, an application may wait for the last byte of a message to change, and keys and receive requests are
// to be looked at when a packet's turn comes. That is a second copy for packets behind a gap, and none for others.

import (
	"github.com/softrnic/softrnic/rdmatransport/roce/internal/send"
	"github.com/softrnic/softrnic/rdmatransport/roce/wire"
)

// reorder is the packets of one QP behind a gap. It exists while there is a gap.
type reorder struct {
	have [send.MaxSpan / 64]uint64 // which are here, by slot
	size [send.MaxSpan]uint16      // bytes of each
	data []byte                    // slots of as many bytes as a packet can have, by PSN modulo the span

	count int
	top   uint32 // one past the highest PSN here
	until int    // packets until the peer is told again
}

// hold keeps a packet that came too early; false if it cannot.
func (q *qp) hold(p *wire.Packet) bool {
	r := &q.resp
	room, mask := int(q.mtu)+headerRoom, send.Span(q.mtu)-1
	if uint32(wire.PSNDiff(p.PSN, r.psn)) > mask || p.Size() > room {
		return false
	}
	h := r.held
	if h == nil {
		if h = q.e.takeReorder(); h == nil {
			return false
		}
		h.top, h.until = r.psn, sackEvery
		r.held = h
	}
	slot := p.PSN & mask
	if bit := uint64(1) << (slot % 64); h.have[slot/64]&bit == 0 {
		b := h.data[int(slot)*room:][:p.Size()]
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

// executeHeld executes the packets whose turn has come with the one before, whose PSN was last.
func (q *qp) executeHeld(last uint32) {
	r := &q.resp
	h := r.held
	room, mask := int(q.mtu)+headerRoom, send.Span(q.mtu)-1
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
		_ = p.Parse(h.data[int(slot)*room:][:h.size[slot]]) // it did before; an unknown opcode is for execute
		last = r.psn
		q.execute(&p, p.Opcode.Info()) // if it leaves the PSN, it is to come again, or ended the connection
	}
	if r.sackDue = h.count > 0; !r.sackDue {
		q.dropHeld()
	}
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
	h := r.held
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
	if h := q.resp.held; h != nil {
		q.resp.held, q.resp.sackDue = nil, false
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
