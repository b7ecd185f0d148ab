package send

import (
	"time"

	"github.com/softrnic/softrnic/rdmatransport/wire"
)

// reads has the bounds of outstanding request packets of READs, atomics and the like. A READ is
// repeated with the same bounds, because the responder recognizes duplicates by them.
type reads struct {
	*bounds // nil before the first READ: most QPs never read
}

type bounds struct {
	last    []uint32 // last PSN of each request packet, oldest first
	sent    int      // number of outstanding ones; the rest must be retransmitted after going back
	dropped bool     // this side had no room for a response
	hints   Hints    // responses that were trimmed
}

func (r *reads) reset() { r.bounds = nil }

// outstanding returns the number of requests that the peer is to answer now, limited by
// max_rd_atomic.
func (r *reads) outstanding() int {
	if r.bounds == nil {
		return 0
	}
	return r.bounds.sent
}

// all returns the last PSN of each request, outstanding or to be retransmitted.
func (r *reads) all() []uint32 {
	if r.bounds == nil {
		return nil
	}
	return r.last
}

// repeats reports whether the next request packet was sent before.
func (r *reads) repeats() bool { return r.outstanding() < len(r.all()) }

// bound returns the number of PSNs of the request packet at psn: n, or the same as before.
func (r *reads) bound(psn, n uint32) uint32 {
	if r.repeats() {
		return uint32(wire.PSNDiff(r.last[r.bounds.sent], psn)) + 1
	}
	return n
}

// requested records a request packet at psn for n PSNs.
func (r *reads) requested(psn, n uint32) {
	if r.bounds == nil {
		r.bounds = new(bounds)
	}
	if !r.repeats() {
		r.last = append(r.last, wire.PSNAdd(psn, n-1))
	}
	r.bounds.sent++
}

// acked records that everything before una is acknowledged and answered.
func (r *reads) acked(una uint32) {
	if r.bounds != nil {
		r.bounds.acked(una)
	}
}

func (b *bounds) acked(una uint32) {
	done := 0
	for done < len(b.last) && wire.PSNDiff(una, b.last[done]) > 0 {
		done++
	}
	if done > 0 {
		b.last = b.last[:copy(b.last, b.last[done:])]
		b.sent = max(0, b.sent-done)
	}
}

// rewind records that all request packets are to be retransmitted.
func (r *reads) rewind() {
	if r.bounds != nil {
		r.bounds.sent = 0
	}
}

// resume records that all are outstanding: the scoreboard tracks the missing ones.
func (r *reads) resume() {
	if r.bounds != nil {
		r.bounds.sent = len(r.last)
	}
}

// mayHint reports whether a response that was trimmed may be requested again.
func (r *reads) mayHint(now time.Duration, most uint32) bool {
	return r.bounds != nil && r.bounds.hints.Allow(now, most)
}

// OnResponseDropped is called when this side has no room for a READ response.
func (s *State) OnResponseDropped() {
	if b := s.reads.bounds; b != nil {
		b.dropped = true
	}
}

// OnRoom retransmits everything from una on, if this side has dropped responses for which it had no
// room. That is no retry: the peer is not late, and nothing was lost on the way.
func (s *State) OnRoom() {
	b := s.reads.bounds
	if b == nil || !b.dropped {
		return
	}
	b.dropped = false
	if s.flight.idle() || s.alarm.isSet(RNRWaitEnd) || s.mode.is(Failed) {
		return
	}
	s.rewind()
	s.change(onTimeout)
}
