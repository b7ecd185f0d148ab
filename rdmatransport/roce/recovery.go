package roce

// On the path: what a requester does about a loss where the peer keeps what comes behind it (reorder.go) or where READ
// responses are missing, between two that mark their packets. Only what is missing is sent or asked for again; responses
// are placed as they come, work requests complete in order as ever.
//
// What is missing is told from what has arrived: each packet has the number of its last transmission, and is lost once
// later ones have arrived. So a lost repetition is found as the first loss was, and nothing is sent twice within a
// round trip. The window answers loss by the conservation of packets: one that was lost takes itself out, one that is
// acknowledged adds itself, up to what it was; only timeouts halve it.

import (
	"sync"

	"github.com/softrnic/softrnic/rdmatransport/roce/wire"
	"github.com/softrnic/softrnic/verbs"
)

// recovery is what is known of the PSNs from una to max. It exists while something between them is missing.
type recovery struct {
	slots [maxSpan]slot // by PSN

	tail     uint32 // number of the first PSN of the last transmission
	sends    uint32 // number of the last transmission, from 1; each PSN of a READ counts
	newest   uint32 // highest number of those that have arrived
	executed uint32 // PSN before which the peer has executed everything
	end      uint32 // PSN from which on nothing has arrived or was executed too early and nothing was repeated
	lost     int    // PSNs to be sent again
	inFlight int32  // PSNs neither lost nor arrived
	news     bool   // something has arrived since lost was determined
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

var recoveries = sync.Pool{New: func() any { return new(recovery) }}

func (c *recovery) at(psn uint32) *slot { return &c.slots[psn%maxSpan] }

// startRecovery begins to keep account of each packet. Until now they were sent in the order of their PSNs. What a
// requester that went back has not sent again yet is lost.
func (q *qp) startRecovery() {
	r := &q.req
	c := recoveries.Get().(*recovery)
	c.sends, c.newest, c.lost, c.inFlight, c.news = 0, 0, 0, 0, true
	c.executed, c.end = r.una, r.una
	until := r.first + uint64(q.h.SendLen())
	sent := r.max
	if s := r.at(r.cur); r.cur < until && s.packets != 0 {
		sent = wire.PSNAdd(s.firstPSN, r.curPkt)
	}
	for n := r.first; n < until; n++ {
		s := r.at(n)
		if !s.started() || wire.PSNDiff(s.firstPSN, r.max) >= 0 {
			break
		}
		past := wire.PSNAdd(s.firstPSN, s.packets)
		first := s.firstPSN
		if wire.PSNDiff(r.una, first) > 0 {
			first = r.una
		}
		if wire.PSNDiff(past, r.max) > 0 {
			past = r.max
		}
		flags := slotFlags(0)
		if hasAnswer(q.h.Send(int(n - r.first)).Opcode) {
			flags = answer
		}
		for psn := first; psn != past; psn = wire.PSNAdd(psn, 1) {
			if wire.PSNDiff(psn, sent) >= 0 {
				*c.at(psn) = slot{flags: flags | lost}
				c.lost++
				continue
			}
			c.sends++
			c.inFlight++
			*c.at(psn) = slot{c.sends, flags}
		}
		if flags != 0 {
			c.at(first).flags |= head
		}
	}
	for _, last := range r.reads() { // pieces of READs
		if next := wire.PSNAdd(last, 1); wire.PSNDiff(next, r.una) >= 0 && wire.PSNDiff(next, r.max) < 0 && c.at(next).is(answer) {
			c.at(next).flags |= head
		}
	}
	c.tail = c.sends
	for psn := r.max; psn != r.una; { // what was sent last, and not lost
		psn = wire.PSNAdd(psn, 1<<24-1)
		if s := c.at(psn); !s.is(lost) && (!s.is(answer) || s.is(head)) {
			c.tail = s.number
			break
		}
	}
	// All that was sent before is repeated from here.
	for r.cur < until {
		s := r.at(r.cur)
		if !s.started() || s.status != verbs.WCSuccess {
			break
		}
		if k := wire.PSNDiff(r.max, s.firstPSN); k < int32(s.packets) {
			r.curPkt = uint32(k)
			break
		}
		r.cur++
		r.curPkt = 0
	}
	if r.asked != nil {
		r.asked.n = len(r.asked.last)
	}
	r.rttStart = 0
	r.rec = c
}

// endRecovery goes back to counting packets.
func (q *qp) endRecovery() {
	if c := q.req.rec; c != nil {
		q.req.rec = nil
		recoveries.Put(c)
	}
}

// sent notes n PSNs that were sent, or asked for with one request, from psn on.
func (c *recovery) sent(psn, n uint32, isAnswer bool) {
	flags := slotFlags(0)
	if isAnswer {
		flags = answer
	}
	c.tail = c.sends + 1
	for i := range n {
		c.sends++
		*c.at(psn + i) = slot{c.sends, flags}
	}
	if isAnswer {
		c.at(psn).flags |= head
	}
	c.inFlight += int32(n)
}

// lose marks a PSN in flight as lost.
func (c *recovery) lose(s *slot) {
	s.flags |= lost
	c.lost++
	c.inFlight--
}

// forget has a PSN sent again that is in flight, or was executed too early and has come to nothing.
func (c *recovery) forget(s *slot) {
	switch {
	case s.is(lost) || s.is(answer) && s.is(arrived):
	case s.is(arrived):
		s.flags = s.flags&^arrived | lost
		c.lost++
	default:
		s.flags &^= accepted
		c.lose(s)
	}
}

// dropped notes that the peer has nothing of what it was sent from PSN psn to end, even where it told otherwise.
func (c *recovery) dropped(psn, end uint32) {
	for ; psn != end; psn = wire.PSNAdd(psn, 1) {
		c.forget(c.at(psn))
	}
	c.reach(end)
}

// isExecuted tells that the peer has executed the packet of a PSN in flight: what says otherwise is old.
func (c *recovery) isExecuted(psn uint32) bool { return wire.PSNDiff(psn, c.executed) < 0 }

// arrive notes that a PSN's packet is where it belongs.
func (c *recovery) arrive(psn uint32) {
	s := c.at(psn)
	if s.is(arrived) {
		return
	}
	if s.is(lost) {
		s.flags &^= lost
		c.lost--
	} else {
		c.inFlight--
	}
	s.flags |= arrived
	c.newest = max(c.newest, s.number)
	c.news = true
	c.reach(wire.PSNAdd(psn, 1))
}

// reach notes that the account goes up to PSN end at least.
func (c *recovery) reach(end uint32) {
	if wire.PSNDiff(end, c.end) > 0 {
		c.end = end
	}
}

// accept notes that the request packet for answers is there.
func (c *recovery) accept(s *slot) {
	s.flags |= accepted
	c.newest = max(c.newest, s.number)
	c.news = true
}

// executedBefore takes in that the peer has executed everything before PSN end, and tells whether all of that is
// acknowledged: answers to it may be missing.
func (q *qp) executedBefore(end uint32) bool {
	r := &q.req
	c := r.rec
	for wire.PSNDiff(end, c.executed) > 0 {
		if s := c.at(c.executed); !s.is(answer) {
			c.arrive(c.executed)
		} else if s.is(head) {
			c.accept(s)
		}
		c.executed = wire.PSNAdd(c.executed, 1)
		c.news = true // also if it is known to have arrived: a response may be missing
		c.reach(c.executed)
	}
	q.settle()
	return wire.PSNDiff(r.una, end) >= 0
}

// sacked takes in a selective acknowledgement; what is before its PSN was acknowledged already.
func (q *qp) sacked(p *wire.Packet) {
	r := &q.req
	if r.rec == nil {
		q.startRecovery()
	}
	for d := range wire.Sack(p.Payload).All {
		psn := wire.PSNAdd(p.PSN, d)
		if wire.PSNDiff(psn, r.max) >= 0 {
			break
		}
		if wire.PSNDiff(psn, r.una) < 0 {
			continue
		}
		switch s := r.rec.at(psn); {
		case !s.is(answer):
			q.signOfLife(!s.is(arrived))
			r.rec.arrive(psn)
		case s.is(head):
			r.rec.accept(s)
		}
	}
}

// signOfLife puts the timeout off where there is news.
func (q *qp) signOfLife(news bool) {
	if news {
		q.req.timeout, q.req.probe, q.req.probes = 0, 0, 0
	}
}

// answered notes that the answer of a PSN is in place; the peer has executed everything up to there.
func (c *recovery) answered(psn uint32) {
	c.arrive(psn)
	if past := wire.PSNAdd(psn, 1); wire.PSNDiff(past, c.executed) > 0 {
		c.executed = past
	}
}

// request finds the work request that a PSN in flight belongs to.
func (r *requester) request(psn uint32) (n uint64, s *sentWR) {
	for n = r.first; ; n++ {
		if s = r.at(n); wire.PSNDiff(psn, wire.PSNAdd(s.firstPSN, s.packets)) < 0 {
			return n, s
		}
	}
}

// settle completes what is acknowledged and answered, in order, and ends the recovery when nothing is missing.
func (q *qp) settle() {
	r := &q.req
	c := r.rec
	for r.una != r.max {
		s, wr := r.at(r.first), q.h.Send(0)
		past := wire.PSNAdd(s.firstPSN, s.packets)
		una := r.una
		for una != past && una != r.max && c.at(una).is(arrived) &&
			(c.at(una).is(answer) || wire.PSNDiff(una, c.executed) < 0) {
			una = wire.PSNAdd(una, 1)
		}
		if una == r.una {
			break
		}
		q.progress(una)
		if una != past {
			break
		}
		q.complete(wr, answerLen(wr))
	}
	if wire.PSNDiff(r.una, c.executed) > 0 {
		c.executed = r.una
	}
	if r.una == r.max || wire.PSNDiff(r.una, c.end) >= 0 && c.lost == 0 {
		q.endRecovery()
	}
}

// late tells that by the newest that has arrived, a transmission is lost: enough later ones have, or one and no more can.
func late(number, newest uint32, last bool) bool {
	if last {
		return number < newest
	}
	return number+lossEvidence <= newest
}

// determine marks what is lost.
func (q *qp) determine() {
	r := &q.req
	c := r.rec
	c.news = false
	packets := 0
	// What is not executed: packets that the peer would have acknowledged by now. A READ's PSNs share their request's
	// fate.
	gone, last := false, c.newest >= c.tail
	for psn := c.executed; psn != r.max; psn = wire.PSNAdd(psn, 1) {
		s := c.at(psn)
		if !s.is(answer) {
			gone = late(s.number, c.newest, last)
		} else if s.is(head) {
			gone = !s.is(accepted) && late(s.number, c.newest, last)
		}
		if gone && s.flags&(arrived|lost) == 0 {
			c.lose(s)
			if !s.is(answer) || s.is(head) {
				packets++
			}
		}
	}
	// What is: the peer answers in the order of PSNs, so only what stands behind an answer tells that it is lost.
	newest := uint32(0)
	last = c.executed == r.max
	for psn := c.executed; psn != r.una; {
		psn = wire.PSNAdd(psn, 1<<24-1)
		switch s := c.at(psn); {
		case s.is(arrived):
			newest = max(newest, s.number)
		case s.is(lost):
		case late(s.number, newest, last):
			c.lose(s)
			packets++
		default:
			last = false
		}
	}
	r.window = uint32(max(int(r.window)-packets, minWindow))
}

// repeat sends what is lost again, as far as the window goes; true if nothing is left of it.
func (q *qp) repeat() bool {
	r := &q.req
	c := r.rec
	if c.news {
		q.determine()
	}
	for n := r.first; c.lost > 0 && n < r.first+uint64(q.h.SendLen()); n++ {
		s, wr := r.at(n), q.h.Send(int(n-r.first))
		k := uint32(max(0, wire.PSNDiff(r.una, s.firstPSN)))
		for k < s.packets && c.lost > 0 {
			psn := wire.PSNAdd(s.firstPSN, k)
			if psn == r.max {
				return true
			}
			if !c.at(psn).is(lost) {
				k++
				continue
			}
			if r.notReady(psn) {
				return false
			}
			// What the peer waits for goes in any case: READs that it keeps count as in flight, and are not answered before.
			if c.inFlight >= int32(r.window) && psn != c.executed {
				return false
			}
			if !q.mayPass() {
				return false
			}
			m := uint32(1)
			switch {
			case wr.Opcode == verbs.RDMARead:
				// Not across a request's bounds, by which the peer would know it if it did arrive.
				for k+m < s.packets && wire.PSNAdd(psn, m) != r.max {
					if next := c.at(psn + m); !next.is(lost) || next.is(head) {
						break
					}
					m++
				}
				q.sendRead(wr, k, psn, m)
			case hasAnswer(wr.Opcode):
				if s.status = q.sendSmall(wr, s, psn); s.status != verbs.WCSuccess {
					return false
				}
			default:
				if s.status = q.sendData(wr, s, k, psn, true); s.status != verbs.WCSuccess {
					return false
				}
			}
			c.lost -= int(m)
			c.sent(psn, m, hasAnswer(wr.Opcode))
			c.reach(wire.PSNAdd(psn, m))
			q.e.Counters.Repeated.Add(1)
			k += m
		}
	}
	return true
}

// probeEnd has the last packet that nothing is known of sent again, with what it asks for.
func (q *qp) probeEnd() {
	r := &q.req
	if r.rec == nil {
		q.startRecovery()
	}
	c := r.rec
	for psn := r.max; psn != r.una; {
		psn = wire.PSNAdd(psn, 1<<24-1)
		s := c.at(psn)
		if s.flags&(arrived|lost) == 0 {
			c.lose(s)
			if !s.is(answer) {
				break
			}
		}
		if s.is(head) && s.is(lost) {
			break
		}
	}
}
