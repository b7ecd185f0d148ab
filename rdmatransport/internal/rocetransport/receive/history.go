package receive

import (
	"slices"

	"github.com/softrnic/softrnic/rdmatransport/wire"
)

// history is the most recent READs, atomics and the like, kept to answer duplicates. It holds at
// least as many as the requester may have outstanding. Once full, it is a ring.
type history struct {
	ring   []Response
	oldest int // index of the oldest; 0 until the ring is full
}

func (h *history) init(limit uint8) { h.ring = make([]Response, 0, limit) }

// remember adds a response. In a full history it replaces the oldest response, which the requester
// must have received.
func (h *history) remember(r *Response, limit uint8) {
	if len(h.ring) < int(limit) {
		h.ring = append(h.ring, *r)
		return
	}
	h.ring[h.oldest] = *r
	if h.oldest++; h.oldest == len(h.ring) {
		h.oldest = 0
	}
}

// setLimit changes the number of responses that are kept. If the limit rises, the ring is rotated
// so that the oldest comes first, because remember appends. If it falls, all entries stay, because
// the requester may still repeat any of them.
func (h *history) setLimit(limit uint8) {
	if len(h.ring) < int(limit) {
		h.ring = slices.Concat(h.ring[h.oldest:], h.ring[:h.oldest])
		h.oldest = 0
	}
}

// find returns the response that a PSN belongs to, and the index of the packet within it. It
// returns nil if there is none. The search starts at the newest: PSNs wrap, and the PSN of an old
// response may be in use again.
func (h *history) find(psn uint32) (r *Response, into uint32) {
	for i := range h.ring {
		old := &h.ring[(h.oldest+len(h.ring)-1-i)%len(h.ring)]
		if into := wire.PSNDiff(psn, old.PSN); into >= 0 && into < int32(old.Packets) {
			return old, uint32(into)
		}
	}
	return nil, 0
}
