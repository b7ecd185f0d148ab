package roce

// On the path: before a packet with data is built. A QP with a rate limit, with a reaction point,
// or with a congestion controller that asks for it lets packets out at its rate; others have no
// pacer.

import (
	"time"

	"github.com/softrnic/softrnic/rdmatransport/internal/roce/send"
)

// pacer keeps a QP's packets to a rate.
type pacer struct {
	limit  float64     // QPAttr.RateLimit in bits a second; 0 is none
	react  *reaction   // nil without DCQCN
	spread *send.State // has the rate at which a window is sent; nil if its packets go at once
	base   *base       // of spread

	debt       float64 // bits sent by the time last beyond what the rate allowed until then; negative if it allowed more
	last       time.Duration
	wake       time.Duration // when the next packet may go, or the rate rises; 0 if none waits
	nextAckReq time.Duration // before then, no further acknowledgement is asked for because of the rate
}

// rate is in bits a second.
func (p *pacer) rate() float64 {
	rate := unlimited
	if p.limit != 0 {
		rate = p.limit
	}
	if p.react != nil {
		rate = min(rate, p.react.current)
	}
	if p.spread != nil {
		if r := p.spread.Rate(); r != 0 {
			rate = min(rate, r)
		}
	}
	return rate
}

// unlimited is no rate, in bits a second.
const unlimited = 1e15

// needed reports whether there is a rate.
func (p *pacer) needed() bool { return p.limit != 0 || p.react != nil || p.spread != nil }

// advance takes in the time that has passed.
func (p *pacer) advance(now time.Duration) {
	if r := p.react; r != nil {
		for !r.full() && r.rise <= now {
			p.pay(r.rise)
			r.timePassed()
		}
	}
	p.pay(now)
}

func (p *pacer) pay(now time.Duration) {
	if now > p.last {
		rate := p.rate()
		p.debt = max(p.debt-(now-p.last).Seconds()*rate, -paceSlack.Seconds()*rate)
		p.last = now
	}
}

// open reports whether a packet may be sent at the time last.
func (p *pacer) open() bool { return p.debt <= 0 }

// hold sets the time at which a packet that waits is to be tried again.
func (p *pacer) hold(now time.Duration) {
	p.wake = now + time.Duration(p.debt/p.rate()*float64(time.Second)) + 1
	if r := p.react; r != nil && !r.full() {
		p.wake = min(p.wake, r.rise)
	}
}

// ackReqDue reports whether a packet of a long message, n bytes, should ask for an acknowledgement
// because those behind it wait: what asked before may be far back.
func (p *pacer) ackReqDue(n uint32, now time.Duration) bool {
	return p.debt+8*float64(n) > 0 && now >= p.nextAckReq
}

// ackRequested notes that a packet asked for an acknowledgement because of the rate.
func (p *pacer) ackRequested(now time.Duration) { p.nextAckReq = now + paceAck }

// sent counts an IP packet of n bytes that is sent.
func (p *pacer) sent(n int) {
	p.debt += 8 * float64(n)
	if p.react != nil {
		p.react.bytesPassed(n)
	}
}

// pacer is the QP's, made if it has none.
func (q *qp) pacer() *pacer {
	if q.pace == nil {
		q.pace = &pacer{last: q.e.now()}
	}
	return q.pace
}

// limit sets the QP's rate limit in kbit/s; 0 removes it. A packet that waits is sent no later than
// it would have been.
func (q *qp) limit(kbits uint32) {
	if kbits == 0 && !q.limited() {
		return
	}
	p := q.pacer()
	p.advance(q.e.now())
	if p.limit = float64(kbits) * 1e3; !p.needed() {
		q.pace = nil
	}
}

// limited reports whether the QP has a rate limit.
func (q *qp) limited() bool { return q.pace != nil && q.pace.limit != 0 }

// pass reports whether the rate allows a packet now. If not, the timer will try again.
func (q *qp) pass() bool {
	p := q.pace
	if p == nil {
		return true
	}
	now := q.e.now()
	p.advance(now)
	if !p.open() {
		p.hold(now)
		return false
	}
	p.wake = 0
	return true
}
