package send

import "time"

// lateFactor is how many times longer than its timers a process may be late: Linux delays a
// process's timers by 50 µs, and a process on a busy machine waits for time slices of 3 ms and more.
const lateFactor = 100

// Allowance returns what a timer allows for processes that are scheduled late, this one or the
// peer's: the given time at most, and lateFactor times the longest time by which a timer of this
// device was late. On a machine that is soon the given time. In a simulation it is 0, and timers
// follow the measured round trip alone.
//
// Answers that came late do not show how late the next one may be: with a peer that goes back,
// probes after a multiple of the latest round trips cost more than they gained. And a retransmission
// timeout decides that a peer is dead, so it must outlast what was never seen before.
func (e *Env) Allowance(most time.Duration) time.Duration {
	return min(most, lateFactor*time.Duration(e.Late.Load()))
}
