package roce

import "time"

// Every tunable of the engine, in one place.
const (
	// windowBytes and maxWindow bound what a requester has in flight, and what a responder answers READs with at once:
	// bytes of payload, and packets. A window must cover the path's delay times its rate, and fit the queues on the way:
	// a TAP holds 1,000 frames by default.
	windowBytes = 512 << 10
	maxWindow   = 512
	// minWindow is what the window shrinks to under loss.
	minWindow = 8

	// acksPerWindow is how many acknowledgements a long message asks for while it sends a full window: one part of it is
	// then being acknowledged while the others are sent.
	acksPerWindow = 4

	// responsePause is between two windows of READ responses, for others to run: READs have no acknowledgements that
	// could pace them.
	responsePause = 200 * time.Microsecond

	// minTimeout is the shortest retransmission timeout: below that a peer that is only scheduled late is taken for
	// dead. IBTA Vol 1 §9.7.6.1.3 lets an implementation time out between T and 4T, and caps report the delay.
	minTimeout = 4 * time.Millisecond

	// maxReadAtomic is the largest number of outstanding READs and atomics a QP may ask for, on either side.
	maxReadAtomic = 128
)

// Attributes that the device reports.
const (
	MaxMessage    = 1 << 30 // bytes
	MaxReadAtomic = maxReadAtomic
	// headerRoom is what BTH, the largest extensions beside a payload (RETH and ImmDt) and the ICRC take in a UDP
	// datagram; Overhead what they, an IPv6 header and a UDP header take of the interface's MTU.
	headerRoom = 12 + 16 + 4 + 4
	Overhead   = 40 + 8 + headerRoom
)
