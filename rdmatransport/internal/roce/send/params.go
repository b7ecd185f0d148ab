package send

import "time"

// The tunables of sending, in one place. Those that are exported also bound what the receive side keeps and answers.
const (
	// WindowBytes and MaxWindow bound what a requester has in flight: bytes of payload, and packets. A window must cover
	// the path's delay times its rate, and fit the queues on the way: a TAP holds 1,000 frames by default.
	WindowBytes = 512 << 10
	MaxWindow   = 512
	// MinWindow is what the window shrinks to under loss.
	MinWindow = 8

	// acksPerWindow is how many acknowledgements a long message asks for while it sends a full window: one part of it is
	// then being acknowledged while the others are sent.
	acksPerWindow = 4

	// MaxSpan is the largest distance, in packets, between the oldest PSN that is not acknowledged and the newest that
	// was sent: a window, and what is sent while a gap is being filled.
	MaxSpan = 2 * MaxWindow

	// LossEvidence is how many packets that were sent later must have arrived before one is taken for lost, if so many
	// are under way (RFC 9002 §6.1.1 calls it kPacketThreshold).
	LossEvidence = 3

	// A requester that hears nothing for the longest likely round trip (RFC 6298 §2), but at least minProbe, sends one
	// packet again, and after twice as long once more, maxProbes times at most: where the end of what it sent was lost, or
	// a repetition, or the NAK, nothing else would show it before the timeout. minProbe is for peers that are scheduled
	// late; towards one that goes back, where only a second loss needs a probe, it is minBackProbe. Where no round trip was
	// measured, the first wait is 1/probeShare of the timeout.
	probeShare   = 16
	minProbe     = 5 * time.Millisecond
	minBackProbe = 20 * time.Millisecond
	maxProbes    = 5

	// fullFrame is how many small requests are sent without waiting for more.
	fullFrame = 64
)

// Window is how many packets of a path MTU may be in flight. It is a power of two.
func Window(mtu uint32) uint32 { return min(WindowBytes/mtu, MaxWindow) }

// Span is MaxSpan for a path MTU. It is a power of two.
func Span(mtu uint32) uint32 { return 2 * Window(mtu) }
