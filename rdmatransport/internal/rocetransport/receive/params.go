package receive

import (
	"time"

	"github.com/softrnic/softrnic/rdmatransport/internal/rocetransport/send"
	"github.com/softrnic/softrnic/rdmatransport/wire"
)

// The tunables of receiving, in one place.
const (
	// HeaderRoom is the size of the headers of the longest request packet that has a payload: BTH,
	// XRCETH, RETH, ImmDt and ICRC.
	HeaderRoom = 12 + 4 + 16 + 4 + 4

	// keptWindows limits the early packets that a QP keeps, in windows (see send.Window): a power of
	// two. Span derives from it, and everything else from Span: the size of stores and of the
	// requester's scoreboards, and how far a requester sends ahead of a missing packet. A peer with
	// another value would send packets that are dropped, so PROTOCOL.md has the value.
	//
	// It is 2, since the rest of one window arrives after a loss. The other is sent during the round
	// trip of the retransmission; with one window, the path would idle for that time. With the
	// largest window and small packets, more has no effect (maxSpan).
	keptWindows = 2

	// sackEvery is the number of kept packets between two selective acknowledgements. MaxStores is
	// the number of QPs of a device that may keep early packets. All of them together take up to
	// MaxStores * keptWindows windows of memory, and 4 % for headers: 70 MB with send.DefaultWindow.
	// The peers of all other QPs go back.
	sackEvery = 16
	MaxStores = 64

	// lossPeriod is the time after a loss for which early packets are kept. Without this condition,
	// forged packets could fill the stores. keepTimeout is the time for which packets are kept while
	// none of the missing ones arrives. suspectPeriod is the time for which no packets are kept after
	// some that may have been forged.
	lossPeriod    = time.Second
	keepTimeout   = time.Second
	suspectPeriod = 10 * time.Second

	// maxReplays is the number of repeated READs that may be queued beside new ones.
	maxReplays = 64

	// firstBurst is the number of responses that a READ of more than a window begins with, until
	// the peer's rate is known.
	firstBurst = 64

	// responsePause is the pause between two bursts of READ responses, in which other goroutines
	// run. Responses are not acknowledged, so nothing else paces them.
	responsePause = 200 * time.Microsecond
)

// Bounds of Span: the bits in a word of store.have, and half of the packets that a selective
// acknowledgement may cover (its last item may cover more packets than there are).
const (
	minSpan = 64
	maxSpan = (wire.MaxSackPackets + 1) / 2
)

// The conditions for keptWindows. A line does not compile if its condition does not hold.
const (
	_ = uint(keptWindows - 1)                    // a span is at least a window, as the peer may have one in flight
	_ = uint(maxSpan - send.MaxWindow>>10)       // also the largest
	_ = uint(-(keptWindows & (keptWindows - 1))) // a span is a power of two, as PSNs wrap: a slot's index is the PSN modulo the span
)

// Span returns the number of PSNs, from the expected one on, whose packets a QP executes or keeps,
// for a window in bytes. It is a power of two. The peer sends no packet after them.
func Span(window, mtu uint32) uint32 {
	return min(max(keptWindows*send.Window(window, mtu), minSpan), maxSpan)
}
