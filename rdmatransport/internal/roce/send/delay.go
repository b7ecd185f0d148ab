package send

import (
	"math"
	"time"
)

// ByDelay is the controller that keeps a few packets of each connection in the queues on the way,
// by the delay that they cause. Where connections meet in a queue, each goes for the rate of n
// packets in the time d, where n is how many packets it keeps there, and d is the delay that all of
// them see: so their shares are equal. The goal is that of Copa (Arun and Balakrishnan, NSDI 2018,
// §2.1, which calls 1/n δ) and of FAST TCP (Wei, Jin, Low and Hegde, IEEE/ACM Transactions on
// Networking 14, 2006, §IV). A window that is too small grows as Copa's does, and one that is too
// large shrinks as FAST's does.
//
// What is lost makes the window smaller only if it is much: a long path may lose packets that no
// queue has dropped.
type ByDelay struct {
	minQueued float64 // packets that the connection keeps in the queues at least
	window    float64 // packets; the window that is set is the whole part
	starting  bool    // the window doubles each round trip, until there is a delay
	draining  bool    // only half of the window is used

	base     *BaseRTT
	shortest time.Duration // round trip, by base
	recent   [8]sample     // the last round trips, in a ring
	last     int
	smoothed time.Duration // round trip

	velocity float64       // how many times as fast as at first the window grows
	growths  int           // round trips in which it did nothing else
	shrunk   bool          // it did not in this one
	rttEnd   time.Duration // when this one ends
	lost     uint32        // packets, in this one
	cut      bool          // the window was made smaller for that
}

// sample is a round trip and when it ended.
type sample struct{ took, at time.Duration }

const (
	// delayStart is the window that a connection begins with, in packets.
	delayStart = 16
	// delayRises is after how many round trips of growth the window grows faster, and delayGrowth
	// the share of it by which it does at most.
	delayRises  = 3
	delayGrowth = 0.125
	// delayCut is what is left of the window when much is lost.
	delayCut = 0.7
)

// NewByDelay is the controller of one connection, to where base is of.
func NewByDelay(queued float64, base *BaseRTT) *ByDelay {
	return &ByDelay{minQueued: queued, window: delayStart, starting: true, velocity: 1, base: base}
}

// Terms is that round trips are measured, and often: of a burst, the last packet sees the longest
// queue.
func (c *ByDelay) Params() Params {
	return Params{InitialWindow: delayStart, MinWindow: 2, AckEvery: 4, MeasureRTT: true}
}

// Rate spreads a window over a little less than a round trip: it is to be the window that holds
// packets back, and not the rate.
func (c *ByDelay) Rate(window uint32) float64 {
	if c.smoothed == 0 {
		return 0
	}
	return 1.05 * float64(window) / c.smoothed.Seconds()
}

// OnRoundTrip takes a measurement in.
func (c *ByDelay) OnRoundTrip(window uint32, took, now time.Duration) uint32 {
	if c.smoothed == 0 {
		c.smoothed = took
	}
	c.smoothed += (took - c.smoothed) / 8
	c.last = (c.last + 1) % len(c.recent)
	c.recent[c.last] = sample{took, now}
	if now >= c.rttEnd {
		c.endRoundTrip(now)
	}
	if c.shortest, c.draining = c.base.update(took, now, c.smoothed); c.draining {
		return uint32(c.window / 2)
	}
	return uint32(c.window)
}

// endRoundTrip has the window grow twice as fast if it did nothing but grow.
func (c *ByDelay) endRoundTrip(now time.Duration) {
	if c.growths++; c.shrunk {
		c.growths, c.velocity = 0, 1
	} else if c.growths >= delayRises {
		c.velocity *= 2
	}
	c.velocity = min(c.velocity, max(1, delayGrowth*c.window/c.queueTarget()))
	c.rttEnd, c.shrunk, c.lost, c.cut = now+c.smoothed, false, 0, false
}

// standing is the shortest of the round trips of the last half one: what is longer is a burst's
// doing, or the peer's.
func (c *ByDelay) standing() time.Duration {
	newest := c.recent[c.last]
	least := newest.took
	for _, s := range c.recent {
		if s.took != 0 && newest.at-s.at <= c.smoothed/2 {
			least = min(least, s.took)
		}
	}
	return least
}

// keeps is how many packets the connection keeps in the queues: more where the window is large, so
// that their delay is seen.
func (c *ByDelay) queueTarget() float64 { return max(c.minQueued, math.Sqrt(c.window)) }

// goal is the window that has as many packets in the queues as there are to be.
func (c *ByDelay) goal() float64 {
	if trip := c.standing(); trip > c.shortest {
		return c.window*c.shortest.Seconds()/trip.Seconds() + c.queueTarget()
	}
	return c.window + c.queueTarget()
}

// OnAck moves the window: up by velocity times queued in a round trip, or half of the way down to
// the goal.
func (c *ByDelay) OnAck(window, acked uint32) uint32 {
	if c.draining {
		return window
	}
	if uint32(c.window) != window { // it was held between its bounds
		c.window = float64(window)
	}
	goal, share := c.goal(), min(float64(acked)/c.window, 1)
	switch {
	case c.starting && goal >= c.window:
		c.window += float64(acked)
	case goal >= c.window:
		c.window += share * c.queueTarget() * c.velocity
	default:
		c.starting, c.shrunk, c.velocity = false, true, 1
		c.window -= share * (c.window - goal) / 2
	}
	return uint32(c.window)
}

// OnLoss makes the window smaller once a round trip, if a tenth of it is lost, or if the connection
// begins.
func (c *ByDelay) OnLoss(window, lost uint32) uint32 {
	if c.lost += lost; c.cut || !c.starting && 10*c.lost <= window {
		return window
	}
	c.cut = true
	return c.shrink(window, delayCut)
}

func (c *ByDelay) OnGoBack(window uint32) uint32   { return c.shrink(window, 0.5) }
func (c *ByDelay) OnTimeout(window uint32) uint32  { return c.shrink(window, 0.5) }
func (c *ByDelay) OnTailLoss(window uint32) uint32 { return c.shrink(window, 0.5) }

func (c *ByDelay) shrink(window uint32, to float64) uint32 {
	c.starting, c.shrunk, c.window = false, true, max(to*float64(window), 1)
	return uint32(c.window)
}
