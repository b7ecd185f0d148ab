package trace

import (
	"time"

	"github.com/softrnic/softrnic/rdmatransport/wire"
)

// responder is the state of a flow's answers.
type responder struct {
	last   uint32 // PSN of the last packet of a READ response
	within bool   // the response is not complete
	began  bool
	orphan ref // the first answer without a known request
}

// answer analyses a response of RC or XRC: an acknowledgement, a NAK, or a packet of the response
// to a READ or an atomic.
func (a *analysis) answer(w *flow, f *frame, p *wire.Packet) {
	o := w.peer
	if o == nil {
		o = a.requesterOf(w, p.PSN)
	}
	if o == nil || !o.req.began && !o.req.bySetUp {
		if w.rsp.orphan.number == 0 {
			w.rsp.orphan = ref{f.number, p.PSN}
		}
		if a.ev.about == "" {
			a.ev.about = "answers a request that the capture does not have"
		}
		return
	}
	a.ev.knownFrom, a.ev.from = true, o.qp
	q := &o.req
	before := q.heard
	q.heard = f.time
	if p.Opcode == wire.RCAck || p.Opcode.Info().HasAETH() && !p.AETH.IsACK() {
		a.acknowledgement(w, o, f, p, before)
	} else {
		a.responded(w, o, f, p)
	}
	if info := p.Opcode.Info(); info.Read() {
		w.rsp.last, w.rsp.within, w.rsp.began = p.PSN, !info.Last(), true
	}
}

// acknowledgement analyses an ACK or a NAK (IBTA Vol 1 §9.7.5.1).
func (a *analysis) acknowledgement(w, o *flow, f *frame, p *wire.Packet, before int64) {
	q := &o.req
	a.ev.class = acknowledgement
	if s := q.at(p.PSN); s != nil {
		a.ev.answers, a.ev.since = s.number, f.time-s.time
	}
	a.settle(q, p.PSN)
	if ahead := wire.PSNDiff(p.PSN, q.next); ahead >= 0 {
		if ahead == 0 && p.AETH.IsACK() && q.outrun.number == 0 {
			q.outrun, q.outranAt = ref{f.number, p.PSN}, f.time
			return
		}
		a.report(wrong, w, f.number, "answers PSN %d, which was not sent: the next is %d", p.PSN, q.next)
		return
	}
	old := wire.PSNDiff(p.PSN, q.una) < 0
	if p.AETH.IsACK() {
		if old {
			if q.replays == 0 {
				if wire.PSNDiff(p.PSN, q.first) < 0 && !q.bySetUp {
					return
				}
				if s := q.at(p.PSN); s != nil && !s.own {
					s.own = true
					a.reordered(w, f.number, "acknowledges PSN %d after the acknowledgement of PSN %d", p.PSN, wire.PSNAdd(q.una, 1<<24-1))
					return
				}
				if s := q.at(p.PSN); q.run != 0 && wire.PSNDiff(p.PSN, q.resume) >= 0 && s != nil && s.number < q.run {
					a.report(w.sure(), w, f.number,
						"acknowledges PSN %d again, and what was repeated ends before it: %s missing, or the acknowledgement came twice",
						p.PSN, psns(q.resume, p.PSN))
					return
				}
				if g := q.leap; g.number != 0 && g.number >= q.run {
					a.report(wrong, w, f.number, "acknowledges PSN %d more often than packets came again: %s missing before packet %d",
						p.PSN, psns(g.from, g.to), g.number)
					return
				}
				a.report(w.sure(), w, f.number, "acknowledges PSN %d again, and nothing was repeated: all up to %d are acknowledged",
					p.PSN, wire.PSNAdd(q.una, 1<<24-1))
				return
			}
			q.replays--
			q.again++
			q.againPSN = p.PSN
			a.ev.why = "its request was repeated"
			return
		}
		k := &q.asked
		unserved := q.hasNAK && k.nak && k.open && !k.served
		if unserved && wire.PSNDiff(p.PSN, k.psn) >= 0 {
			a.report(doubtful, w, f.number, "acknowledges PSN %d, for which the NAK of packet %d has asked and which has not come again",
				k.psn, k.number)
			k.open = false
		}
		a.acknowledge(w, o, f, p.PSN, true)
		a.sequence(w, o, f, p)
		return
	}
	if old && wire.PSNDiff(p.PSN, q.first) < 0 && !q.bySetUp {
		a.ev.class = negative
		o.stats.NAKs++
		q.ask(ask{why: "after a NAK", psn: p.PSN, number: f.number, time: f.time, open: true, nak: true})
		return
	}
	if old {
		if q.replays == 0 {
			l := w.sure()
			behind := q.at(wire.PSNAdd(p.PSN, 1))
			if s := q.at(p.PSN); s != nil && (s.again || behind != nil && !q.hasNAKOf(p.PSN)) {
				l = doubtful // it was missing, or a packet overtook it, and the NAK may be late
			}
			a.report(l, w, f.number, "a NAK of PSN %d, which is acknowledged", p.PSN)
		} else {
			q.replays--
		}
		// Its requester may receive it before the acknowledgement.
		q.ask(ask{why: "after a NAK", psn: p.PSN, number: f.number, time: f.time, open: true})
		return
	}
	a.acknowledge(w, o, f, wire.PSNAdd(p.PSN, 1<<24-1), false)
	a.sequence(w, o, f, p)
	s := q.at(p.PSN)
	samePSN := q.asked.open && q.asked.psn == p.PSN && q.asked.number != 0
	sameNAK := samePSN && q.hasNAK && q.lastNAK == uint32(p.AETH.Syndrome)
	selective := len(p.Payload) != 0 || p.Reserved7 != 0
	nothingRepeated := before >= q.asked.time && (s == nil || s.time <= q.asked.time)
	if sameNAK && !selective && nothingRepeated && (s == nil || q.asked.same > s.times) {
		a.report(w.sure(), w, f.number, "the NAK of packet %d again, and nothing was repeated since", q.asked.number)
	}
	earlier := q.asked
	same := uint32(1)
	if earlier.psn == p.PSN && q.hasNAK && q.lastNAK == uint32(p.AETH.Syndrome) {
		same += earlier.same
	}
	q.hasNAK, q.lastNAK = true, uint32(p.AETH.Syndrome)
	pending := samePSN && !earlier.served // the requester may do what that one asked for
	q.asked = ask{psn: p.PSN, number: f.number, time: f.time, open: true, nak: true, mayEnd: pending && earlier.mayEnd, from: f.time,
		same: same, served: selective && s != nil && s.times > 0 && o.stats.tooSoon(f.time-s.time)}
	switch {
	case p.AETH.IsRNR():
		a.ev.class = notReady
		o.stats.RNRs++
		q.asked.until = f.time + int64(wire.RNRTimer(p.AETH.Value()))
		q.asked.from, q.asked.mayEnd = q.asked.until, true
		q.asked.why = "after an RNR NAK"
	case p.AETH.Syndrome == wire.NakPSNSeq:
		a.ev.class = negative
		o.stats.NAKs++
		q.asked.why = "after a sequence NAK"
	default:
		a.ev.class = negative
		o.stats.NAKs++
		q.asked.why, q.asked.open = "after a NAK", false
	}
	if pending {
		q.asked.from = min(q.asked.from, earlier.from)
	}
	q.ask(q.asked)
}

// acknowledge records that all packets up to psn have arrived. own means that psn has its own
// acknowledgement.
func (a *analysis) acknowledge(w, o *flow, f *frame, psn uint32, own bool) {
	q := &o.req
	for i := 0; i < len(q.missing); {
		g := q.missing[i]
		if wire.PSNDiff(g.from, psn) > 0 {
			i++
			continue
		}
		to := g.to
		if wire.PSNDiff(to, psn) > 0 {
			to = psn
		}
		a.report(wrong, o, g.number, "%s missing before packet %d, and acknowledged in packet %d: the capture does not have all packets",
			psns(g.from, to), g.number, f.number)
		if to == g.to {
			q.missing = append(q.missing[:i], q.missing[i+1:]...)
		} else {
			q.missing[i].from = wire.PSNAdd(to, 1)
			i++
		}
		q.msnKnown = false
	}
	if len(q.skipped) > 0 {
		a.reportLeftOut(o, psn, false)
	}
	for n := 0; wire.PSNDiff(psn, q.una) >= 0; n++ {
		s := q.at(q.una)
		if s == nil {
			q.msnKnown = false
			if n > maxRing { // the gap is larger than the ring
				q.una = wire.PSNAdd(psn, 1)
				break
			}
			q.una = wire.PSNAdd(q.una, 1)
			continue
		}
		info := s.op.Info()
		if info.Last() {
			if wire.PSNDiff(wire.PSNAdd(s.psn, max(s.span, 1)-1), psn) <= 0 {
				q.done++
			}
		}
		if s.ackReq && !info.Answered() {
			if own && s.psn == psn {
				q.own++
			} else if q.shared++; len(q.sharedRef) < most {
				q.sharedRef = append(q.sharedRef, ref{s.number, s.psn})
			}
		}
		s.own = s.own || own && s.psn == psn
		if own && s.psn == psn && !s.again {
			o.stats.roundTrip(f.time - s.first)
		}
		if info.Answered() {
			a.passedOver(q, s, psn, own)
		}
		next := wire.PSNAdd(s.psn, max(s.span, 1))
		if wire.PSNDiff(next, wire.PSNAdd(psn, 1)) > 0 {
			next = wire.PSNAdd(psn, 1)
		}
		q.una = next
	}
}

// passedOver records that a packet after a READ or an atomic is acknowledged, so that the response
// must have been sent.
func (a *analysis) passedOver(q *requester, s *sent, psn uint32, own bool) {
	for i := range q.waiting {
		r := &q.waiting[i]
		if r.psn != s.psn {
			continue
		}
		end := wire.PSNAdd(r.psn, max(r.span, 1)-1)
		if r.next >= max(r.span, 1) || wire.PSNDiff(end, psn) > 0 || own && end == psn {
			return
		}
		q.incomplete(gap{wire.PSNAdd(r.psn, r.next), end, s.number, q.epoch}, q.heard)
		r.next = max(r.span, 1)
		return
	}
}

// sequence checks the MSN, which counts completed messages (IBTA Vol 1 §9.7.7.1).
func (a *analysis) sequence(w, o *flow, f *frame, p *wire.Packet) {
	q := &o.req
	msn := (q.base + q.done) & 0xffffff
	ahead, behind := (p.AETH.MSN-msn)&0xffffff, uint32(0)
	if p.AETH.IsACK() {
		behind = q.executed(p.PSN)
	}
	if q.msnKnown && ahead > behind {
		a.report(w.sure(), w, f.number, "MSN %d, but %d messages are complete with PSN %d", p.AETH.MSN, msn, p.PSN)
	} else if behind > 0 && (ahead > 0 || !q.msnKnown) {
		return // it may count some of them
	}
	q.base, q.msnKnown = (p.AETH.MSN-q.done)&0xffffff, true
}

// executed returns the number of READs and atomics right behind a packet that came again. The
// acknowledgement of its repetition ends there if their responses were lost, and its MSN counts
// them.
func (q *requester) executed(psn uint32) (n uint32) {
	s := q.at(psn)
	for s != nil && s.again && n < maxMissing {
		next := q.at(wire.PSNAdd(psn, 1))
		if next == nil || !next.op.Info().Answered() {
			break
		}
		psn, n = wire.PSNAdd(psn, max(next.span, 1)), n+1
	}
	return n
}

// responded analyses a packet of the response to a READ or an atomic.
func (a *analysis) responded(w, o *flow, f *frame, p *wire.Packet) {
	q := &o.req
	a.ev.class = response
	info := p.Opcode.Info()
	w.stats.Bytes += uint64(len(p.Payload))
	var r *awaited
	for i := len(q.waiting) - 1; i >= 0; i-- {
		x := &q.waiting[i]
		d := wire.PSNDiff(p.PSN, x.psn)
		within := uint32(d) < x.span
		if x.span == 0 { // not known
			within = d == 0 || i == len(q.waiting)-1
		}
		if d >= 0 && within {
			r = x
			break
		}
	}
	if r == nil {
		if q.replays > 0 {
			q.replays--
		} else if wire.PSNDiff(p.PSN, q.first) >= 0 {
			a.report(wrong, w, f.number, "%v of PSN %d, for which there was no request", p.Opcode, p.PSN)
		}
		return
	}
	a.ev.answers, a.ev.since = r.number, f.time-r.time
	if info.Atomic() != r.op.Info().Atomic() {
		a.report(wrong, w, f.number, "%v answers the %v of packet %d", p.Opcode, r.op, r.number)
		return
	}
	at := uint32(wire.PSNDiff(p.PSN, r.psn))
	a.ev.place = at + 1
	if s := q.at(r.psn); s != nil {
		a.ev.message = s.message
	}
	if info.First() && !info.Only() && q.mtu == 0 && len(p.Payload) >= 256 {
		q.mtu = len(p.Payload)
	}
	if r.span == 0 {
		if info.Only() {
			a.span(q, r, 1)
		} else if q.mtu != 0 {
			a.span(q, r, packets(r.length, q.mtu))
		}
		q.lastRead = 0
	}
	a.acknowledge(w, o, f, wire.PSNAdd(r.psn, 1<<24-1), false)
	a.responseOrder(w, o, f, p, r, at)
	if at+1 >= r.span && r.span != 0 && r.next >= r.span {
		if !r.again {
			o.stats.roundTrip(f.time - r.time)
		}
		if wire.PSNDiff(wire.PSNAdd(r.psn, r.span), q.una) > 0 {
			a.acknowledge(w, o, f, wire.PSNAdd(r.psn, r.span-1), true)
		}
	}
	if info.HasAETH() && !r.again {
		before := (q.base + q.done) & 0xffffff
		if q.msnKnown && p.AETH.MSN != before && p.AETH.MSN != (before+1)&0xffffff {
			a.report(w.sure(), w, f.number, "MSN %d, but %d messages are complete before PSN %d", p.AETH.MSN, before, p.PSN)
		}
	}
	a.forgetAnswered(q)
}

// responseOrder checks that a packet is the next one of its response, and its opcode and length.
func (a *analysis) responseOrder(w, o *flow, f *frame, p *wire.Packet, r *awaited, at uint32) {
	q := &o.req
	info := p.Opcode.Info()
	repeated := r.again && info.Read() && w.rsp.began && at <= r.next
	jumps := p.PSN != wire.PSNAdd(w.rsp.last, 1) // a request from the middle on has a First there
	if jumps || !info.First() {
		jumps = info.First() == w.rsp.within || !info.First() && jumps
	}
	// A response that begins again has what the previous one lacks.
	anew := at == r.restart && at < r.next && wire.PSNDiff(p.PSN, w.rsp.last) <= 0
	if s := q.at(r.psn); repeated && jumps && !info.First() && s != nil && o.stats.tooSoon(f.time-s.time) {
		a.reordered(w, f.number, "PSN %d of the response comes after later ones, and too soon for what was asked for again", p.PSN)
	} else if repeated && jumps && !anew {
		// The missing part may be requested once more.
		if from := wire.PSNAdd(w.rsp.last, 1); wire.PSNDiff(p.PSN, from) > 0 {
			a.ev.missing = psns(from, wire.PSNAdd(p.PSN, 1<<24-1))
			w.stats.Gaps++
		}
		if len(q.reread) < maxMissing {
			q.reread = append(q.reread, gap{wire.PSNAdd(w.rsp.last, 1), p.PSN, f.number, q.epoch})
		}
	}
	var missed bool
	if len(q.unread) > 0 {
		q.unread, missed = fill(q.unread, p.PSN, 1)
	}
	switch {
	case at == r.next:
	case r.again && at == r.restart:
		if r.runs--; r.runs < 0 {
			q.overruns = append(q.overruns[:min(len(q.overruns), most)], ref{f.number, p.PSN})
		}
		w.stats.Repeated++
		a.ev.why = "its request was repeated"
	case at > r.next:
		from, to := wire.PSNAdd(r.psn, r.next), wire.PSNAdd(p.PSN, 1<<24-1)
		a.ev.missing = psns(from, to)
		w.stats.Gaps++
		if at > r.reached { // else what is missing has come before
			q.incomplete(gap{from, to, f.number, q.epoch}, f.time)
		}
	case r.again:
		w.stats.Repeated++
		a.ev.why = "its request was repeated"
		return
	default:
		w.stats.Repeated++
		if missed {
			a.reordered(w, f.number, "PSN %d of the response comes after later ones", p.PSN)
			return
		}
		a.report(w.sure(), w, f.number, "PSN %d of the response to packet %d comes again, and nothing asked for it", p.PSN, r.number)
		return
	}
	r.next = at + 1
	r.reached = max(r.reached, r.next)
	if !r.op.Info().Read() || r.span == 0 {
		return
	}
	last := at+1 == r.span
	switch {
	case !r.again && (info.First() != (at == 0) || info.Last() != last):
		a.report(wrong, w, f.number, "%v is packet %d of %d of the response to packet %d", p.Opcode, at+1, r.span, r.number)
	case q.mtu != 0 && !info.Last() && len(p.Payload) != q.mtu,
		q.mtu != 0 && last && uint32(len(p.Payload)) != r.length-min(r.length, (r.span-1)*uint32(q.mtu)):
		a.report(wrong, w, f.number, "%d bytes in packet %d of %d of the response to a READ of %d; the path MTU is %d", len(p.Payload),
			at+1, r.span, r.length, q.mtu)
	}
}

// keptAnswered is the number of requests with a complete response that are kept, as they may be
// retransmitted.
const keptAnswered = 32

func (r *awaited) complete() bool { return r.span != 0 && r.next >= r.span }

// forgetAnswered drops requests with a complete response.
func (a *analysis) forgetAnswered(q *requester) {
	n := 0
	for n < len(q.waiting)-keptAnswered && q.waiting[n].complete() {
		n++
	}
	if n >= keptAnswered {
		q.waiting = append(q.waiting[:0], q.waiting[n:]...)
		q.lastRead = max(q.lastRead-n, 0)
	}
}

// makeRoom makes room for a request.
func (q *requester) makeRoom() {
	if len(q.waiting) < 8*keptAnswered {
		return
	}
	q.lastRead = 0
	n := 0
	for i, r := range q.waiting {
		if !r.complete() || i >= len(q.waiting)-keptAnswered {
			q.waiting[n] = r
			n++
		}
	}
	if n == len(q.waiting) {
		n = copy(q.waiting, q.waiting[1:])
	}
	q.waiting = q.waiting[:n]
}

// finish reports what a flow leaves open.
func (a *analysis) finish(w *flow) {
	a.caughtUp(w, 0, 0, false)
	q := &w.req
	for _, g := range q.missing {
		a.report(wrong, w, g.number, "%s missing before packet %d, and came neither later nor was acknowledged", psns(g.from, g.to),
			g.number)
	}
	for _, g := range q.unread {
		a.report(w.sure(), w, g.number, "the response of %s missing (packet %d shows it), and was not asked for again",
			psns(g.from, g.to), g.number)
	}
	for _, r := range exceptions(q.overruns) {
		a.report(doubtful, w, r.number, "the response of PSN %d comes more often than its request: a request is missing", r.psn)
	}
	for _, r := range exceptions(q.midway) {
		before := wire.PSNAdd(r.psn, 1<<24-1)
		a.report(doubtful, w, r.number, "repeats from PSN %d, though no acknowledgement ends before it: %s not repeated (packet %d)",
			r.psn, psns(before, before), r.number)
	}
	for _, g := range exceptions(q.reread) {
		a.report(doubtful, w, g.number, "the response goes from PSN %d to %d (packet %d): packets are missing",
			wire.PSNAdd(g.from, 1<<24-1), g.to, g.number)
	}
	a.reportLeftOut(w, 0, true)
	q.missing, q.unread, q.reread, q.overruns, q.midway = nil, nil, nil, nil, nil
	if q.asked.open && !q.asked.served && q.asked.nak && !q.asked.mayEnd && !w.closed() {
		wait := max(int64(time.Second), 4*(q.asked.until-q.asked.time))
		if a.now-q.asked.time > wait {
			a.report(wrong, w, q.asked.number, "the NAK of PSN %d in packet %d was not followed by what it asks for", q.asked.psn,
				q.asked.number)
		}
		q.asked.open = false
	}
	own, shared := q.own, q.shared
	if t := a.totals[pair{w.src, w.dst}]; t.own > 0 { // at the end of the capture
		own, shared = t.own, t.shared
	}
	if own >= 3 && shared*3 <= own && shared <= most {
		for _, r := range q.sharedRef {
			a.report(doubtful, w, r.number, "PSN %d asked for an acknowledgement and has none of its own, as %d others have", r.psn, own)
		}
	}
	if missing := q.stale - q.again; missing > 0 && q.again >= 4 && missing*4 <= q.again && missing <= most {
		a.report(doubtful, w, w.lastSeen,
			"of the packets that came again, %d have no acknowledgement, as %d others have: PSN %d is not acknowledged as often", missing,
			q.again, q.againPSN)
	}
	q.own, q.shared, q.sharedRef, q.stale, q.again = 0, 0, nil, 0, 0
}

// exceptions returns the elements of a list if they are few, and none if they are the sender's
// habit.
func exceptions[T any](list []T) []T {
	if len(list) > most {
		return nil
	}
	return list
}

// closed reports whether CM has ended the connection.
func (w *flow) closed() bool { return w.stats.closed }
