package send

import (
	"sync"
	"sync/atomic"
	"time"
)

// Allowance returns the time that a timer allows for processes that are scheduled late, this one or
// the peer's. In a simulation none is, and timers follow the QP's attributes and the measured round
// trip alone.
//
// Probes have a closer measure as well, LateAnswers. But a retransmission timeout decides that a
// peer is dead, so it must outlast what was never seen before, and a rate has no round trip.
func (e *Env) Allowance(d time.Duration) time.Duration {
	if e.Prompt {
		return 0
	}
	return d
}

// LateAnswers is how late the answers to a device's packets are: how long after the longest likely
// round trip of their QP they come. Peers and this process are scheduled late at times, whichever
// QP that concerns, so all QPs of a device learn from each other. A constant would have to suit the
// busiest machine, and is a thousand round trips of a fast network. The methods may be called
// concurrently. The zero value knows of no answers.
type LateAnswers struct {
	// Read for each alarm, and rarely written: they have a cache line to themselves.
	_       [64]byte
	until   atomic.Int64 // end of this period; 0 until firstAnswers have come
	longest atomic.Int64 // lateness in nanoseconds, of this period and of the previous one
	recent  atomic.Int64 // of this period
	_       [64]byte

	mu      sync.Mutex // held by writers
	before  int64      // of the previous period
	answers uint64     // that were written down
}

const (
	// firstAnswers is how many answers must have come before their lateness counts.
	firstAnswers = 16
	// latePeriod is how long lateness is remembered at least. While answers are measured all the time,
	// it is forgotten after two periods at most.
	latePeriod = 5 * time.Second
)

// add records that an answer came late, or 0, after the longest likely round trip.
func (l *LateAnswers) add(late, now time.Duration) {
	if int64(now) < l.until.Load() && int64(late) <= l.recent.Load() {
		return // as nearly always: nothing is written
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.answers++; l.answers > firstAnswers && int64(now) >= l.until.Load() {
		l.before = l.recent.Swap(0)
	}
	l.recent.Store(max(l.recent.Load(), int64(late)))
	l.longest.Store(max(l.recent.Load(), l.before))
	if l.answers >= firstAnswers && int64(now) >= l.until.Load() {
		l.until.Store(int64(now + latePeriod))
	}
}

// known reports whether enough answers have come.
func (l *LateAnswers) known() bool { return l.until.Load() != 0 }

// wait returns how long to wait for an answer that likely comes within the given time. It may be
// late by least, or by twice the longest recent lateness, as the next one may be longer. The result
// is at most most, unless the answer is likely to take longer.
func (l *LateAnswers) wait(likely, least, most time.Duration) time.Duration {
	return max(likely, min(likely+max(2*time.Duration(l.longest.Load()), least), most))
}
