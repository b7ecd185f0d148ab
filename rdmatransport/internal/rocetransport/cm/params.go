package cm

import "time"

// Values of Linux's rdma_cm, so that both ends of a mixed pair give up at the same time.
const (
	responseTimeout = 20 // 4.096 µs × 2^n to answer, on either side
	maxRetries      = 15 // retransmissions of a message that needs an answer
	packetLifetime  = 18 // 4.096 µs × 2^n in one direction
	mraTimeout      = 24 // of a MRA: a minute
	hopLimit        = 64
	defaultPKey     = 0xffff
	defaultUDQKey   = 0x01234567 // RDMA_UDP_QKEY
	permissiveLID   = 0xffff     // there are no LIDs on Ethernet
)

// drainTimeout is the time between DREQs in Drain. A program that wants to exit waits for this time
// and for 15 retransmissions.
const drainTimeout = 100 * time.Millisecond

// linkUpTimeout is the time for an answer after a retransmission by LinkUp.
const linkUpTimeout = time.Second

// Limits of the time that a peer can make this side wait, as exponents: 67 ms to 8.4 s for an
// answer, a minute for a MRA. Larger values are reduced.
const (
	minResponseTimeout = 14
	maxResponseTimeout = 21
)

// Limits of the state for unvalidated peers.
const (
	// defaultBacklog is used if the application gives none.
	defaultBacklog = 1024
	// maxHalfOpen is the largest number of half-open requests on all listeners together. It applies
	// separately to validated and to unvalidated peers. Further requests of validated peers are
	// dropped, and retransmitted by the peer. Further requests of unvalidated peers are held.
	maxHalfOpen = 16384
	// maxHeld is the largest number of held requests, 5 MiB; a power of two.
	maxHeld = 16384
	// heldTimeout is the time that a peer has to answer, if no flood replaces its request.
	heldTimeout = 10 * time.Second
	// replyPaths is the number of paths to peers without a connection that are kept, to avoid another
	// neighbour resolution.
	replyPaths = 64
)

// wait returns the time of an exponent of 4.096 µs, as the nearest power of two of milliseconds.
func wait(exp uint8) time.Duration { return time.Millisecond << max(int(exp)-8, 0) }

// ackTimeout returns the exponent of a QP's local ACK timeout, which is the peer's delay plus twice
// the packet lifetime. If one is more than twice the other, only the larger counts (IBTA Vol 1
// §12.7.34).
func ackTimeout(delay, lifetime uint8) uint8 {
	t := lifetime + 1
	if t >= delay {
		if delay+1 >= t {
			t++
		}
	} else if t+1 >= delay {
		t = delay + 1
	} else {
		t = delay
	}
	return min(t, 31)
}
