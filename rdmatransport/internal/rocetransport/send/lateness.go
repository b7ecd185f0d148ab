package send

import "time"

// lateFactor is how many times longer than its timers a process may be late: Linux delays timers of
// a process by 50 µs, and a process on a busy machine waits for several time slices of 3 ms.
const lateFactor = 400

// Allowance returns what a timer allows for processes that are scheduled late, this one or the
// peer's: the given time at most, and lateFactor times the longest time by which a timer of this
// device was late. On a machine that is the given time. In a simulation it is 0.
//
// The latest round trips would be a closer measure for probes. But a retransmission timeout decides
// that a peer is dead, so it must outlast what was never seen before, and a rate has no round trip.
func (e *Env) Allowance(most time.Duration) time.Duration {
	return min(most, lateFactor*time.Duration(e.Late.Load()))
}
