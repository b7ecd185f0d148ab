package send

import (
	"math/bits"
	"sync"

	"github.com/softrnic/softrnic/rdmatransport/wire"
)

// scoreboard tracks each PSN in flight in mode Selective, while packets or READ responses are
// missing. The peer keeps packets after a gap and reports them.
//
// Losses are derived from arrivals. Each PSN has the number of its last transmission, and is lost
// once later transmissions have arrived. A lost retransmission is therefore detected like the first
// loss, and nothing is sent twice within a round trip.
type scoreboard struct {
	slots []slot   // by PSN modulo the span
	kept  []uint64 // a bit per slot: the peer reported that it keeps the packet

	tail      uint32 // transmission number of the first PSN of the last transmission
	sends     uint32 // number of the last transmission, from 1; each PSN of a READ counts
	newest    uint32 // highest transmission number that has arrived
	executed  uint32 // the peer has executed everything before this PSN
	end       uint32 // no PSN from here on has arrived, was executed early or was retransmitted
	from      uint32 // no PSN before this one is lost
	lost      int    // number of PSNs to be retransmitted
	limit     uint32 // if truncated: the peer's list had no room for this PSN and later ones
	inFlight  int32  // number of PSNs neither lost nor arrived
	truncated bool
	changed   bool // packets have arrived since the last loss detection
}

// slot is a PSN in flight.
type slot struct {
	number uint32 // of its last transmission; for a response, of its request. 0: to be retransmitted
	flags  slotFlags
}

type slotFlags uint8

const (
	arrived  slotFlags = 1 << iota // at the peer, or executed; a response: placed here
	lost                           // to be retransmitted
	answer                         // the PSN of a READ response or an atomic response
	head                           // the first PSN of a request packet with answers
	accepted                       // the peer has that request packet
)

func (s *slot) is(f slotFlags) bool { return s.flags&f != 0 }

// unknown reports whether neither the arrival nor the loss is known.
func (s *slot) unknown() bool { return s.flags&(arrived|lost) == 0 }

// scoreboards holds free ones, by the binary logarithm of their span.
var scoreboards [32]sync.Pool

// newScoreboard returns an empty scoreboard with the given span and una.
func newScoreboard(una, span uint32) *scoreboard {
	b, _ := scoreboards[bits.TrailingZeros32(span)].Get().(*scoreboard)
	if b == nil {
		b = &scoreboard{slots: make([]slot, span), kept: make([]uint64, max(1, span/64))}
	}
	clear(b.kept)
	b.truncated = false
	b.tail, b.sends, b.newest, b.lost, b.inFlight, b.changed = 0, 0, 0, 0, 0, true
	b.executed, b.end, b.from = una, una, una
	return b
}

func (b *scoreboard) release() { scoreboards[bits.TrailingZeros(uint(len(b.slots)))].Put(b) }

func (b *scoreboard) at(psn uint32) *slot { return &b.slots[psn&uint32(len(b.slots)-1)] }

// keptFrom returns the word of kept that has the bit of psn, and a mask of its bits from psn up to
// past. next is the first PSN of the next word.
func (b *scoreboard) keptFrom(psn, past uint32) (word *uint64, bits uint64, next uint32) {
	first := psn % 64
	n := min(64-first, uint32(wire.PSNDiff(past, psn)))
	return &b.kept[psn/64&uint32(len(b.kept)-1)], ^uint64(0) >> (64 - n) << first, wire.PSNAdd(psn, n)
}

// enter adds the PSNs of one request, from first up to past. They were sent in order. Those from
// sent on are to be retransmitted.
func (b *scoreboard) enter(first, past, sent uint32, isAnswer bool) {
	flags := slotFlags(0)
	if isAnswer {
		flags = answer
	}
	for psn := first; psn != past; psn = wire.PSNAdd(psn, 1) {
		if wire.PSNDiff(psn, sent) >= 0 {
			*b.at(psn) = slot{flags: flags | lost}
			b.lost++
			continue
		}
		b.sends++
		b.inFlight++
		*b.at(psn) = slot{b.sends, flags}
	}
	if isAnswer {
		b.at(first).flags |= head
	}
}

// enterHead records that psn was the PSN of a request packet, for a READ in pieces.
func (b *scoreboard) enterHead(psn uint32) {
	if s := b.at(psn); s.is(answer) {
		s.flags |= head
	}
}

// entered completes enter and enterHead for the PSNs from una up to max.
func (b *scoreboard) entered(una, max uint32) {
	b.tail = b.sends
	for psn := max; psn != una; { // the last transmission that is not lost
		psn = wire.PSNAdd(psn, 1<<24-1)
		if s := b.at(psn); !s.is(lost) && (!s.is(answer) || s.is(head)) {
			b.tail = s.number
			return
		}
	}
}

// sent records that n PSNs from psn on were sent, or requested with one packet.
func (b *scoreboard) sent(psn, n uint32, isAnswer bool) {
	flags := slotFlags(0)
	if isAnswer {
		flags = answer
	}
	b.tail = b.sends + 1
	for i := range n {
		b.sends++
		*b.at(psn + i) = slot{b.sends, flags}
	}
	b.clearKept(psn, wire.PSNAdd(psn, n))
	if isAnswer {
		b.at(psn).flags |= head
	}
	b.inFlight += int32(n)
}

// resent is sent for lost PSNs. No earlier PSN is lost.
func (b *scoreboard) resent(psn, n uint32, isAnswer bool) {
	b.lost -= int(n)
	b.sent(psn, n, isAnswer)
	b.from = wire.PSNAdd(psn, n)
	b.extend(b.from)
}

// lose marks a PSN in flight as lost.
func (b *scoreboard) lose(psn uint32) {
	b.at(psn).flags |= lost
	b.lost++
	b.inFlight--
	b.lostFrom(psn)
}

func (b *scoreboard) lostFrom(psn uint32) {
	if wire.PSNDiff(psn, b.from) < 0 {
		b.from = psn
	}
}

// markLost marks as lost a PSN that is in flight, or that the peer has reported and then dropped.
func (b *scoreboard) markLost(psn uint32) {
	b.clearKept(psn, wire.PSNAdd(psn, 1))
	switch s := b.at(psn); {
	case s.is(lost) || s.is(answer) && s.is(arrived):
	case s.is(arrived):
		s.flags = s.flags&^arrived | lost
		b.lost++
		b.lostFrom(psn)
	default:
		s.flags &^= accepted
		b.lose(psn)
	}
}

// dropped records that the peer has nothing from PSN psn up to end, even if it reported otherwise.
func (b *scoreboard) dropped(psn, end uint32) {
	for ; psn != end; psn = wire.PSNAdd(psn, 1) {
		b.markLost(psn)
	}
	b.extend(end)
}

// arrive records that a packet is at its destination.
func (b *scoreboard) arrive(psn uint32) {
	s := b.at(psn)
	if s.is(arrived) {
		return
	}
	if s.is(lost) {
		s.flags &^= lost
		b.lost--
	} else {
		b.inFlight--
	}
	s.flags |= arrived
	b.newest = max(b.newest, s.number)
	b.changed = true
	b.extend(wire.PSNAdd(psn, 1))
}

// accept records that the peer has the request packet of a response.
func (b *scoreboard) accept(s *slot) {
	s.flags |= accepted
	b.newest = max(b.newest, s.number)
	b.changed = true
}

// takeChanged reports whether packets have arrived since the last call.
func (b *scoreboard) takeChanged() bool {
	news := b.changed
	b.changed = false
	return news
}

// extend sets the end to PSN end at least.
func (b *scoreboard) extend(end uint32) {
	if wire.PSNDiff(end, b.end) > 0 {
		b.end = end
	}
}

// sacked records that the peer keeps the packets from PSN psn up to past. It returns whether that
// is new for any SEND or WRITE. Known packets take one step per 64 PSNs.
func (b *scoreboard) sacked(psn, past uint32) (isNew bool) {
	for psn != past {
		word, all, next := b.keptFrom(psn, past)
		for left := all &^ *word; left != 0; left &= left - 1 {
			isNew = b.sackedOne(psn&^63+uint32(bits.TrailingZeros64(left))) || isNew
		}
		*word |= all
		psn = next
	}
	return isNew
}

// clearKept clears the reports of the packets from PSN psn up to past, as they are retransmitted.
func (b *scoreboard) clearKept(psn, past uint32) {
	for psn != past {
		word, all, next := b.keptFrom(psn, past)
		*word &^= all
		psn = next
	}
}

// reportedByAck records an acknowledgement of everything before PSN end without a list. The peer
// keeps nothing after end.
func (b *scoreboard) reportedByAck(end uint32) {
	if b.truncated && wire.PSNDiff(end, b.limit) >= 0 {
		b.reported(end, true)
	}
}

// reported records that the peer's list reaches up to PSN limit. all: the peer keeps nothing from
// limit on.
func (b *scoreboard) reported(limit uint32, all bool) { b.limit, b.truncated = limit, !all }

func (b *scoreboard) sackedOne(psn uint32) (isNew bool) {
	switch s := b.at(psn); {
	case !s.is(answer):
		isNew = !s.is(arrived)
		b.arrive(psn)
	case s.is(head):
		b.accept(s)
	}
	return isNew
}

// answered records that the response with a PSN is placed. The peer has executed everything up to
// that PSN.
func (b *scoreboard) answered(psn uint32) {
	b.arrive(psn)
	if past := wire.PSNAdd(psn, 1); wire.PSNDiff(past, b.executed) > 0 {
		b.executed = past
	}
}

// executedBefore records that the peer has executed everything before PSN end.
func (b *scoreboard) executedBefore(end uint32) {
	for wire.PSNDiff(end, b.executed) > 0 {
		if s := b.at(b.executed); !s.is(answer) {
			b.arrive(b.executed)
		} else if s.is(head) {
			b.accept(s)
		}
		b.executed = wire.PSNAdd(b.executed, 1)
		b.changed = true // even if its arrival is known: a response may be missing
		b.extend(b.executed)
	}
}

// isExecuted reports whether the peer has executed the packet of a PSN. An answer that says
// otherwise is outdated.
func (b *scoreboard) isExecuted(psn uint32) bool { return wire.PSNDiff(psn, b.executed) < 0 }

// acked returns the end of the acknowledged and answered PSNs, from una up to past.
func (b *scoreboard) acked(una, past uint32) uint32 {
	for una != past && b.at(una).is(arrived) && (b.at(una).is(answer) || b.isExecuted(una)) {
		una = wire.PSNAdd(una, 1)
	}
	return una
}

// advance records the new una.
func (b *scoreboard) advance(una uint32) {
	if wire.PSNDiff(una, b.executed) > 0 {
		b.executed = una
	}
	if wire.PSNDiff(una, b.from) > 0 {
		b.from = una
	}
}

// complete reports whether nothing is missing: everything from una on was sent in order, and once.
func (b *scoreboard) complete(una uint32) bool { return wire.PSNDiff(una, b.end) >= 0 && b.lost == 0 }

// nextLost returns the first lost PSN before max.
func (b *scoreboard) nextLost(max uint32) (psn uint32, ok bool) {
	if b.lost == 0 {
		return 0, false
	}
	for psn = b.from; wire.PSNDiff(psn, max) < 0; psn = wire.PSNAdd(psn, 1) {
		if b.at(psn).is(lost) {
			return psn, true
		}
	}
	return 0, false
}

// lostRun returns how many PSNs of a READ are lost from psn on, at most n. It stops at the next
// request packet: the peer recognizes a duplicate by the bounds of the request.
func (b *scoreboard) lostRun(psn, n uint32) uint32 {
	run := uint32(1)
	for run < n {
		if next := b.at(psn + run); !next.is(lost) || next.is(head) {
			break
		}
		run++
	}
	return run
}

// loseTail marks the last unknown packet from una up to max as lost, for a probe. If the peer has
// reported all of them, it is the first one that is not executed: either its acknowledgement was
// lost, or the peer has dropped the packet.
func (b *scoreboard) loseTail(una, max uint32) {
	for psn := max; psn != una; {
		psn = wire.PSNAdd(psn, 1<<24-1)
		s := b.at(psn)
		if s.unknown() {
			b.lose(psn)
			if !s.is(answer) {
				return
			}
		}
		if s.is(head) && s.is(lost) {
			return
		}
	}
	if first := b.executed; b.lost == 0 && wire.PSNDiff(max, first) > 0 && !b.at(first).is(answer) {
		b.markLost(first)
	}
}
