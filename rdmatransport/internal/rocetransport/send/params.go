package send

import "time"

// The tunables of sending. The exported ones also bound the receive state.
const (
	// DefaultWindow is the default limit of payload bytes in flight. A device may set LeastWindow
	// to MaxWindow instead. Each is a power of two. A window must cover the path's bandwidth-delay
	// product, and fit the queues on the path: a TAP holds 1,000 frames by default.
	DefaultWindow = 512 << 10
	LeastWindow   = 128 << 10
	MaxWindow     = 16 << 20
	// MinWindow is the smallest window, in packets, under loss.
	MinWindow = 8

	// acksPerWindow is the number of acknowledgements that a long message requests per window. One
	// part of the window is acknowledged while the others are sent.
	acksPerWindow = 4

	// LossEvidence is how many packets sent later must have arrived before one is considered lost
	// (kPacketThreshold of RFC 9002 §6.1.1).
	LossEvidence = 3

	// trimmedWindow takes the place of MinWindow if packets are trimmed, in place of dropped. Senders
	// of an incast then fit more of what they send into the queue. With one packet less, none could be
	// found lost by later ones.
	trimmedWindow = LossEvidence + 1

	// A probe waits for an answer that was requested: for the longest likely round trip (RFC 6298 §2),
	// and for as long as answers are late at times (LateAnswers). RFC 9002 §6.2.1 has the peer's
	// max_ack_delay in that place, which RoCE's peers do not tell. With processes and timers that are
	// late, it allows for granularity at least (kGranularity of RFC 9002 §6.1.2). The wait is at most
	// probeWait, and half of the timeout. The next one is twice as long, and there are at most
	// maxProbes. Without probes, only the timeout would find the loss of the last packets, of a
	// retransmission or of a NAK.
	//
	// For a peer that goes back, only a second loss needs a probe. A probe for nothing costs more
	// there: all that is in flight may be sent again, also to a peer that is slow because it has much
	// to do. So with processes that are late the wait is backProbeWait, whatever was seen.
	//
	// Without a measured round trip, the likely one is 1/probeShare of the timeout. Before enough
	// answers have come, the wait is that or an allowance of the bound, as on a machine.
	probeShare    = 16
	granularity   = time.Millisecond
	probeWait     = 5 * time.Millisecond
	backProbeWait = 20 * time.Millisecond
	maxProbes     = 5

	// minTimeout is the shortest retransmission timeout, also an allowance. With a shorter one, a peer
	// that is scheduled late would be considered dead. IBTA Vol 1 §9.7.6.1.3 allows a timeout between
	// T and 4T, and caps report the delay.
	minTimeout = 4 * time.Millisecond

	// lateAnswer is how late a peer that works may answer. A kernel's device on a loaded machine was
	// seen to answer the packets of half a second before, each of them retransmitted.
	lateAnswer = 250 * time.Millisecond

	// fullFrame is the number of small requests that are sent without waiting for more.
	fullFrame = 64
)

// Window returns the number of packets in flight for a window in bytes. Both are powers of two.
// Packets below 1 KiB count as 1 KiB, which bounds the state per packet.
func Window(bytes, mtu uint32) uint32 { return bytes / max(mtu, 1<<10) }
