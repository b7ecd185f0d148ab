package send

import "github.com/softrnic/softrnic/rdmatransport/wire"

// probe is a packet that is retransmitted first when no answer has come for longer than a round
// trip.
//
// A peer that goes back is sent una. Either the packet that it waits for was lost again, or its NAK
// or acknowledgement was lost. The answer to the probe shows which. If the peer is only slow, the
// probe costs one packet.
//
// A peer that keeps packets after a gap is sent the last packet instead (scoreboard.loseTail). The
// scoreboard tracks the answer then, and this type is not used.
type probe struct {
	pending bool   // to be sent next
	after   uint32 // PSN after the probe, once sent
}

func (p *probe) schedule() { p.pending = true }
func (p *probe) cancel()   { p.pending = false }

func (p *probe) sent(psn, n uint32) {
	p.pending = false
	p.after = wire.PSNAdd(psn, n)
}

// answered reports whether una is past the probe. alone: the peer has nothing beyond the probe.
func (p *probe) answered(una uint32) (yes, alone bool) {
	d := wire.PSNDiff(una, p.after)
	return d >= 0, d == 0
}
