package cm

import "time"

// What Linux's rdma_cm uses, so that both ends of a mixed pair give up at the same time.
const (
	responseTimeout = 20 // 4.096 µs × 2^n for the peer to answer, and for us
	maxRetries      = 15 // retransmissions of a message that wants an answer
	packetLifetime  = 18 // 4.096 µs × 2^n on the way, one direction
	mraTimeout      = 24 // what a MRA asks for: a minute
	hopLimit        = 64
	defaultPKey     = 0xffff
	defaultUDQKey   = 0x01234567 // RDMA_UDP_QKEY
	permissiveLID   = 0xffff     // there are no LIDs on Ethernet
)

// drainTimeout is how long Drain leaves a peer to answer a DREQ: a program that wants to exit waits
// for it, and for 15 more that it is repeated after.
const drainTimeout = 100 * time.Millisecond

// resentTimeout is how long the peer has to answer what was sent again as the link came back,
// before it is repeated.
const resentTimeout = time.Second

// Bounds on what a peer can make this side wait for, as exponents: from 67 ms to 8.4 s for an
// answer, a minute for a MRA. What a peer asks for beyond is cut.
const (
	minResponseTimeout = 14
	maxResponseTimeout = 21
)

// Bounds on what strangers can make this side remember.
const (
	// defaultBacklog is a listener's where the application gives none.
	defaultBacklog = 1024
	// maxHalfOpen is how many requests of peers, on all listeners together, may be unanswered by
	// the application or, once accepted, by the peer: so many of peers that have shown that they
	// are there, and so many of others. More of the former are lost; the peer asks again. More of
	// the latter are held.
	maxHalfOpen = 16384
	// maxHeld is how many requests are held at most, 5 MiB; a power of two.
	maxHeld = 16384
	// heldFor is how long a sender has to show that it is there, if no flood displaces its request.
	heldFor = 10 * time.Second
	// replyPaths is how many ways to peers without a connection are kept, so that their next
	// message is answered without asking for the neighbour again.
	replyPaths = 64
)

// wait is the time that an exponent of 4.096 µs stands for, to the nearest millisecond that is a
// power of two.
func wait(exp uint8) time.Duration { return time.Millisecond << max(int(exp)-8, 0) }

// ackTimeout is the exponent of a QP's local ACK timeout: the peer's delay and twice the packet
// lifetime, of which only the larger counts unless the other is within half of it (IBTA Vol 1
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
