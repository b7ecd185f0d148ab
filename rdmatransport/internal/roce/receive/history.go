package receive

import (
	"slices"

	"github.com/softrnic/softrnic/rdmatransport/roce/wire"
)

// history is the last READs, atomics and the like, for duplicates: as many as the requester may have outstanding, or more.
// It is a ring once there are so many.
type history struct {
	ring   []Response
	oldest int // place of the oldest: 0 until the ring is closed
}

func (h *history) init(limit uint8) { h.ring = make([]Response, 0, limit) }

// remember adds one, in place of the oldest if need be: the requester cannot be missing that one's response any more.
func (h *history) remember(r *Response, limit uint8) {
	if len(h.ring) < int(limit) {
		h.ring = append(h.ring, *r)
		return
	}
	h.ring[h.oldest] = *r
	h.oldest = (h.oldest + 1) % len(h.ring)
}

// setLimit changes how many there are. Of a ring that is to grow, the oldest entry moves to the front, since remember
// appends to the end. One that is larger than the new limit stays as it is: the requester may still repeat all of it.
func (h *history) setLimit(limit uint8) {
	if len(h.ring) < int(limit) {
		h.ring = slices.Concat(h.ring[h.oldest:], h.ring[:h.oldest])
		h.oldest = 0
	}
}

// find is the one that has a PSN, nil if there is none, and how far into it the PSN is. The newest comes first: PSNs wrap,
// and an old one may have come round.
func (h *history) find(psn uint32) (r *Response, into uint32) {
	for i := range h.ring {
		old := &h.ring[(h.oldest+len(h.ring)-1-i)%len(h.ring)]
		if into := wire.PSNDiff(psn, old.PSN); into >= 0 && into < int32(old.Packets) {
			return old, uint32(into)
		}
	}
	return nil, 0
}
