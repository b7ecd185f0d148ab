package iwarp

import "time"

// Every tunable of the engine, in one place.
const (
	// readBuffer is what one read of a busy stream takes, in bytes; idleBuffer is all that an idle one holds.
	readBuffer = 256 << 10
	idleBuffer = 2 << 10

	// startupTimeout bounds the TCP connection and MPA's exchange of frames; requestTimeout how long a new TCP
	// connection may take to send its request, and lingerTimeout how long a terminated stream waits for the peer to
	// read what was sent and to close (RFC 5044 §7.1.2, rule 10).
	startupTimeout = 10 * time.Second
	requestTimeout = 5 * time.Second
	lingerTimeout  = 2 * time.Second

	// idleTimeout is how long a stream keeps a large buffer that it does not fill, and up to twice that.
	idleTimeout = time.Second

	// firstNudge is how long an initiator waits for a first segment before it sends the first of at most nudges empty
	// WRITEs.
	firstNudge = 50 * time.Millisecond
	nudges     = 6

	// maxStarting bounds the connections of a listener that have not sent their request yet.
	maxStarting = 1024

	// MaxReads is the largest IRD and ORD of a stream.
	MaxReads = 128
)

// MaxMessage is the longest message, in bytes.
const MaxMessage = 1 << 30
