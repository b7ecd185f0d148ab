package iwarp

import "time"

// Every tunable of the engine, in one place.
const (
	// receiveMost is how many bytes a reader handles before it leaves the locks of the QP and of
	// TCP to others.
	receiveMost = 256 << 10

	// smallFPDU is the longest FPDU, in bytes, that is copied once more to share a piece with
	// others.
	smallFPDU = 16 << 10

	// Requests of up to smallMessage bytes are corked while corkFrom pieces or more are not
	// acknowledged, or corkAlways if the send queue is full.
	smallMessage = 1 << 10
	corkFrom     = 4
	corkAlways   = 64

	// mpaOverhead is the most bytes that an FPDU without markers has beside its ULPDU: length, pad
	// and CRC.
	mpaOverhead = 2 + 3 + 4

	// startupTimeout bounds the initiator's set-up: the TCP connection, and MPA's exchange of
	// frames. requestTimeout is how long a new TCP connection may take to send its request, and
	// lingerTimeout how long a stream that was closed from this side waits for the peer to read
	// what was sent and to close too (RFC 5044 §7.1.2, rule 10).
	startupTimeout = 10 * time.Second
	requestTimeout = 5 * time.Second
	lingerTimeout  = 2 * time.Second

	// A stream on which nothing comes gives its goroutine and the receiver's memory back after
	// idleTimeout, or up to twice as long.
	idleTimeout = time.Second

	// keepReader is how often something has come before a stream's goroutine stays until the stream
	// is idle.
	keepReader = 16

	// firstNudge is how long an initiator waits for the peer's first segment before it sends the
	// first of at most nudges WRITEs of no bytes.
	firstNudge = 50 * time.Millisecond
	nudges     = 6

	// sendFirstDelay is how long Config.SendFirst leaves the peer to read the reply.
	sendFirstDelay = 100 * time.Millisecond

	// A connection is asked for behind the one before it to the same peer, but waits for it no
	// longer than askWait; and reported behind the one before it from there, but waits no longer
	// than reportWait: see order.
	askWait    = 50 * time.Millisecond
	reportWait = 10 * time.Millisecond

	// maxStarting bounds the connections of a listener whose request has not come yet.
	maxStarting = 1024

	// setupBuffer is the receive buffer of a stream that no QP has, in bytes. An MPA frame is 532
	// at most; the window, half of it, is a full segment of any Ethernet, so that TCP has nothing
	// to say when the buffer grows.
	setupBuffer = 32 << 10

	// MaxReads is the largest IRD and ORD of a stream.
	MaxReads = 128
)

// MaxMessage is the longest message, in bytes.
const MaxMessage = 1 << 30
