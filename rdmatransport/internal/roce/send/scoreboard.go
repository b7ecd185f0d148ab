package send

import (
	"math/bits"
	"sync"

	"github.com/softrnic/softrnic/rdmatransport/roce/wire"
)

// scoreboard is what is known of each PSN in flight while something among them is missing: of
// packets, where the peer keeps what comes behind a gap and tells of it, and of READ responses. It
// exists only in mode Selective.
//
// What is missing is told from what has arrived: each PSN has the number of its last transmission,
// and is lost once later ones have arrived. So a lost repetition is found as the first loss was,
// and nothing is sent twice within a round trip.
type scoreboard struct {
	slots []slot   // by PSN, as many as the span
	kept  []uint64 // a bit for each: the peer has told that it keeps what was sent

	tail      uint32 // number of the first PSN of the last transmission
	sends     uint32 // number of the last transmission, from 1; each PSN of a READ counts
	newest    uint32 // highest number of those that have arrived
	executed  uint32 // PSN before which the peer has executed everything
	end       uint32 // PSN from which on nothing has arrived or was executed too early and nothing was repeated
	from      uint32 // no PSN before this one is lost
	lost      int    // PSNs to be sent again
	limit     uint32 // if partly: of this PSN and those behind it, the peer has had no room to tell
	inFlight  int32  // PSNs neither lost nor arrived
	truncated bool
	changed   bool // something has arrived since losses were last looked for
}

// slot is a PSN in flight.
type slot struct {
	number uint32 // of its last transmission; of a response's PSN, of the request for it. 0: to be sent again
	flags  slotFlags
}

type slotFlags uint8

const (
	arrived  slotFlags = 1 << iota // there, or executed; of a response: here
	lost                           // to be sent again
	answer                         // the PSN of a READ response or of an atomic's
	head                           // an answer's PSN that a request packet had
	accepted                       // that request packet is there
)

func (s *slot) is(f slotFlags) bool { return s.flags&f != 0 }

// unknown reports whether neither its arrival nor its loss is known.
func (s *slot) unknown() bool { return s.flags&(arrived|lost) == 0 }

// scoreboards are those that are free, by the binary logarithm of their span.
var scoreboards [32]sync.Pool

// newScoreboard is one of a span on which una is the oldest PSN and nothing else is known yet.
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

// keptFrom is the word of kept that has the bit of a PSN, and the bits in it of that PSN and those
// behind it, as far as past.
func (b *scoreboard) keptFrom(psn, past uint32) (word *uint64, bits uint64, next uint32) {
	first := psn % 64
	n := min(64-first, uint32(wire.PSNDiff(past, psn)))
	return &b.kept[psn/64&uint32(len(b.kept)-1)], ^uint64(0) >> (64 - n) << first, wire.PSNAdd(psn, n)
}

// enter takes in the PSNs from first up to past, of one request. They were sent in order, but those
// from sent on are to be sent again.
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

// enterHead notes that a request packet, of a READ in pieces, had PSN psn.
func (b *scoreboard) enterHead(psn uint32) {
	if s := b.at(psn); s.is(answer) {
		s.flags |= head
	}
}

// entered ends what enter and enterHead have begun: una up to max is taken in.
func (b *scoreboard) entered(una, max uint32) {
	b.tail = b.sends
	for psn := max; psn != una; { // what was sent last, and is not lost
		psn = wire.PSNAdd(psn, 1<<24-1)
		if s := b.at(psn); !s.is(lost) && (!s.is(answer) || s.is(head)) {
			b.tail = s.number
			return
		}
	}
}

// sent notes n PSNs that were sent, or asked for with one request, from psn on.
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

// resent is sent for PSNs that were lost; all before them are not.
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

// forget has a PSN sent again that is in flight, or that the peer has told of and then dropped.
func (b *scoreboard) forget(psn uint32) {
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

// dropped notes that the peer has nothing of what it was sent from PSN psn up to end, even where it
// told otherwise.
func (b *scoreboard) dropped(psn, end uint32) {
	for ; psn != end; psn = wire.PSNAdd(psn, 1) {
		b.forget(psn)
	}
	b.extend(end)
}

// arrive notes that a PSN's packet is where it belongs.
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

// accept notes that the request packet for answers is there.
func (b *scoreboard) accept(s *slot) {
	s.flags |= accepted
	b.newest = max(b.newest, s.number)
	b.changed = true
}

// takeNews reports whether something has arrived since it was last asked.
func (b *scoreboard) takeChanged() bool {
	news := b.changed
	b.changed = false
	return news
}

// reach notes that the account goes up to PSN end at least.
func (b *scoreboard) extend(end uint32) {
	if wire.PSNDiff(end, b.end) > 0 {
		b.end = end
	}
}

// sacked notes that the peer keeps the packets from PSN psn up to past. It returns whether there is
// a SEND or WRITE among them of which this was not known. What was known takes a step for 64 PSNs.
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

// unkept takes back what the peer has told of the packets from PSN psn up to past, as they are sent
// again.
func (b *scoreboard) clearKept(psn, past uint32) {
	for psn != past {
		word, all, next := b.keptFrom(psn, past)
		*word &^= all
		psn = next
	}
}

// toldByAck notes that a peer has acknowledged everything before PSN end, without a list: it has
// nothing behind that.
func (b *scoreboard) reportedByAck(end uint32) {
	if b.truncated && wire.PSNDiff(end, b.limit) >= 0 {
		b.reported(end, true)
	}
}

// told notes that the peer has told of what it keeps as far as PSN limit; all: and that it keeps
// nothing from there on.
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

// answered notes that the answer of a PSN is in place; the peer has executed everything up to
// there.
func (b *scoreboard) answered(psn uint32) {
	b.arrive(psn)
	if past := wire.PSNAdd(psn, 1); wire.PSNDiff(past, b.executed) > 0 {
		b.executed = past
	}
}

// executedBefore notes that the peer has executed everything before PSN end.
func (b *scoreboard) executedBefore(end uint32) {
	for wire.PSNDiff(end, b.executed) > 0 {
		if s := b.at(b.executed); !s.is(answer) {
			b.arrive(b.executed)
		} else if s.is(head) {
			b.accept(s)
		}
		b.executed = wire.PSNAdd(b.executed, 1)
		b.changed = true // also if it is known to have arrived: a response may be missing
		b.extend(b.executed)
	}
}

// isExecuted reports whether the peer has executed the packet of a PSN in flight. An answer that
// says otherwise is an old one.
func (b *scoreboard) isExecuted(psn uint32) bool { return wire.PSNDiff(psn, b.executed) < 0 }

// acked is how far what is acknowledged and answered goes, from una up to past.
func (b *scoreboard) acked(una, past uint32) uint32 {
	for una != past && b.at(una).is(arrived) && (b.at(una).is(answer) || b.isExecuted(una)) {
		una = wire.PSNAdd(una, 1)
	}
	return una
}

// advance notes that una is the oldest PSN now.
func (b *scoreboard) advance(una uint32) {
	if wire.PSNDiff(una, b.executed) > 0 {
		b.executed = una
	}
	if wire.PSNDiff(una, b.from) > 0 {
		b.from = una
	}
}

// complete reports whether nothing is missing: from una on all was sent in order, and once.
func (b *scoreboard) complete(una uint32) bool { return wire.PSNDiff(una, b.end) >= 0 && b.lost == 0 }

// nextLost is the first lost PSN, of those before max.
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

// lostRun is how many PSNs of a READ, at most n, are lost from psn on: not across a request's
// bounds, by which the peer would know it if it did arrive.
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

// loseTail marks the last packet of those from una up to max of which nothing is known as lost, for
// a probe.
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
}
