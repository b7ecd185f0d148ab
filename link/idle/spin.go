package idle

import "time"

// spin decides whether a reader spins before it sleeps, from the results of earlier spins. Spinning
// does not pay if data seldom arrives, or if its sender needs this processor. After some spins that
// found nothing the reader gives up, and tries again now and then.
type spin struct {
	*Spinner
	empty  int // consecutive spins that found nothing, at most GiveUp
	sleeps int // sleeps since the last spin
}

// next returns how long to spin before this sleep, or 0 to sleep at once.
func (s *spin) next() time.Duration {
	if s.GiveUp > 0 && s.empty >= s.GiveUp {
		if s.sleeps++; s.sleeps < s.RetryInterval {
			return 0
		}
		s.sleeps = 0
	}
	return s.Time
}

// spun records the result of a spin.
func (s *spin) spun(found bool) {
	if found {
		s.empty = 0
	} else if s.empty < s.GiveUp {
		s.empty++
	}
}
