package receive

import (
	"slices"

	"github.com/softrnic/softrnic/rdmatransport/roce/wire"
)

// history is the last READs, atomics and the like, for duplicates: as many as the requester may
// have outstanding, or more. It is a ring once there are so many.
type history struct {
	ring   []Response
	oldest int // place of the oldest: 0 until the ring is closed
}

func (h *history) init(limit uint8) { h.ring = make([]Response, 0, limit) }

// remember adds a response. If the history is full, it replaces the oldest, which the requester
// cannot be missing any more.
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

// setLimit changes how many responses are kept. Where the limit rises, the ring is turned so that
// the oldest comes first, since remember appends to the end. Where it falls, all that are kept
// stay: the requester may still repeat all of them.
func (h *history) setLimit(limit uint8) {
	if len(h.ring) < int(limit) {
		h.ring = slices.Concat(h.ring[h.oldest:], h.ring[:h.oldest])
		h.oldest = 0
	}
}

// find returns the response that a PSN belongs to, nil if there is none, and which packet of it the
// PSN is. It looks at the newest first: PSNs wrap, and that of an old response may be in use again.
func (h *history) find(psn uint32) (r *Response, into uint32) {
	for i := range h.ring {
		old := &h.ring[(h.oldest+len(h.ring)-1-i)%len(h.ring)]
		if into := wire.PSNDiff(psn, old.PSN); into >= 0 && into < int32(old.Packets) {
			return old, uint32(into)
		}
	}
	return nil, 0
}
