package send

import "github.com/softrnic/softrnic/rdmatransport/roce/wire"

// flight is what is in flight. PSNs have 24 bits and wrap.
type flight struct {
	una  uint32 // the oldest PSN that is not acknowledged
	next uint32 // the PSN that the next request to be started gets
	max  uint32 // one past the highest PSN that was ever sent; una up to max is in flight, or to be sent again
}

func (f *flight) init(psn uint32) { *f = flight{psn, psn, psn} }

// idle reports whether nothing is in flight.
func (f *flight) idle() bool { return f.una == f.max }

// has reports whether a PSN is in flight. An answer with any other PSN is a duplicate, or answers
// nothing that was sent.
func (f *flight) has(psn uint32) bool {
	return wire.PSNDiff(psn, f.una) >= 0 && wire.PSNDiff(psn, f.max) < 0
}

// start takes n PSNs for a request, and returns the first.
func (f *flight) start(n uint32) (psn uint32) {
	psn = f.next
	f.next = wire.PSNAdd(psn, n)
	return psn
}

// sent notes that everything before PSN past was sent once at least.
func (f *flight) sent(past uint32) {
	if wire.PSNDiff(past, f.max) > 0 {
		f.max = past
	}
}

// acked notes that everything before PSN una is acknowledged, and returns how many PSNs that adds.
func (f *flight) acked(una uint32) (n uint32) {
	n = uint32(wire.PSNDiff(una, f.una))
	f.una = una
	return n
}

// movedDirectly counts everything before PSN una as sent and acknowledged.
func (f *flight) movedDirectly(una uint32) { f.una, f.max = una, una }
