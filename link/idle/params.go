// Package idle decides what a loop does that polls and finds nothing: poll again, yield or sleep.
// README.md has the rules, and who uses which type.
//
// This package is for SoftRNIC's own packages, and its API may change in any version.
package idle

import "time"

// The parameters of the idle policy. README.md has the measurements behind the numbers, and
// where the decision is made.

// PollingEndsAfter is the time after its last poll for which an application counts as polling. It
// is longer than an application is usually busy between two polls. While an application polls, the
// goroutines of media leave reception to it.
const PollingEndsAfter = time.Millisecond

// A poller that has found nothing for backoffAfter sleeps for SleepTime at a time, at most once in
// sleepInterval. The kernel's timer slack doubles SleepTime, so an idle poller polls for half of
// the time.
const (
	backoffAfter  = time.Millisecond
	SleepTime     = 50 * time.Microsecond
	sleepInterval = 200 * time.Microsecond
)

// Medium has the parameters of an application that polls a medium.
type Medium struct {
	// One empty poll in PollsPerYield yields the thread (sched_yield), even if it has just yielded
	// to goroutines: a sender in another process may need the processor.
	PollsPerYield uint32
	// One empty poll in PollsPerGosched yields to other goroutines. It is one in PollsPerGoschedOneP
	// with GOMAXPROCS 1, because then nothing else lets them run. PollsPerGosched is a multiple of
	// PollsPerYield.
	PollsPerGosched, PollsPerGoschedOneP uint32
}

// The media that an application polls.
var (
	// TAP and AF_PACKET.
	Device = Medium{PollsPerYield: 32, PollsPerGosched: 512, PollsPerGoschedOneP: 4}
	// Shared memory.
	Ring = Medium{PollsPerYield: 32, PollsPerGosched: 4096, PollsPerGoschedOneP: 32}
	// Rings that a hub fills.
	Hub = Medium{PollsPerYield: 8, PollsPerGosched: 4096, PollsPerGoschedOneP: 8}
)

// yield selects what a goroutine does between two reads while it spins.
type yield uint8

const (
	yieldNothing    yield = iota // read again at once
	yieldThreads                 // sched_yield
	yieldGoroutines              // runtime.Gosched
	yieldBoth                    // runtime.Gosched and, with GOMAXPROCS 1, sched_yield
)

// Spinner has the parameters of a goroutine that spins before it sleeps.
type Spinner struct {
	Time  time.Duration // how long to spin before a sleep
	yield yield
	// Parks says that the goroutine sleeps in Go's scheduler, which lets others run. It need not yield
	// to them first.
	Parks bool
	// After GiveUp spins in a row that found nothing, only one sleep in RetryInterval is preceded by
	// a spin. 0: never.
	GiveUp, RetryInterval int
}

// The goroutines that spin.
var (
	// Reads TAP and AF_PACKET.
	DeviceReader = Spinner{Time: 50 * time.Microsecond, yield: yieldThreads, GiveUp: 4, RetryInterval: 32}
	RingReader   = Spinner{Time: 50 * time.Microsecond, yield: yieldGoroutines, GiveUp: 4, RetryInterval: 32}
	HubReader    = Spinner{Time: 50 * time.Microsecond, yield: yieldBoth, GiveUp: 4, RetryInterval: 32}
	SocketReader = Spinner{Time: 20 * time.Microsecond, Parks: true, GiveUp: 4, RetryInterval: 32}
)

const (
	// goschedInterval is the time between yields to other goroutines while superframes arrive.
	goschedInterval = 500 * time.Microsecond
	// readsPerGosched and readsPerGoschedOneP are like Medium's, for a reader that spins or never
	// sleeps.
	readsPerGosched     = 512
	readsPerGoschedOneP = 4

	// With GOMAXPROCS 1, a reader yields after superframesPerGosched superframes, also if more are
	// waiting. They are as many bytes as an iWARP stream takes at a time.
	superframesPerGosched = 4

	// DirectWaitTime is how long a socket of [DirectWait] waits in the kernel before it leaves
	// waiting to Go's scheduler.
	DirectWaitTime = 2 * time.Millisecond

	// While data arrives in a hub client's rings, one of its polls in PollsPerSocket polls its
	// sockets too.
	PollsPerSocket = 16
	// SocketPollsBeforeYield is the number of empty polls of a hub client after data at its sockets
	// until polls are those of an idle ring. They take about a millisecond.
	SocketPollsBeforeYield = 2048

	// With GOMAXPROCS 1, one empty poll in pollsPerSocketYield lets the goroutines of sockets run.
	pollsPerSocketYield = 4
)
