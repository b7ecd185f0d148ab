package iwarptransport

import "time"

// All tunables of the engine.
const (
	// maxReceive is how many bytes a reader handles before it releases the locks of the QP and of
	// TCP.
	maxReceive = 256 << 10

	// smallFPDU is the longest FPDU, in bytes, that is coalesced at the cost of another copy.
	smallFPDU = 16 << 10

	// Requests of up to smallMessage bytes are corked while at least corkFrom pieces are
	// unacknowledged, or corkAlways if the send queue is full.
	smallMessage = 1 << 10
	corkFrom     = 4
	corkAlways   = 64

	// mpaOverhead is the largest overhead of an FPDU without markers: length, pad and CRC.
	mpaOverhead = 2 + 3 + 4

	// startupTimeout limits the initiator's set-up: the TCP connection, and the exchange of MPA
	// frames. requestTimeout limits the time until a new TCP connection sends its request.
	// lingerTimeout is how long a stream closed on this side waits for the peer to read everything
	// and close too (RFC 5044 §7.1.2, rule 10).
	startupTimeout = 10 * time.Second
	requestTimeout = 5 * time.Second
	lingerTimeout  = 2 * time.Second

	// After idleTimeout without data, or up to twice that, a stream releases its goroutine and the
	// receiver's memory.
	idleTimeout = time.Second

	// readerThreshold is how often data must arrive before a stream's goroutine stays until the
	// stream is idle.
	readerThreshold = 16

	// firstWakeWrite is how long an initiator waits for the peer's first segment before it sends
	// the first of at most maxWakeWrites zero-length WRITEs.
	firstWakeWrite = 50 * time.Millisecond
	maxWakeWrites  = 6

	// sendFirstDelay is the peer's time to read the reply with Config.SendFirst.
	sendFirstDelay = 100 * time.Millisecond

	// A connection request follows the previous one to the same peer, but waits for it at most
	// dialWait. It is reported after the previous one from that peer, but waits at most reportWait:
	// see sequencer.
	dialWait   = 50 * time.Millisecond
	reportWait = 10 * time.Millisecond

	// maxStarting limits the connections of a listener whose request has not arrived.
	maxStarting = 1024

	// setupBuffer is the receive buffer of a stream without a QP, in bytes. An MPA frame has at
	// most 532. The window, half of it, is a full segment of any Ethernet, so that TCP sends no
	// window update when the buffer grows.
	setupBuffer = 32 << 10

	// MaxReads is the largest IRD and ORD of a stream.
	MaxReads = 128
)

// MaxMessage is the longest message, in bytes.
const MaxMessage = 1 << 30
