// Package ticks is a clock that is read in a fraction of the time that the system's clock needs.
// Only the maximum length of a tick is known. It suits actions that are to be repeated after an
// interval or sooner.
package ticks

// Second is a lower bound of the ticks in a second. A thread that moves to another processor may
// see ticks go back. Differences are therefore computed as unsigned numbers, which are then large.
const Second = 1_000_000_000
