package send

import "github.com/softrnic/softrnic/rdmatransport/roce/wire"

// overtaken tells whether a transmission counts as lost, given the newest one that has arrived: that was sent LossEvidence
// later, or is the last that was sent at all.
func overtaken(number, newest uint32, last bool) bool {
	if last {
		return number < newest
	}
	return number+LossEvidence <= newest
}

// detectLosses marks what is lost of the PSNs from una up to max by what has arrived since it last looked, and returns
// how many packets of the network those are.
func (b *scoreboard) detectLosses(una, max uint32) (packets uint32) {
	if !b.takeNews() {
		return 0
	}
	return b.detectLostRequests(max) + b.detectLostAnswers(una, max)
}

// detectLostRequests looks at what is not executed: packets that the peer would have acknowledged by now. A READ's PSNs
// share their request's fate.
func (b *scoreboard) detectLostRequests(max uint32) (packets uint32) {
	gone, last := false, b.newest >= b.tail
	for psn := b.executed; psn != max; psn = wire.PSNAdd(psn, 1) {
		s := b.at(psn)
		if !s.is(answer) {
			gone = overtaken(s.number, b.newest, last)
		} else if s.is(head) {
			gone = !s.is(accepted) && overtaken(s.number, b.newest, last)
		}
		if gone && s.unknown() {
			b.lose(psn)
			if !s.is(answer) || s.is(head) {
				packets++
			}
		}
	}
	return packets
}

// detectLostAnswers looks at what is executed: the peer answers in the order of PSNs, so only what stands behind an
// answer tells that it is lost.
func (b *scoreboard) detectLostAnswers(una, max uint32) (packets uint32) {
	newest, last := uint32(0), b.executed == max
	for psn := b.executed; psn != una; {
		psn = wire.PSNAdd(psn, 1<<24-1)
		switch s := b.at(psn); {
		case s.is(arrived):
			if s.number > newest {
				newest = s.number
			}
		case s.is(lost):
		case overtaken(s.number, newest, last):
			b.lose(psn)
			packets++
		default:
			last = false
		}
	}
	return packets
}
