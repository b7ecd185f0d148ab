package link

import "github.com/softrnic/softrnic/link/clock"

// Clocked is a link with a time of its own, such as that of a simulated network. A wrapper has the
// time of its inner link.
type Clocked interface {
	// Clock returns the link's clock, always the same.
	Clock() clock.Clock
}

// ClockOf returns the clock of any link. That of a link that is not Clocked is the machine's.
func ClockOf(l Link) clock.Clock {
	if c, ok := l.(Clocked); ok {
		return c.Clock()
	}
	return clock.Clock{}
}
