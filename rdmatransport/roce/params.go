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

	// maxSpan is the largest span, in packets; reorderBytes is what the packets of any span take. No more than maxReorders
	// QPs of a device have packets behind a gap kept, 70 MB in all; the others' peers go back.
	maxSpan      = 2 * maxWindow
	reorderBytes = 2*windowBytes + maxSpan*headerRoom
	maxReorders  = 64

	// lossEvidence is how many packets that were sent later must have arrived before one is taken for lost, if so many
	// are under way. sackEvery is how many packets behind gaps one selective acknowledgement is for.
	lossEvidence = 3
	sackEvery    = 16

	// A requester that hears nothing for the longest likely round trip (RFC 6298 §2), but at least minProbe, sends one
	// packet again, and after twice as long once more, maxProbes times at most: where the end of what it sent was lost, or
	// a repetition, or the NAK, nothing else would show it before the timeout. minProbe is for peers that are scheduled
	// late; towards one that goes back, where only a second loss needs a probe, it is minBackProbe. Where no round trip was
	// measured, the first wait is 1/probeShare of the timeout.
	probeShare   = 16
	minProbe     = 5 * time.Millisecond
	minBackProbe = 20 * time.Millisecond
	maxProbes    = 5

	// maxReplays is how many repeated READs wait to be answered beside those that are new.
	maxReplays = 64

	// maxFlushes is how many FLUSHes of a device wait for the devices of files at once, each in a thread of its own.
	maxFlushes = 8

	// fullFrame is how many small requests are sent without waiting for more.
	fullFrame = 64
	// maxWait is how long a request or acknowledgement waits for company where nobody polls and nothing comes in.
	maxWait = time.Millisecond

	// firstBurst is how many responses a READ of more than a window begins with, until it is known what the peer can take.
	firstBurst = 64

	// responsePause is between two windows of READ responses, for others to run: READs have no acknowledgements that
	// could pace them.
	responsePause = 200 * time.Microsecond

	// paceSlack is how much of a rate that was not used is made up for: timers fire late. paceAck is how often a paced
	// message asks for an acknowledgement where its packets begin to wait.
	paceSlack = 250 * time.Microsecond
	paceAck   = 250 * time.Microsecond

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
	MaxRateLimit  = 100_000_000 // kbit/s
	// V1Index is where the GIDs of RoCE v1 begin in a port's table: those of v2 come before, in the same order.
	V1Index = 128
	// headerRoom is what BTH, the largest extensions beside a payload (XRCETH, RETH and ImmDt) and the ICRC take in a UDP
	// datagram; Overhead what they, an IPv6 header and a UDP header take of the interface's MTU.
	headerRoom = 12 + 4 + 16 + 4 + 4
	Overhead   = 40 + 8 + headerRoom
)
