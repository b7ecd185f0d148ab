package trace

import (
	"fmt"
	"slices"
	"time"

	"github.com/softrnic/softrnic/rdmatransport/wire"
)

// repeated analyses a packet whose PSN is not new.
func (a *analysis) repeated(w *flow, f *frame, p *wire.Packet) {
	q := &w.req
	w.stats.Repeated++
	reaches := q.early && p.PSN == q.first
	q.early = false
	for i := range q.missing {
		if g := &q.missing[i]; wire.PSNDiff(p.PSN, g.from) >= 0 && wire.PSNDiff(p.PSN, g.to) <= 0 {
			a.filled(w, f, p, i)
			return
		}
	}
	s := q.at(p.PSN)
	span := uint32(1)
	if s != nil {
		span = s.span
	}
	var is bool
	if q.skipped, is = fill(q.skipped, p.PSN, span); is && !q.asked.open {
		if s != nil {
			s.times++
		}
		q.replays++
		if p.Opcode.Info().Answered() {
			a.askedAgain(q, f, p)
		} else if wire.PSNDiff(p.PSN, q.una) < 0 {
			q.stale++
		}
		a.reordered(w, f.number, "PSN %d comes again after others that were repeated", p.PSN)
		return
	}
	if w.transport == wire.UC {
		a.report(wrong, w, f.number, "PSN %d comes again, or late: the next is %d", p.PSN, q.next)
		return
	}
	answered := p.Opcode.Info().Answered()
	if s == nil && answered {
		s = q.covering(p.PSN)
	}
	if s == nil && !answered && wire.PSNDiff(p.PSN, q.first) < 0 {
		a.ev.why = "the capture begins after it"
		q.replays++
		q.early = wire.PSNAdd(p.PSN, 1) == q.first
		return
	}
	if s != nil {
		a.ev.repeats, a.ev.message, a.ev.place = s.number, s.message, s.place
	}
	q.replays++
	if wire.PSNDiff(p.PSN, q.una) < 0 && !answered {
		q.stale++
	}
	if reaches {
		q.resume, q.resuming, q.why, q.run = p.PSN, true, "after those before the capture", f.number
	}
	q.probed = 0
	a.reason(w, f, p, s)
	span = 1
	if answered {
		span = a.askedAgain(q, f, p)
	}
	if s != nil {
		s.time, s.last, s.again = f.time, f.number, true
		s.times++
		if s.op != p.Opcode && !answered {
			a.report(wrong, w, f.number, "PSN %d was a %v in packet %d", p.PSN, s.op, s.number)
		}
		if s.psn == p.PSN {
			span = max(s.span, 1)
		}
	}
	q.resume, q.resuming = wire.PSNAdd(p.PSN, span), true
}

// fill removes a packet's span of PSNs from gaps. It returns false if they are in no gap. A span of
// 0 is not known.
func fill(gaps []gap, psn, span uint32) (rest []gap, is bool) {
	for _, g := range gaps {
		if wire.PSNDiff(psn, g.from) < 0 || wire.PSNDiff(psn, g.to) > 0 {
			rest = append(rest, g)
			continue
		}
		is = true
		if psn != g.from && len(rest) < maxMissing {
			rest = append(rest, gap{g.from, wire.PSNAdd(psn, 1<<24-1), g.number, g.epoch})
		}
		if next := wire.PSNAdd(psn, span); span != 0 && wire.PSNDiff(g.to, next) >= 0 && len(rest) < maxMissing {
			rest = append(rest, gap{next, g.to, g.number, g.epoch})
		}
	}
	return rest, is
}

// reason finds the cause of a retransmission. A requester goes back to the requested PSN and
// retransmits from there on, until another PSN is requested.
func (a *analysis) reason(w *flow, f *frame, p *wire.Packet, s *sent) {
	q := &w.req
	marked := p.Reserved7 != 0 // selective retransmission
	k := &q.asked
	inFlight := a.within(f.time-k.time, leastTimeout) // its sender had not got the request yet
	if a.within(f.time, k.from) && !inFlight && p.PSN == k.psn && k.open {
		a.report(wrong, w, f.number, "the RNR NAK of packet %d asked for %v, but PSN %d comes again after %v", k.number,
			time.Duration(k.until-k.time), p.PSN, since(f.time-k.time))
	}
	a.ev.why = q.why
	due, isDue := q.due(p.PSN, f.time)
	if q.resuming && wire.PSNDiff(p.PSN, q.resume) >= 0 && (s == nil || s.last < q.run) {
		if k.open && p.PSN == k.psn {
			k.served = true // or it was in flight before its sender got the request, and is sent once more
		}
		if k.open && q.run > k.number && p.PSN != k.psn {
			k.open = false
		} else if p.PSN != q.resume && !marked {
			a.leftOut(q, f, p, p.PSN)
		}
		return
	}
	silence, late := a.timedOut(w, f, s, p.PSN)
	switch {
	case isDue && (p.PSN != k.psn || !k.open): // the PSN of k comes later, or was in flight
		a.ev.why, q.why, q.run = due.why, due.why, f.number
		return
	case k.open && (wire.PSNDiff(p.PSN, k.psn) >= 0 || !late):
		passed := s != nil && q.heard > s.time && p.Opcode.Info().Answered() // its response may have been lost later
		elsewhere := wire.PSNDiff(p.PSN, k.psn) < 0 || wire.PSNDiff(p.PSN, max24(q.una, k.psn)) > 0
		if elsewhere && !marked && !passed {
			a.report(doubtful, w, f.number, "repeats from PSN %d, where packet %d asks for %d", p.PSN, k.number, k.psn)
		}
		q.why = k.why
	case late:
		q.why = "after a timeout"
		if s != nil {
			q.why = fmt.Sprintf("%v after it was sent", since(silence))
			if q.timeout != 0 && silence < q.timeout-q.timeout/8 && !marked {
				q.why += fmt.Sprintf(", before its timeout of %v", since(q.timeout))
			}
		}
		w.stats.Timeouts++
		q.probed = max(f.time, 1)
		q.ask(ask{psn: p.PSN, number: f.number, time: f.time, began: f.time})
		if !marked && !q.mayBegin(p.PSN) && wire.PSNDiff(p.PSN, q.una) < 0 && len(q.midway) <= most {
			q.midway = append(q.midway, ref{f.number, p.PSN})
		}
	case marked && k.number != 0:
		q.why = k.why
	case s != nil && q.heard > s.time && p.Opcode.Info().Answered():
		q.why = "though its response may have passed: it was lost after the point of capture"
		q.ask(ask{psn: p.PSN, number: f.number, time: f.time, began: f.time})
	case s != nil && q.owed(s, p.PSN):
		w.disordered = true
		a.report(doubtful, w, f.number, "repeats packet %d, as was asked for, but not after the one before it", s.number)
		q.why, q.run = "as it was asked for", f.number
		a.ev.why = q.why
		return
	case s == nil:
		a.report(w.sure(), w, f.number, "PSN %d comes again, and nothing asked for it", p.PSN)
		q.why, q.run = "and nothing asked for it", f.number // nor for the following ones
		return
	default:
		l := wrong
		if slices.ContainsFunc(q.waiting, func(r awaited) bool { return r.next > 0 && wire.PSNDiff(p.PSN, r.psn) >= 0 }) {
			// Packets of the response may have been lost or reordered after the point of capture.
			l = doubtful
		}
		if w.peer == nil && len(a.unpaired[pair{w.dst, w.src}]) > 0 {
			l = doubtful // a NAK may have come in a flow that is not known to be the answer to this one
		}
		a.report(l, w, f.number, "repeats packet %d, and nothing asked for it", s.number)
		q.why, q.run = "and nothing asked for it", f.number
		return
	}
	a.ev.why = q.why
	if q.why != k.why {
		q.why = "after a timeout" // the reason of the following ones
	}
	k.open, q.run = false, f.number
}

// timedOut reports whether enough time has passed since a packet was sent for a retransmission
// timeout. The least time is longer if the timer was started before an answer.
func (a *analysis) timedOut(w *flow, f *frame, s *sent, psn uint32) (silence int64, is bool) {
	q := &w.req
	if s == nil { // evicted by later packets
		return 0, wire.PSNDiff(psn, q.una) < 0
	}
	silence = f.time - s.time
	if s.last >= w.burst { // both may have waited at the point of capture
		silence += w.silence
	}
	switch {
	case q.heard > s.time || wire.PSNDiff(psn, q.una) < 0:
		return silence, !a.within(silence, slowTimeout)
	}
	return silence, !a.within(silence, leastTimeout)
}

// incomplete records that packets of a response were skipped, which implies a retransmission of the
// request (IBTA Vol 1 §9.7.5.1.3).
func (q *requester) incomplete(g gap, now int64) {
	if len(q.unread) < maxMissing {
		q.unread = append(q.unread, g)
	}
	k := ask{why: "as its response was not complete", psn: g.from, number: g.number, time: now, open: true}
	q.ask(k)
	if !q.asked.open || wire.PSNDiff(q.asked.psn, g.from) > 0 {
		q.asked = k
	}
}

// leftOut records the PSNs between the retransmitted ones and to, unless they are acknowledged.
// They may have been lost again, and are then sent once more.
func (a *analysis) leftOut(q *requester, f *frame, p *wire.Packet, to uint32) {
	from := max24(q.resume, q.una)
	if wire.PSNDiff(to, q.una) < 0 {
		switch before := q.at(wire.PSNAdd(to, 1<<24-1)); {
		case before == nil: // too long ago; other checks report it
			q.leap = gap{q.resume, wire.PSNAdd(to, 1<<24-1), f.number, q.epoch}
		case !q.mayBegin(to): // its sender has no acknowledgement that ends before it
			from = q.resume
		}
	}
	if wire.PSNDiff(to, from) > 0 && p.Reserved7 == 0 && len(q.skipped) < maxMissing {
		last := wire.PSNAdd(to, 1<<24-1)
		a.ev.missing = psns(from, last)
		q.skipped = append(q.skipped, gap{from, last, f.number, q.epoch})
	}
}

// probe reports whether only one packet has come again after a timeout, and much later the first
// one of a new message. Its sender waits for the answer to the one, and still sends what is posted.
func (a *analysis) probe(q *requester, f *frame, p *wire.Packet) bool {
	return q.probed != 0 && p.Opcode.Info().First() && !a.within(f.time-q.probed, leastTimeout)
}

// mayBegin reports whether a requester may retransmit from a PSN on: all earlier PSNs must have
// been acknowledged, also by a NAK. If that is not known, it may.
func (q *requester) mayBegin(psn uint32) bool {
	if q.hasNAKOf(psn) {
		return true
	}
	before := q.at(wire.PSNAdd(psn, 1<<24-1))
	return before == nil || before.own || before.span != 1 || psn == q.first
}

// reportLeftOut reports those up to psn.
func (a *analysis) reportLeftOut(w *flow, psn uint32, all bool) {
	q := &w.req
	kept := q.skipped[:0]
	for _, g := range q.skipped {
		if !all && wire.PSNDiff(g.to, psn) > 0 {
			kept = append(kept, g)
			continue
		}
		a.report(doubtful, w, g.number, "%s not repeated with those before and after (packet %d)", psns(g.from, g.to), g.number)
	}
	q.skipped = kept
}

func max24(x, y uint32) uint32 {
	if wire.PSNDiff(x, y) > 0 {
		return x
	}
	return y
}

// filled removes a packet that was missing from gap i.
func (a *analysis) filled(w *flow, f *frame, p *wire.Packet, i int) {
	q := &w.req
	g := q.missing[i]
	if q.asked.open && p.PSN == q.asked.psn {
		q.asked.served = true
	}
	inRun := q.resuming && p.PSN == q.resume // one of the retransmitted packets was missing before
	if g.epoch == q.epoch && !inRun && (f.time-max(q.heard, 0) < leastTimeout || w.transport == wire.UC) {
		a.reordered(w, f.number, "PSN %d comes after PSN %d of packet %d", p.PSN, wire.PSNAdd(g.to, 1), g.number)
	} else if g.epoch == q.epoch && !inRun {
		w.disordered = true
		a.report(doubtful, w, f.number, "PSN %d comes after PSN %d of packet %d, and nothing has asked for it", p.PSN,
			wire.PSNAdd(g.to, 1), g.number)
		a.ev.why = "it was missing"
	} else {
		a.ev.why = q.asked.why
		w.stats.Lost++ // or it is late and is sent once more: the request stays open
	}
	q.missing = append(q.missing[:i], q.missing[i+1:]...)
	if g.from != p.PSN && len(q.missing) < maxMissing {
		q.missing = append(q.missing, gap{g.from, wire.PSNAdd(p.PSN, 1<<24-1), g.number, g.epoch})
	}
	span := uint32(1)
	if info := p.Opcode.Info(); info.Answered() {
		if info.Read() && q.mtu != 0 {
			span = packets(p.RETH.Length, q.mtu)
		}
		q.waiting = append(q.waiting, awaited{number: f.number, time: f.time, psn: p.PSN, span: span, length: p.RETH.Length, op: p.Opcode})
	}
	if end := wire.PSNAdd(p.PSN, span-1); wire.PSNDiff(g.to, end) > 0 && len(q.missing) < maxMissing {
		q.missing = append(q.missing, gap{wire.PSNAdd(end, 1), g.to, g.number, g.epoch})
	}
	a.remember(q, sent{number: f.number, first: f.time, time: f.time, psn: p.PSN, span: span, last: f.number, op: p.Opcode,
		ackReq: p.AckReq, again: true})
	if inRun {
		q.resume = wire.PSNAdd(p.PSN, span)
	} else if q.asked.open && p.PSN == q.asked.psn { // unless it is late and is sent once more
		q.resume, q.resuming, q.run, q.why = wire.PSNAdd(p.PSN, span), true, f.number, q.asked.why
	}
	w.stats.Bytes += uint64(len(p.Payload))
}

// covering returns the READ whose response has a PSN, or nil. Such a READ may be asked for again
// from the middle of its response on, as often as that is lost.
func (q *requester) covering(psn uint32) *sent {
	for i := range q.waiting {
		if r := &q.waiting[i]; uint32(wire.PSNDiff(psn, r.psn)) < r.span {
			return q.at(r.psn)
		}
	}
	return nil
}

// askedAgain records a retransmitted READ or atomic, perhaps from the middle of its response on. It
// returns its number of PSNs.
func (a *analysis) askedAgain(q *requester, f *frame, p *wire.Packet) uint32 {
	span := uint32(1)
	for i := range q.waiting {
		r := &q.waiting[i]
		d := wire.PSNDiff(p.PSN, r.psn)
		if d < 0 || uint32(d) >= max(r.span, 1) {
			continue
		}
		r.again, r.restart = true, uint32(d)
		r.runs++
		span = max(r.span, 1) - uint32(d)
	}
	end := wire.PSNAdd(p.PSN, span)
	again := func(g gap) bool { return wire.PSNDiff(g.to, p.PSN) >= 0 && wire.PSNDiff(g.from, end) < 0 }
	q.unread, q.reread = slices.DeleteFunc(q.unread, again), slices.DeleteFunc(q.reread, again)
	if q.mtu != 0 && p.Opcode.Info().Read() {
		span = packets(p.RETH.Length, q.mtu)
	}
	found := false
	for i := range q.waiting {
		r := &q.waiting[i]
		found = found || uint32(wire.PSNDiff(p.PSN, r.psn)) < max(r.span, 1)
	}
	if !found { // its response was complete and is sent again
		q.makeRoom()
		q.waiting = append(q.waiting, awaited{number: f.number, time: f.time, psn: p.PSN, span: span, length: p.RETH.Length, op: p.Opcode,
			again: true})
	}
	return span
}
