package idle

import "time"

// The parameters of the idle policy. README.md has the measurements behind the numbers, and
// where the decision is made.

const (
	// PollingEndsAfter is the time after its last poll for which an application counts as polling.
	// It is longer than an application is usually busy between two polls. While an application
	// polls, the goroutines of media leave reception to it.
	PollingEndsAfter = time.Millisecond
	// MaxSendDelay is how long packets may be delayed for the application's next poll or post. Once
	// an application no longer counts as polling, nothing is delayed for it.
	MaxSendDelay = PollingEndsAfter
)

// A poller that has found nothing for BackoffAfter sleeps for SleepTime at a time, at most once in
// SleepInterval. The kernel's timer slack doubles SleepTime, so an idle poller polls for half of
// the time.
const (
	BackoffAfter  = time.Millisecond
	SleepTime     = 50 * time.Microsecond
	SleepInterval = 200 * time.Microsecond
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

// Yield selects what a goroutine does between two reads while it spins.
type Yield uint8

const (
	YieldNothing    Yield = iota // read again at once
	YieldThread                  // sched_yield
	YieldGoroutines              // runtime.Gosched
	YieldBoth                    // runtime.Gosched and, with GOMAXPROCS 1, sched_yield
)

// Spinner has the parameters of a goroutine that spins before it sleeps.
type Spinner struct {
	First   time.Duration // spinning time before the first sleep
	Longest time.Duration // longest spinning time
	// After a sleep shorter than ShortSleep, a longer spin would have found something: the spinning
	// time doubles, up to Longest. After a longer sleep it halves.
	ShortSleep time.Duration
	Yield      Yield // of a Reader
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
	DeviceReader = Spinner{First: 50 * time.Microsecond, Yield: YieldThread, GiveUp: 4, RetryInterval: 32}
	RingReader   = Spinner{First: 50 * time.Microsecond, Yield: YieldGoroutines, GiveUp: 4, RetryInterval: 32}
	HubReader    = Spinner{First: 50 * time.Microsecond, Yield: YieldBoth, GiveUp: 4, RetryInterval: 32}
	SocketReader = Spinner{First: 20 * time.Microsecond, Parks: true, GiveUp: 4, RetryInterval: 32}
	CQWaiter     = Spinner{First: 50 * time.Microsecond, Longest: time.Millisecond, ShortSleep: time.Millisecond}
)

const (
	// GoschedInterval is the time between yields to other goroutines while superframes arrive.
	GoschedInterval = 500 * time.Microsecond
	// ReadsPerGosched and ReadsPerGoschedOneP are like Medium's, for a reader that spins or never
	// sleeps.
	ReadsPerGosched     = 512
	ReadsPerGoschedOneP = 4

	// DirectWaitTime is how long a socket of [DirectWait] waits in the kernel before it leaves
	// waiting to Go's scheduler.
	DirectWaitTime = 2 * time.Millisecond

	// While data arrives in a hub client's rings, one of its polls in PollsPerSocket polls its
	// sockets too.
	PollsPerSocket = 16
	// SocketPollsBeforeYield is the number of empty polls of a hub client after data at its sockets
	// until polls are those of an idle ring. They take about a millisecond.
	SocketPollsBeforeYield = 2048

	// With GOMAXPROCS 1, one empty poll in PollsPerSocketYield lets the goroutines of sockets run.
	PollsPerSocketYield = 4

	// PollsPerOwnProgress is for CQs whose completions arrive without calls of Progress, for example
	// from QPs of the same process. One empty poll of this number calls Progress.
	PollsPerOwnProgress = 128
	// PollsPerClock is the number of polls of CQ.Wait between checks of the clock.
	PollsPerClock = 8
	// MaxSpins ends the spinning of CQ.Wait if time does not advance, as in a bubble of
	// testing/synctest.
	MaxSpins = 1 << 15
)

// C has the parameters of the drop-in libraries, whose polls are C code in front of the engine.
var C = struct {
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
	// Channel spins for events.
	Channel Spinner
	// CallsPerClock is the number of calls per check of the clock while Channel spins.
	CallsPerClock uint32
	// If this number of consecutive events were pending when the program asked for them, the program
	// is assumed to wait in poll or epoll.
	EventsBeforePoll uint32
	// One post in PostsPerTake takes completions although the last such post found none.
	PostsPerTake uint32
}{
	PollsPerCall: 256, PollsPerCallSoon: 16, CallsSoon: 128, CallsSoonArrivals: 4,
	CallsPerYield: 8, CallsPerYieldSoon: 32, CallsBeforeSleep: 8192, SleepInterval: 400 * time.Microsecond,
	Channel:       Spinner{First: 50 * time.Microsecond, Longest: 200 * time.Microsecond, ShortSleep: 200 * time.Microsecond},
	CallsPerClock: 4, EventsBeforePoll: 4, PostsPerTake: 64,
}
