package send

import "github.com/softrnic/softrnic/rdmatransport/roce/wire"

// probe is the packet that is sent again, ahead of everything else, towards a peer that goes back and has been silent for
// longer than a round trip takes: una. Such a peer is silent if what it waits for was lost a second time, or its NAK was,
// or the acknowledgement; its answer tells which. A peer that is only slow has one more packet to answer. One that keeps
// what comes behind a gap, and tells of it, is sent the last packet instead: see scoreboard.loseTail. Of such a peer, the scoreboard knows whether that is answered.
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

// answered tells whether una is behind the probe, and if so whether the peer has that and no more.
func (p *probe) answered(una uint32) (yes, alone bool) {
	d := wire.PSNDiff(una, p.behind)
	return d >= 0, d == 0
}
