package send

import "github.com/softrnic/softrnic/rdmatransport/roce/wire"

// probe is a packet that is sent again, before anything else, when the peer has been silent for
// longer than a round trip takes.
//
// A peer that goes back is sent una. It is silent if what it waits for was lost a second time, or
// its NAK or acknowledgement was, and its answer tells which. If it is only slow, it has one more
// packet to answer.
//
// A peer that keeps what comes behind a gap, and tells of it, is sent the last packet instead
// (scoreboard.loseTail). The scoreboard then knows whether that was answered, and this type is not
// used.
type probe struct {
	pending bool   // to be sent now
	behind  uint32 // PSN behind the probe, once it is sent
}

func (p *probe) schedule() { p.pending = true }
func (p *probe) cancel()   { p.pending = false }

func (p *probe) sent(psn, n uint32) {
	p.pending = false
	p.behind = wire.PSNAdd(psn, n)
}

// answered reports whether una is behind the probe, and if so whether the peer has that and no
// more.
func (p *probe) answered(una uint32) (yes, alone bool) {
	d := wire.PSNDiff(una, p.behind)
	return d >= 0, d == 0
}
