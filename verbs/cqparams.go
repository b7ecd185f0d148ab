package verbs

import "time"

// The parameters of polling and waiting for completions. The page of package link/idle, which
// decides the same for media, has the measurements behind the numbers.

const (
	// pollsPerOwnProgress is for CQs whose completions arrive without calls of Progress, for example
	// from QPs of the same process. One empty poll of this number calls Progress.
	pollsPerOwnProgress = 128
	// pollsPerClock is the number of polls of CQ.Wait between checks of the clock.
	pollsPerClock = 8
	// maxSpins ends the polling of CQ.Wait if time does not advance, as in a bubble of
	// testing/synctest.
	maxSpins = 1 << 15
)

// CQ.Wait polls for firstSpin before its first sleep. After a sleep shorter than shortSleep, a
// longer spin would have found something: the polling time doubles, up to longestSpin.
const (
	firstSpin   = 50 * time.Microsecond
	longestSpin = time.Millisecond
	shortSleep  = time.Millisecond
)
