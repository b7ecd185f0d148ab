// Package ticks is a clock that takes a fraction of the time that the system's takes to be read. How long a tick is is not known, only
// how long it is at most. It is for what is to be done again when a while has passed, or sooner.
package ticks

// Second is no more than the ticks of a second. A thread that moves to another processor may see ticks go back: differences are to be
// taken as unsigned, so that they are long then.
const Second = 1_000_000_000
