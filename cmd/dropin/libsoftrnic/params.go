//go:build linux && cgo && (amd64 || arm64)

package main

import "time"

// pollParams are the parameters of polls, which are C code in front of the engine. The page of
// package link/idle, which decides the same for media, has the measurements behind the numbers.
var pollParams = struct {
	// One empty poll in PollsPerCall enters the engine. After a completion, it is one in
	// PollsPerCallSoon until CallsSoon polls have entered. If the CQ sees packets arrive without a
	// call, it is one in PollsPerCallSoon only until CallsSoonArrivals polls have entered.
	PollsPerCall, PollsPerCallSoon, CallsSoon, CallsSoonArrivals uint32
	// One call in CallsPerYield that finds nothing yields the thread. Of the first CallsSoon calls it
	// is one in CallsPerYieldSoon. After CallsBeforeSleep calls, about a millisecond, the thread
	// sleeps instead, like pollers of rings. SleepInterval is longer than theirs, because the engine
	// may sleep too.
	CallsPerYield, CallsPerYieldSoon, CallsBeforeSleep uint32
	SleepInterval                                      time.Duration
	// A thread that waits for events of a channel spins for FirstSpin before it sleeps. A sleep
	// shorter than ShortSleep doubles the next spin, up to LongestSpin. A longer one halves it.
	FirstSpin, LongestSpin, ShortSleep time.Duration
	// CallsPerClock is the number of calls per check of the clock while such a thread spins.
	CallsPerClock uint32
	// If this number of consecutive events were pending when the program asked for them, the program
	// is assumed to wait in poll or epoll.
	EventsBeforePoll uint32
	// One post in PostsPerTake takes completions although the last such post found none.
	PostsPerTake uint32
}{
	PollsPerCall: 256, PollsPerCallSoon: 16, CallsSoon: 128, CallsSoonArrivals: 4,
	CallsPerYield: 8, CallsPerYieldSoon: 32, CallsBeforeSleep: 8192, SleepInterval: 400 * time.Microsecond,
	FirstSpin: 50 * time.Microsecond, LongestSpin: 200 * time.Microsecond, ShortSleep: 200 * time.Microsecond,
	CallsPerClock: 4, EventsBeforePoll: 4, PostsPerTake: 64,
}
