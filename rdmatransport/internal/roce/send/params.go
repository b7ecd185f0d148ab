package send

import (
	"math/bits"
	"time"
)

// The tunables of sending, in one place. Those that are exported also bound what the receive side
// keeps and answers.
const (
	// DefaultWindow is how many bytes of payload a requester has in flight at most, and leastWindow
	// to MaxWindow what a device may set instead: each a power of two. A window must cover the
	// path's round trip times its rate, and fit the queues on the way: a TAP holds 1,000 frames by
	// default.
	DefaultWindow = 512 << 10
	leastWindow   = 128 << 10
	MaxWindow     = 16 << 20
	// MinWindow is what the window shrinks to under loss.
	MinWindow = 8

	// acksPerWindow is how many acknowledgements a long message asks for while it sends a full
	// window: one part of it is then being acknowledged while the others are sent.
	acksPerWindow = 4

	// LossEvidence is how many packets that were sent later must have arrived before one is taken
	// for lost, if so many are under way (RFC 9002 §6.1.1 calls it kPacketThreshold).
	LossEvidence = 3

	// A requester that hears nothing for the longest likely round trip (RFC 6298 §2), but at least
	// minProbe, sends one packet again, and after twice as long once more, maxProbes times at most:
	// where the end of what it sent was lost, or a repetition, or the NAK, nothing else would show
	// it before the timeout. minProbe is for peers that are scheduled late; towards one that goes
	// back, where only a second loss needs a probe, it is minBackProbe. Where no round trip was
	// measured, the first wait is 1/probeShare of the timeout.
	probeShare   = 16
	minProbe     = 5 * time.Millisecond
	minBackProbe = 20 * time.Millisecond
	maxProbes    = 5

	// fullFrame is how many small requests are sent without waiting for more.
	fullFrame = 64
)

// Window is how many packets of a path MTU may be in flight where so many bytes may, which is a
// power of two, as the result is. Small packets count as 1 KiB, which bounds what is kept of each.
func Window(bytes, mtu uint32) uint32 { return bytes / max(mtu, 1<<10) }

// Span is the largest distance, in packets, between the oldest PSN that is not acknowledged and the
// newest that was sent: a window, and what is sent while a gap is being filled.
func Span(window uint32) uint32 { return 2 * window }

// WindowOf is the window for what a device's configuration asks for: DefaultWindow for 0, else the
// power of two below.
func WindowOf(bytes int) uint32 {
	if bytes <= 0 {
		return DefaultWindow
	}
	return 1 << (bits.Len(uint(max(leastWindow, min(bytes, MaxWindow)))) - 1)
}
