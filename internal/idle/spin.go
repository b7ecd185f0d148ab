package idle

// AdaptiveSpin decides whether to spin before a sleep, from the results of earlier spins. Spinning
// does not pay where frames arrive seldom, or where their sender needs this processor. The zero
// value spins. Only one goroutine at a time may call its methods.
type AdaptiveSpin struct {
	empty  int // spins since the last that found something; at most maxEmptySpins
	sleeps int // sleeps since the last spin
}

const (
	maxEmptySpins = 4
	retryInterval = 32 // once spins find nothing, one sleep in retryInterval is preceded by a spin
)

// ShouldSpin reports whether to spin before this sleep.
func (v *AdaptiveSpin) ShouldSpin() bool {
	if v.empty < maxEmptySpins {
		return true
	}
	v.sleeps++
	if v.sleeps >= retryInterval {
		v.sleeps = 0
		return true
	}
	return false
}

// Spun records the result of a spin.
func (v *AdaptiveSpin) Spun(found bool) {
	if found {
		v.empty = 0
	} else {
		v.empty = min(v.empty+1, maxEmptySpins)
	}
}
