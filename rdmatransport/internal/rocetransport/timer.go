package rocetransport

import "time"

// Each QP has one timer, for the earliest of: the send alarm, the receive deadline, the next packet
// that the rate allows, the end of a pause, and another check of a backlog.

// expired is the timer's callback.
func (q *qp) expired() {
	q.h.Lock()
	s := q.h.State()
	if q.destroyed || !receives(s) {
		q.unlockOnly()
		return
	}
	now := q.e.now()
	if q.due() > now { // the reason for the timer is no longer due
		q.arm()
		q.unlockOnly()
		return
	}
	q.receiving.OnAlarm(now)
	if p := q.pace; p != nil && now >= p.wake {
		p.wake = 0
	}
	if u := q.unreliable; u != nil && u.resume != 0 && now >= u.resume {
		u.resume = 0
	}
	if sends(s) && !q.h.PlacingFull() {
		q.act(q.sending.OnAlarm(now))
	}
	q.sendDueAndUnlock()
}

// due returns the earliest deadline, 0 if there is none. Answers are not late while this side drops
// them: see Placed.
func (q *qp) due() time.Duration {
	due := q.receiving.Deadline()
	if !q.h.PlacingFull() {
		due = earlier(q.sending.Deadline(), due)
	}
	if u := q.unreliable; u != nil {
		due = earlier(due, u.resume)
	}
	if p := q.pace; p != nil {
		due = earlier(due, p.wake)
	}
	return due
}

// earlier returns the earlier of two times, where 0 means never.
func earlier(a, b time.Duration) time.Duration {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// arm sets the timer to the earliest deadline. A timer that is set earlier is not changed, because
// deadlines move with each packet: expired checks them again.
func (q *qp) arm() {
	due, set := q.due(), q.timer.Due()
	if due != 0 && (set == 0 || due < set) {
		q.e.timers.ArmAt(&q.timer, due)
	}
}

func (q *qp) stopTimer() { q.e.timers.Stop(&q.timer) }
