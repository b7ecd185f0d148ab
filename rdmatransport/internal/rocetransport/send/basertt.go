package send

import (
	"sync"
	"time"
)

// BaseRTT is the minimum round-trip time to one destination, with empty queues. All connections to
// that destination share it (RFC 9040 §2). A connection that starts while the path has a queue
// could not measure it.
type BaseRTT struct {
	mu       sync.Mutex
	shortest [2]time.Duration // minimum of this period and of the previous one
	until    time.Duration    // end of this period
	seen     time.Duration    // time of the last round trip close to the minimum
	draining time.Duration    // the connections use half of their windows until then; 0 if they do not
}

const (
	// basePeriod is how long a minimum is remembered at least. Routes change. (Linux's TCP uses the
	// same period.)
	basePeriod = 5 * time.Minute
	// drainAfter is how long round trips may stay above the minimum before the queue is drained to
	// measure it again. (BBR calls that ProbeRTT.)
	drainAfter = time.Second
)

// update adds a round trip, where usual is the smoothed one. It returns the minimum, and whether
// the connection must use half of its window.
func (b *BaseRTT) update(took, now, usual time.Duration) (shortest time.Duration, draining bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.until == 0:
		b.shortest, b.until = [2]time.Duration{took, took}, now+basePeriod
	case now >= b.until:
		b.shortest, b.until = [2]time.Duration{took, b.shortest[0]}, now+basePeriod
	}
	b.shortest[0] = min(b.shortest[0], took)
	shortest = min(b.shortest[0], b.shortest[1])
	switch {
	case took-shortest <= took/64:
		b.seen, b.draining = now, 0
	case b.draining != 0 && now >= b.draining:
		b.seen, b.draining = now, 0
	case b.draining == 0 && now-b.seen >= drainAfter:
		b.draining = now + usual + usual/2
	}
	return shortest, b.draining != 0
}
