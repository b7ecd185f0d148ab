package idle

import "time"

// Spin decides for how long a goroutine spins before it sleeps, from the results of earlier spins
// and sleeps. Only one goroutine at a time may call its methods.
//
// Spinning does not pay if data seldom arrives, or if its sender needs this processor. For a
// reader, Spin knows only the results of spins. After some that found nothing it gives up, and
// tries again now and then. For a waiter, Spin also knows the time of each sleep. After a short
// sleep the next spin is twice as long. After a long sleep it is half as long, down to none.
type Spin struct {
	*Spinner
	time   time.Duration // of the next spin, if adapted
	known  bool          // time is set
	empty  int           // consecutive spins that found nothing, at most GiveUp
	sleeps int           // sleeps since the last spin
}

// Time returns how long to spin before this sleep, or 0 to sleep at once.
func (s *Spin) Time() time.Duration {
	if s.GiveUp > 0 && s.empty >= s.GiveUp {
		if s.sleeps++; s.sleeps < s.RetryInterval {
			return 0
		}
		s.sleeps = 0
	}
	if s.known {
		return s.time
	}
	return s.First
}

// Spun records the result of a spin.
func (s *Spin) Spun(found bool) {
	if found {
		s.empty = 0
	} else if s.empty < s.GiveUp {
		s.empty++
	}
}

// Slept records how long the goroutine slept after its spin.
func (s *Spin) Slept(d time.Duration) {
	was := s.First
	if s.known {
		was = s.time
	}
	s.known = true
	switch {
	case d < s.ShortSleep:
		s.time = min(max(2*was, s.First), s.Longest)
	case was < s.First/8:
		s.time = 0
	default:
		s.time = was / 2
	}
}
