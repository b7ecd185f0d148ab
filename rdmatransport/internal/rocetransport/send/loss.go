package send

import (
	"math/bits"

	"github.com/softrnic/softrnic/rdmatransport/wire"
)

// overtaken reports whether a transmission counts as lost. It does if a transmission LossEvidence
// later has arrived, or the very last transmission.
func overtaken(number, newest uint32, last bool) bool {
	if last {
		return number < newest
	}
	return number+LossEvidence <= newest
}

// detectLosses marks PSNs from una up to max as lost, based on arrivals since the last call. It
// returns how many packets on the wire these are.
func (b *scoreboard) detectLosses(una, max uint32) (packets uint32) {
	if !b.takeChanged() {
		return 0
	}
	return b.detectLostRequests(max) + b.detectLostAnswers(una, max)
}

// detectLostRequests checks PSNs that are not executed. The peer would have acknowledged or
// reported these packets by now. The PSNs of a READ are lost with its request. Kept packets take
// one step per 64 PSNs. Packets after the last arrival take no step.
func (b *scoreboard) detectLostRequests(max uint32) (packets uint32) {
	if b.truncated && wire.PSNDiff(max, b.limit) > 0 {
		// The peer may keep packets after the limit. It reports them in its next list, after
		// everything before the limit is executed. A response to a READ may show that earlier.
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
					return packets // later PSNs were sent later
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

// detectLostAnswers checks PSNs that are executed. The peer sends responses in order, so only later
// responses prove one lost.
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
