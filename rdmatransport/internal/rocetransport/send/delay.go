package send

import (
	"math"
	"time"
)

// ByDelay is a congestion controller that keeps a few packets of each connection queued on the
// path, and measures the delay that they cause. Connections that share a queue see the same delay
// d, and each aims at the rate of n packets in time d, where n is the number of its queued packets.
// Their shares are therefore equal. The target is that of Copa (Arun and Balakrishnan, NSDI 2018,
// §2.1, which calls 1/n δ) and of FAST TCP (Wei, Jin, Low and Hegde, IEEE/ACM Transactions on
// Networking 14, 2006, §IV). A window that is too small grows as in Copa, and one that is too large
// shrinks as in FAST.
//
// Only heavy loss makes the window smaller, because a long path may lose packets without a full
// queue.
type ByDelay struct {
	minQueued float64 // least number of packets that the connection keeps queued
	window    float64 // packets; the window in use is the integer part
	starting  bool    // slow start: the window doubles each round trip until there is a delay
	draining  bool    // only half of the window is used

	base     *BaseRTT
	shortest time.Duration // minimum round trip, from base
	recent   [8]sample     // ring of recent round trips
	last     int
	smoothed time.Duration // round trip

	velocity float64       // growth relative to the initial growth
	growths  int           // consecutive round trips in which the window only grew
	shrunk   bool          // the window shrank in this round trip
	rttEnd   time.Duration // end of this round trip
	lost     uint32        // packets lost in this round trip
	cut      bool          // the window was reduced because of these losses
}

// sample is a round trip and the time when it ended.
type sample struct{ took, at time.Duration }

const (
	// delayStart is the initial window, in packets.
	delayStart = 16
	// delayRises is the number of round trips of growth after which the window grows faster.
	// delayGrowth is the largest growth per round trip, as a share of the window.
	delayRises  = 3
	delayGrowth = 0.125
	// delayCut is the share of the window that remains after heavy loss.
	delayCut = 0.7
)

// NewByDelay returns the controller of one connection to the destination of base.
func NewByDelay(queued float64, base *BaseRTT) *ByDelay {
	return &ByDelay{minQueued: queued, window: delayStart, starting: true, velocity: 1, base: base}
}

// Params asks for frequent round-trip samples. The last packet of a burst sees the longest queue.
func (c *ByDelay) Params() Params {
	return Params{InitialWindow: delayStart, MinWindow: 2, AckEvery: 4, MeasureRTT: true}
}

// Rate spreads a window over slightly less than a round trip. The window limits the rate, not the
// pacing.
func (c *ByDelay) Rate(window uint32) float64 {
	if c.smoothed == 0 {
		return 0
	}
	return 1.05 * float64(window) / c.smoothed.Seconds()
}

// OnRoundTrip processes a sample.
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

// endRoundTrip doubles the growth after several round trips of growth alone.
func (c *ByDelay) endRoundTrip(now time.Duration) {
	if c.growths++; c.shrunk {
		c.growths, c.velocity = 0, 1
	} else if c.growths >= delayRises {
		c.velocity *= 2
	}
	c.velocity = min(c.velocity, max(1, delayGrowth*c.window/c.queueTarget()))
	c.rttEnd, c.shrunk, c.lost, c.cut = now+c.smoothed, false, 0, false
}

// standing returns the shortest of the samples of the last half round trip. Longer ones are caused
// by a burst or by the peer.
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

// queueTarget returns the number of packets that the connection keeps queued. With a large window,
// more packets are needed for a measurable delay.
func (c *ByDelay) queueTarget() float64 { return max(c.minQueued, math.Sqrt(c.window)) }

// goal returns the window that has queueTarget packets queued.
func (c *ByDelay) goal() float64 {
	if trip := c.standing(); trip > c.shortest {
		return c.window*c.shortest.Seconds()/trip.Seconds() + c.queueTarget()
	}
	return c.window + c.queueTarget()
}

// OnAck moves the window: up by velocity times queueTarget per round trip, or half of the way down
// to the goal. The conversion keeps a compiler from joining product and sum: a simulation takes the
// same course on all processors.
func (c *ByDelay) OnAck(window, acked uint32) uint32 {
	if c.draining {
		return window
	}
	if uint32(c.window) != window { // the window was clamped
		c.window = float64(window)
	}
	goal, share := c.goal(), min(float64(acked)/c.window, 1)
	switch {
	case c.starting && goal >= c.window:
		c.window += float64(acked)
	case goal >= c.window:
		c.window += float64(share * c.queueTarget() * c.velocity)
	default:
		c.starting, c.shrunk, c.velocity = false, true, 1
		c.window -= share * (c.window - goal) / 2
	}
	return uint32(c.window)
}

// OnLoss reduces the window once per round trip, if a tenth of it is lost, or in slow start.
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
