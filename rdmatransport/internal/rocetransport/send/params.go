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

	// A probe is sent after the longest likely round trip (RFC 6298 §2) without an answer, but at
	// least minProbe. The next wait is twice as long, and there are at most maxProbes. Without
	// probes, only the timeout would find the loss of the last packets, of a retransmission or of a
	// NAK. minProbe is an allowance for peers that are scheduled late (Env.Allowance). For a peer that
	// goes back, only a second loss needs a probe, and the allowance is minBackProbe.
	// Without a measured round trip, the first wait is 1/probeShare of the timeout. With an allowance
	// of 0, none is measured: see rtt.wanted.
	probeShare   = 16
	minProbe     = 5 * time.Millisecond
	minBackProbe = 20 * time.Millisecond
	maxProbes    = 5

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
