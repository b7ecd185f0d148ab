package send

import (
	"math/bits"

	"github.com/softrnic/softrnic/rdmatransport/roce/wire"
)

// overtaken reports whether a transmission counts as lost, given the newest one that has arrived:
// that was sent LossEvidence later, or is the last that was sent at all.
func overtaken(number, newest uint32, last bool) bool {
	if last {
		return number < newest
	}
	return number+LossEvidence <= newest
}

// detectLosses marks what is lost of the PSNs from una up to max by what has arrived since it last
// looked, and returns how many packets of the network those are.
func (b *scoreboard) detectLosses(una, max uint32) (packets uint32) {
	if !b.takeChanged() {
		return 0
	}
	return b.detectLostRequests(max) + b.detectLostAnswers(una, max)
}

// detectLostRequests looks at what is not executed: packets that the peer would have acknowledged
// by now, or told of. A READ's PSNs share their request's fate. What the peer keeps takes a step
// for 64 PSNs, and what nothing has overtaken none.
func (b *scoreboard) detectLostRequests(max uint32) (packets uint32) {
	if b.truncated && wire.PSNDiff(max, b.limit) > 0 {
		// The peer may keep what is behind the limit. It says so in the list that it sends when all
		// before the limit is executed; that this is so may be known before, by an answer to a
		// READ.
		if max = b.limit; wire.PSNDiff(b.executed, max) > 0 {
			max = b.executed
		}
	}
	isLost, last, behind := false, b.newest >= b.tail, b.executed
	for from := b.executed; from != max; {
		word, all, next := b.keptFrom(from, max)
		for left := all &^ *word; left != 0; left &= left - 1 {
			psn := from&^63 + uint32(bits.TrailingZeros64(left))
			s := b.at(psn)
			switch {
			case !s.is(answer) || s.is(head):
				isLost = overtaken(s.number, b.newest, last)
				if !isLost && wire.PSNDiff(psn, b.end) >= 0 {
					return packets // what follows was sent later
				}
				isLost = isLost && !s.is(accepted)
			case psn != behind: // the peer keeps the request
				isLost = false
			}
			behind = wire.PSNAdd(psn, 1)
			if isLost && s.unknown() {
				b.lose(psn)
				if !s.is(answer) || s.is(head) {
					packets++
				}
			}
		}
		from = next
	}
	return packets
}

// detectLostAnswers looks at what is executed: the peer answers in the order of PSNs, so only what
// stands behind an answer tells that it is lost.
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
