package fabric

import "github.com/softrnic/softrnic/link"

// queue is the output queue of a class. A switch has one for all flows. An adapter takes turns
// between the QPs, and sends acknowledgements first, but not before READ responses of their QP.
type queue struct {
	bytes int
	first fifo
	data  fifo
	turns *flow // the one whose turn it is, in a ring
}

// flow is what an adapter has to send for one QP. It is the QP's link.Queue.
type flow struct {
	fifo
	next, prev *flow // in the ring; nil if it is empty
	h          *Host
	key        uint64
	ready      func() // of its sender; nil: none
	waits      bool   // the sender does, until it is empty
	replies    int    // packets that are
}

// fullFlow is the number of the largest frames that a sender lets wait in a flow.
const fullFlow = 2

// Queue implements link.Queues. Frames have a queue for each class, destination and QP.
func (h *Host) Queue(headers []byte, ready func()) link.Queue {
	p := packet{frame: headers, from: h.index}
	if !h.f.classify(&p) || p.kind&first != 0 {
		return nil
	}
	fl := h.flow(p.flow)
	if fl.ready != nil {
		return nil
	}
	fl.ready = ready
	return fl
}

// flow returns the flow with a key.
func (h *Host) flow(key uint64) *flow {
	fl := h.flows[key]
	if fl == nil {
		fl = &flow{h: h, key: key}
		h.flows[key] = fl
	}
	return fl
}

// replies reports whether READ responses wait in a flow. An acknowledgement that overtook them
// would say that they are lost.
func (h *Host) replies(key uint64) bool {
	fl := h.flows[key]
	return fl != nil && fl.replies > 0
}

// Full implements link.Queue.
func (fl *flow) Full() bool {
	fl.waits = fl.bytes >= fullFlow*fl.h.f.maxFrame() && !fl.h.removed
	return fl.waits
}

// Close implements link.Queue.
func (fl *flow) Close() {
	fl.ready, fl.waits = nil, false
	if fl.head == nil {
		delete(fl.h.flows, fl.key)
	}
}

// callSender calls the sender that waits, if there is one, as a function of the host.
func (fl *flow) callSender() {
	if fl == nil || !fl.waits {
		return
	}
	fl.waits = false
	fl.h.shard.acting = fl.h
	fl.h.touched()
	fl.ready()
}

func (q *queue) push(p *packet, h *Host) {
	q.bytes += int(p.size)
	switch {
	case h == nil:
		q.data.push(p)
	case p.kind&first != 0 && !(p.kind&reply != 0 && h.replies(p.flow)):
		q.first.push(p)
	default:
		fl := h.flow(p.flow)
		fl.push(p)
		if p.kind&reply != 0 {
			fl.replies++
		}
		switch at := q.turns; {
		case fl.next != nil:
		case at == nil:
			fl.next, fl.prev, q.turns = fl, fl, fl
		default: // the last in turn
			fl.next, fl.prev = at, at.prev
			fl.prev.next, at.prev = fl, fl
		}
	}
}

// head returns the next packet. The queue has one.
func (q *queue) head() *packet {
	switch {
	case q.first.head != nil:
		return q.first.head
	case q.turns != nil:
		return q.turns.fifo.head
	}
	return q.data.head
}

// manyFlows is the number of flows, of QPs that may be long gone, above which an adapter forgets
// those that have nothing to send.
const manyFlows = 1024

// pop takes the next packet. The queue has one. empty is its flow, if that has no other.
func (q *queue) pop(h *Host) (p *packet, empty *flow) {
	switch fl := q.turns; {
	case q.first.head != nil:
		p = q.first.pop()
	case fl != nil:
		if p = fl.pop(); p.kind&reply != 0 {
			fl.replies--
		}
		if q.turns = fl.next; fl.fifo.head == nil {
			if fl.next == fl {
				q.turns = nil
			}
			fl.next.prev, fl.prev.next = fl.prev, fl.next
			fl.next, fl.prev = nil, nil
			if empty = fl; fl.ready == nil && len(h.flows) > manyFlows {
				delete(h.flows, fl.key)
			}
		}
	default:
		p = q.data.pop()
	}
	q.bytes -= int(p.size)
	return p, empty
}
