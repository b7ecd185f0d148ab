package rocetransport

// Send path: pacing. A QP has a pacer if it has a rate limit, a reaction point, or a congestion
// controller that asks for pacing.

import (
	"time"
)

// rate returns the rate in bits per second.
func (p *pacer) rate() float64 {
	rate := unlimited
	if p.limit != 0 {
		rate = p.limit
	}
	if p.react != nil {
		rate = min(rate, p.react.current)
	}
	if p.sending != nil {
		if r := p.sending.Rate(); r != 0 {
			rate = min(rate, r)
		}
	}
	return rate
}

// unlimited is the rate without a limit, in bits per second.
const unlimited = 1e15

// needed reports whether there is a rate.
func (p *pacer) needed() bool { return p.limit != 0 || p.react != nil || p.sending != nil }

// advance accounts for the time that has passed.
func (p *pacer) advance(now time.Duration) {
	if r := p.react; r != nil {
		for !r.full() && r.nextIncrease <= now {
			p.pay(r.nextIncrease)
			r.onTimer()
		}
	}
	p.pay(now)
}

// pay accounts for the time up to now. The conversion of the product keeps a compiler from joining
// it with the difference: a simulation takes the same course on all processors.
func (p *pacer) pay(now time.Duration) {
	if now > p.last {
		rate := p.rate()
		p.debt = max(p.debt-float64((now-p.last).Seconds()*rate), -p.env.Allowance(paceSlack).Seconds()*rate)
		p.last = now
	}
}

// ready reports whether a packet may be sent at the time last.
func (p *pacer) ready() bool { return p.debt <= 0 }

// wait sets the time at which a waiting packet is tried again.
func (p *pacer) wait(now time.Duration) {
	p.wake = now + time.Duration(p.debt/p.rate()*float64(time.Second)) + 1
	if r := p.react; r != nil && !r.full() {
		p.wake = min(p.wake, r.nextIncrease)
	}
}

// ackReqDue reports whether a packet of n bytes in a long message should request an
// acknowledgement, because later packets must wait. The last request may be far back.
func (p *pacer) ackReqDue(n uint32, now time.Duration) bool {
	return p.debt+float64(8*float64(n)) > 0 && now >= p.nextAckReq
}

// ackRequested records an acknowledgement request because of the rate.
func (p *pacer) ackRequested(now time.Duration) { p.nextAckReq = now + paceAck }

// sent counts an IP packet of n bytes.
func (p *pacer) sent(n int) {
	p.debt += float64(8 * float64(n))
	if p.react != nil {
		p.react.onBytes(n)
	}
}

// pacer returns the QP's pacer, and creates it if there is none.
func (q *qp) pacer() *pacer {
	if q.pace == nil {
		q.pace = &pacer{last: q.e.now(), env: &q.e.env}
	}
	return q.pace
}

// limit sets the QP's rate limit in kbit/s; 0 removes it. A waiting packet is not delayed further.
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

// rateAllows reports whether the rate allows a packet now. If not, the timer tries again.
func (q *qp) rateAllows() bool {
	p := q.pace
	if p == nil {
		return true
	}
	now := q.e.now()
	p.advance(now)
	if !p.ready() {
		p.wait(now)
		return false
	}
	p.wake = 0
	return true
}
