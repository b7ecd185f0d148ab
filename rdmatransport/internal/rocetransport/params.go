package rocetransport

import (
	"time"

	"github.com/softrnic/softrnic/rdmatransport/internal/rocetransport/receive"
	"github.com/softrnic/softrnic/stack"
)

// All tunables of the engine. Those of sending and receiving are in packages send and receive.
const (
	// maxSendDelay is how long packets may be delayed for the application's next poll or post. Once an
	// application no longer counts as polling, nothing is delayed for it.
	maxSendDelay = stack.PollingEndsAfter

	// maxFlushes is the number of FLUSHes of a device that wait for file devices at a time, each in
	// its own thread.
	maxFlushes = 8

	// windowPause is the pause between two windows of an unreliable connection, in which other
	// goroutines run. Nothing is acknowledged, so nothing else paces it.
	windowPause = 200 * time.Microsecond

	// backlogLimit is the backlog to a process at which senders wait, for backlogPause at a time.
	// Other senders may have checked the backlog at the same time. Their packets must fit below the
	// link's own limit of 16 MiB.
	backlogLimit = 4 << 20
	backlogPause = 100 * time.Microsecond

	// paceSlack is the longest time for which unused rate may be accumulated, because timers fire late
	// (send.Env.Allowance).
	// paceAck is the time between acknowledgement requests of a paced message whose packets wait.
	paceSlack = 250 * time.Microsecond
	paceAck   = 250 * time.Microsecond

	// maxReadAtomic is the largest number of outstanding READs and atomics of a QP, on either side.
	maxReadAtomic = 128
)

// Attributes that the device reports.
const (
	MaxMessage    = 1 << 30 // bytes
	MaxReadAtomic = maxReadAtomic
	MaxRateLimit  = 100_000_000 // kbit/s
	// headerRoom is the size of BTH, the largest extensions with a payload (XRCETH, RETH and ImmDt)
	// and the ICRC in a UDP datagram. Overhead adds an IPv6 header and a UDP header, in the
	// interface's MTU.
	headerRoom = receive.HeaderRoom
	Overhead   = 40 + 8 + headerRoom
)
