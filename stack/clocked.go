package stack

import "github.com/softrnic/softrnic/link/clock"

// Clock is the time of a host, with timers and random numbers. The zero Clock is the machine's.
type Clock = clock.Clock

// Timer is a timer of a [Clock].
type Timer = clock.Timer

// Clocked is a Network with a time of its own: that of its link.
type Clocked interface {
	// Clock returns the host's clock, always the same. Deadlines of its streams are times of that
	// clock.
	Clock() Clock
}

// ClockOf returns the clock of any host. That of a host that is not Clocked is the machine's.
func ClockOf(n Network) Clock {
	if c, ok := n.(Clocked); ok {
		return c.Clock()
	}
	return Clock{}
}
