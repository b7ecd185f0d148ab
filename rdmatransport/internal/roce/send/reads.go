package send

import "github.com/softrnic/softrnic/rdmatransport/roce/wire"

// reads is the bounds of the outstanding READs: of the request packets of READs, atomics and the
// like that are not answered in full. A READ is repeated with the bounds it had: a responder knows
// it by them.
type reads struct {
	*bounds // nil before the first: most QPs never read
}

type bounds struct {
	last []uint32 // PSN of the last response of each, oldest first
	sent int      // the first so many are outstanding; the others were before the requester went back
}

func (r *reads) reset() { r.bounds = nil }

// outstanding is how many the peer is to answer now (what max_rd_atomic bounds).
func (r *reads) outstanding() int {
	if r.bounds == nil {
		return 0
	}
	return r.bounds.sent
}

// all is the last PSN of each, outstanding or to be sent again.
func (r *reads) all() []uint32 {
	if r.bounds == nil {
		return nil
	}
	return r.last
}

// repeats reports whether the next request packet was sent before.
func (r *reads) repeats() bool { return r.outstanding() < len(r.all()) }

// bound is how many PSNs the request packet at psn takes: n, or what it took before.
func (r *reads) bound(psn, n uint32) uint32 {
	if r.repeats() {
		return uint32(wire.PSNDiff(r.last[r.bounds.sent], psn)) + 1
	}
	return n
}

// requested notes the request packet at psn, which takes n PSNs.
func (r *reads) requested(psn, n uint32) {
	if r.bounds == nil {
		r.bounds = new(bounds)
	}
	if !r.repeats() {
		r.last = append(r.last, wire.PSNAdd(psn, n-1))
	}
	r.bounds.sent++
}

// acked notes that everything before una is acknowledged and answered.
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

// rewind notes that all of them are to be sent again.
func (r *reads) rewind() {
	if r.bounds != nil {
		r.bounds.sent = 0
	}
}

// resume notes that none of them is: the scoreboard tells which are missing.
func (r *reads) resume() {
	if r.bounds != nil {
		r.bounds.sent = len(r.last)
	}
}
