package roce

import (
	"time"

	"github.com/softrnic/softrnic/rdmatransport/internal/roce/receive"
)

// Every tunable of the engine, in one place; those of sending and receiving alone are in packages
// send and receive.
const (
	// maxFlushes is how many FLUSHes of a device wait for the devices of files at once, each in a
	// thread of its own.
	maxFlushes = 8

	// maxDelay is how long a request or acknowledgement is delayed where nobody polls and nothing
	// comes in.
	maxDelay = time.Millisecond

	// windowPause is between two windows of an unreliable connection, for others to run: nothing is
	// acknowledged that could pace them.
	windowPause = 200 * time.Microsecond

	// crowdedBytes is from which backlog on senders to a process wait, for crowdedPause at a time.
	// What is sent meanwhile by others that looked before must find room below the link's own
	// bound, 16 MiB.
	crowdedBytes = 4 << 20
	crowdedPause = 100 * time.Microsecond

	// paceSlack is how much of a rate that was not used is made up for: timers fire late. paceAck
	// is how often a paced message asks for an acknowledgement where its packets begin to wait.
	paceSlack = 250 * time.Microsecond
	paceAck   = 250 * time.Microsecond

	// minTimeout is the shortest retransmission timeout: below that a peer that is only scheduled
	// late is taken for dead. IBTA Vol 1 §9.7.6.1.3 lets an implementation time out between T and
	// 4T, and caps report the delay.
	minTimeout = 4 * time.Millisecond

	// maxReadAtomic is the largest number of outstanding READs and atomics a QP may ask for, on
	// either side.
	maxReadAtomic = 128
)

// Attributes that the device reports.
const (
	MaxMessage    = 1 << 30 // bytes
	MaxReadAtomic = maxReadAtomic
	MaxRateLimit  = 100_000_000 // kbit/s
	// headerRoom is what BTH, the largest extensions beside a payload (XRCETH, RETH and ImmDt) and
	// the ICRC take in a UDP datagram; Overhead what they, an IPv6 header and a UDP header take of
	// the interface's MTU.
	headerRoom = receive.HeaderRoom
	Overhead   = 40 + 8 + headerRoom
)
