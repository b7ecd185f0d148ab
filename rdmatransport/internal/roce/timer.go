package roce

import "time"

// On the path: beside it. A QP has one timer, for whatever is due first: the alarm of its sending,
// the deadline of its receiving, the next packet that its rate allows, the end of a pause, another
// look at a crowded path.

// expired runs when the QP's timer does.
func (q *qp) expired() {
	q.h.Lock()
	s := q.h.State()
	if q.destroyed || !receives(s) {
		q.h.Unlock()
		return
	}
	now := q.e.now()
	if q.due() > now { // what it was set for is no longer due
		q.arm()
		q.h.Unlock()
		return
	}
	q.receiving.OnAlarm(now)
	if p := q.pace; p != nil && now >= p.wake {
		p.wake = 0
	}
	if u := q.unreliable; u != nil && u.resume != 0 && now >= u.resume {
		u.resume = 0
	}
	if sends(s) {
		q.act(q.sending.OnAlarm(now))
	}
	q.unlock()
}

// due is when the first thing is, 0 if nothing is.
func (q *qp) due() time.Duration {
	due := earlier(q.sending.Deadline(), q.receiving.Deadline())
	if u := q.unreliable; u != nil {
		due = earlier(due, u.resume)
	}
	if p := q.pace; p != nil {
		due = earlier(due, p.wake)
	}
	return due
}

// earlier is the earlier of two times, of which 0 is never.
func earlier(a, b time.Duration) time.Duration {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// arm has the timer go off no later than the first thing is due. If it is set for an earlier time
// it stays so, as expired looks again then: what is due moves with each packet.
func (q *qp) arm() {
	due, set := q.due(), q.timer.Due()
	if due != 0 && (set == 0 || due < set) {
		q.e.timers.ArmAt(&q.timer, due)
	}
}

func (q *qp) stopTimer() { q.e.timers.Stop(&q.timer) }
