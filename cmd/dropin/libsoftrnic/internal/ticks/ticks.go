// Package ticks is a clock. Reading it takes a fraction of the time that the system's clock needs.
// The exact length of a tick is unknown, and only its maximum is known. The clock suits actions
// that are repeated after an interval or sooner.
package ticks

// Second is a lower bound of the ticks in a second. If a thread moves to another processor, ticks
// may go back. Differences are therefore computed as unsigned numbers, which are then large.
const Second = 1_000_000_000
