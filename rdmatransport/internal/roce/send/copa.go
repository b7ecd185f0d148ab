package send

import "time"

// Copa keeps a few packets of each connection in the queues on the way, by the delay that they cause (Arun and Balakrishnan,
// Copa: Practical Delay-Based Congestion Control for the Internet, NSDI 2018, §2). Connections that meet in a queue get equal
// shares of it, as each goes for the rate of 1/(δ·d) packets a second, where d is the delay that all of them see. What is lost
// makes the window smaller only if it is much: a long path may lose packets that no queue has dropped.
type Copa struct {
	delta    float64
	window   float64 // packets; the window that is set is the whole part
	starting bool    // the window doubles each round trip, until there is a delay
	draining bool    // only half of the window is used

	base     *Base
	shortest time.Duration // round trip, by base
	recent   [8]sample     // the last round trips, in a ring
	last     int
	smoothed time.Duration // round trip

	velocity float64       // how many times as fast as at first the window changes
	rising   bool          // the way that it went by the last comparison
	steady   int           // comparisons since it went the other way
	before   float64       // the window at the last comparison
	compare  time.Duration // when the next is due
	lost     uint32        // packets, since the last comparison
	cut      bool          // the window was made smaller for that
}

// sample is a round trip and when it ended.
type sample struct{ took, at time.Duration }

const (
	// copaStart is the window that a connection begins with, in packets.
	copaStart = 16
	// copaSteady is how many comparisons in a row have to show the same way before the window changes faster.
	copaSteady = 3
	// copaCut is what is left of the window when much is lost.
	copaCut = 0.7
)

// NewCopa is the controller of one connection, to where base is of. It keeps some 1/delta packets in the queue.
func NewCopa(delta float64, base *Base) *Copa {
	return &Copa{delta: delta, window: copaStart, starting: true, velocity: 1, base: base}
}

// Terms is that round trips are measured, and often: of a burst, the last packet sees the longest queue.
func (c *Copa) Terms() Terms { return Terms{Start: copaStart, Least: 2, AckEvery: 4, RoundTrips: true} }

// Rate sends a window in two thirds of a round trip: it is to be the window that holds packets back, and not the rate.
func (c *Copa) Rate(window uint32) float64 {
	if c.smoothed == 0 {
		return 0
	}
	return 1.5 * float64(window) / c.smoothed.Seconds()
}

// OnRoundTrip takes a measurement in.
func (c *Copa) OnRoundTrip(window uint32, took, now time.Duration) uint32 {
	if c.smoothed == 0 {
		c.smoothed = took
	}
	c.smoothed += (took - c.smoothed) / 8
	c.last = (c.last + 1) % len(c.recent)
	c.recent[c.last] = sample{took, now}
	if now >= c.compare {
		c.turn(now)
	}
	if c.shortest, c.draining = c.base.take(took, now, c.smoothed); c.draining {
		return uint32(c.window / 2)
	}
	return uint32(c.window)
}

// standing is the shortest of the round trips of the last half one: what is longer is a burst's doing, or the peer's.
func (c *Copa) standing() time.Duration {
	newest := c.recent[c.last]
	least := newest.took
	for _, s := range c.recent {
		if s.took != 0 && newest.at-s.at <= c.smoothed/2 {
			least = min(least, s.took)
		}
	}
	return least
}

// below tells whether the connection's rate is below the one that it goes for.
func (c *Copa) below() bool {
	trip := c.standing()
	queue := trip - c.shortest
	return c.window*c.delta*queue.Seconds() <= trip.Seconds()
}

// turn compares the window with that of a round trip ago. While it goes the same way it goes twice as fast each time.
func (c *Copa) turn(now time.Duration) {
	rising := c.window > c.before
	if rising != c.rising {
		c.rising, c.steady, c.velocity = rising, 0, 1
	} else if c.steady++; c.steady >= copaSteady {
		c.velocity *= 2
	}
	c.velocity = min(c.velocity, max(1, c.delta*c.window/2))
	c.before, c.compare = c.window, now+c.smoothed
	c.lost, c.cut = 0, false
}

// OnAck moves the window by velocity/δ packets a round trip.
func (c *Copa) OnAck(window, acked uint32) uint32 {
	if c.draining {
		return window
	}
	if uint32(c.window) != window { // it was held between its bounds
		c.window = float64(window)
	}
	step := float64(acked) / (c.delta * c.window)
	below := c.below()
	if below == c.rising {
		step *= c.velocity
	}
	switch {
	case c.starting && below:
		c.window += float64(acked)
	case c.starting:
		c.starting = false
	case below:
		c.window += step
	default:
		c.window = max(c.window-step, 1)
	}
	return uint32(c.window)
}

// OnLoss makes the window smaller once a round trip, if a tenth of it is lost, or if the connection begins.
func (c *Copa) OnLoss(window, lost uint32) uint32 {
	if c.lost += lost; c.cut || !c.starting && 10*c.lost <= window {
		return window
	}
	c.cut = true
	return c.shrink(window, copaCut)
}

func (c *Copa) OnGoBack(window uint32) uint32   { return c.shrink(window, 0.5) }
func (c *Copa) OnTimeout(window uint32) uint32  { return c.shrink(window, 0.5) }
func (c *Copa) OnTailLoss(window uint32) uint32 { return c.shrink(window, 0.5) }

func (c *Copa) shrink(window uint32, to float64) uint32 {
	c.starting, c.window = false, max(to*float64(window), 1)
	return uint32(c.window)
}
