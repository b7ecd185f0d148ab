package iwarptransport

import "time"

// All tunables of the engine.
const (
	// maxReceive is the number of bytes after which a reader releases the locks of the QP and of TCP.
	maxReceive = 256 << 10

	// smallFPDU is the length in bytes up to which FPDUs are coalesced, at the cost of another copy.
	smallFPDU = 16 << 10

	// A request of up to smallMessage bytes is corked while at least corkFrom pieces are
	// unacknowledged. If the send queue is full, it is corked only from corkAlways pieces on. WRITEs
	// of 2 KiB that share no pieces had a fifth of the throughput.
	smallMessage = 16 << 10
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

	// A stream without data for idleTimeout, or up to twice as long, releases its goroutine and the
	// receiver's memory.
	idleTimeout = time.Second

	// readerThreshold is the number of times that data must arrive on a stream before its goroutine
	// stays until the stream is idle.
	readerThreshold = 16

	// firstWakeWrite is the time that an initiator waits for the peer's first segment. It then sends
	// zero-length WRITEs, at most maxWakeWrites.
	firstWakeWrite = 50 * time.Millisecond
	maxWakeWrites  = 6

	// sendFirstDelay is the time that the peer has to read the reply, with Config.SendFirst.
	sendFirstDelay = 100 * time.Millisecond

	// An initiator sends its connection requests to one peer in order. A request waits for the
	// previous one for at most dialWait. A listener reports requests of one peer in order. A request
	// waits for the previous one for at most reportWait. See sequencer.
	dialWait   = 50 * time.Millisecond
	reportWait = 10 * time.Millisecond

	// maxStarting limits the connections of a listener whose request has not arrived: those of one
	// address to half of what the others leave.
	maxStarting = 2048

	// setupBuffer is the receive buffer of a stream without a QP, in bytes. An MPA frame has at most
	// 532. TCP's window is half of the buffer: a full segment of any Ethernet. So TCP sends no window
	// update when the buffer grows.
	setupBuffer = 32 << 10

	// MaxReads is the largest IRD and ORD of a stream.
	MaxReads = 128
)

// MaxMessage is the longest message, in bytes.
const MaxMessage = 1 << 30
