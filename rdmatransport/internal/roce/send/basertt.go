package send

import (
	"sync"
	"time"
)

// Base is how long a round trip to one destination takes where nothing waits in a queue. The
// connections to that destination find it out together (RFC 9040 §2): one that begins when there is
// a queue already could not know.
type BaseRTT struct {
	mu       sync.Mutex
	shortest [2]time.Duration // round trip, of this period and of the one before
	until    time.Duration    // when this period ends
	seen     time.Duration    // when one was last about as short
	draining time.Duration    // until when the connections use half of their windows; 0 if they do not
}

const (
	// basePeriod is how long the shortest round trip is remembered at least: routes change.
	// (Linux's TCP has the same.)
	basePeriod = 5 * time.Minute
	// drainAfter is how long no round trip has to have been as short as the shortest before the
	// queue is drained, to see how short they are without it. (BBR calls that ProbeRTT.)
	drainAfter = time.Second
)

// take takes in that a round trip, which takes about usual, took so long. It returns the shortest,
// and whether the connection is to use half of its window.
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
