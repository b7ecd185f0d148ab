package iwarp

import "time"

// Every tunable of the engine, in one place.
const (
	// receiveMost is what a reader takes in before others may have the QP's lock, and TCP its own, in bytes.
	receiveMost = 256 << 10

	// idleBuffer is all that the receiver of an idle stream holds, in bytes.
	idleBuffer = 2 << 10

	// smallFPDU is the longest FPDU that is copied once more to go out together with others, in bytes.
	smallFPDU = 16 << 10

	// Requests of up to smallMessage bytes are corked while corkFrom pieces or more are not acknowledged, or corkAlways if
	// the send queue is full.
	smallMessage = 1 << 10
	corkFrom     = 4
	corkAlways   = 64

	// mpaOverhead is what an FPDU without markers has beside its ULPDU, at most.
	mpaOverhead = 2 + 3 + 4

	// startupTimeout bounds the TCP connection and MPA's exchange of frames; requestTimeout how long a new TCP
	// connection may take to send its request, and lingerTimeout how long a terminated stream waits for the peer to
	// read what was sent and to close (RFC 5044 §7.1.2, rule 10).
	startupTimeout = 10 * time.Second
	requestTimeout = 5 * time.Second
	lingerTimeout  = 2 * time.Second

	// idleTimeout is how long a silent stream keeps more than that, and up to twice as long.
	idleTimeout = time.Second

	// firstNudge is how long an initiator waits for a first segment before it sends the first of at most nudges empty
	// WRITEs.
	firstNudge = 50 * time.Millisecond
	nudges     = 6

	// sendFirstDelay is how long Config.SendFirst leaves the peer to take the reply in.
	sendFirstDelay = 100 * time.Millisecond

	// maxStarting bounds the connections of a listener that have not sent their request yet.
	maxStarting = 1024

	// setupBuffer is the receive buffer of a stream that no QP has, in bytes. An MPA frame is 532 at most; the window, half of
	// it, is a full segment of any Ethernet, so that TCP has nothing to say when the buffer grows.
	setupBuffer = 32 << 10

	// MaxReads is the largest IRD and ORD of a stream.
	MaxReads = 128
)

// MaxMessage is the longest message, in bytes.
const MaxMessage = 1 << 30
