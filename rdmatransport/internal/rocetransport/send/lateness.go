package send

import "time"

// Allowance returns the time that a timer allows for processes that are scheduled late, this one or
// the peer's. In a simulation none is, and timers follow the QP's attributes and the measured round
// trip alone.
func (e *Env) Allowance(d time.Duration) time.Duration {
	if e.Prompt {
		return 0
	}
	return d
}
