package send

import "github.com/softrnic/softrnic/rdmatransport/wire"

// flight is the range of PSNs in flight. PSNs have 24 bits and wrap.
type flight struct {
	una  uint32 // snd.una: the oldest unacknowledged PSN
	next uint32 // the first PSN of the next request to be started
	// One past the highest PSN ever sent; PSNs from una up to max are in flight or to be
	// retransmitted.
	max uint32
}

func (f *flight) init(psn uint32) { *f = flight{psn, psn, psn} }

// idle reports whether nothing is in flight.
func (f *flight) idle() bool { return f.una == f.max }

// has reports whether a PSN is in flight. An answer with any other PSN is a duplicate or forged.
func (f *flight) has(psn uint32) bool {
	return wire.PSNDiff(psn, f.una) >= 0 && wire.PSNDiff(psn, f.max) < 0
}

// start allocates n PSNs and returns the first.
func (f *flight) start(n uint32) (psn uint32) {
	psn = f.next
	f.next = wire.PSNAdd(psn, n)
	return psn
}

// sent records that everything before PSN past was sent at least once.
func (f *flight) sent(past uint32) {
	if wire.PSNDiff(past, f.max) > 0 {
		f.max = past
	}
}

// acked moves una, and returns by how many PSNs.
func (f *flight) acked(una uint32) (n uint32) {
	n = uint32(wire.PSNDiff(una, f.una))
	f.una = una
	return n
}

// movedDirectly counts everything before PSN una as sent and acknowledged.
func (f *flight) movedDirectly(una uint32) { f.una, f.max = una, una }
