package receive

import (
	"time"

	"github.com/softrnic/softrnic/rdmatransport/wire"
)

// early decides whether packets that arrive early (out of order) are kept. If they are not, the
// peer goes back.
//
// Nothing in a packet proves its origin. An off-path attacker that knows the addresses and QP
// numbers can send packets with random PSNs. It hits the expected PSN with a probability of 1 in
// 2^24. This is RoCE's only defence against such attackers. With a store of early packets, the
// attacker must not be able to hit a thousand PSNs instead of one. Hence these rules:
//
//   - Packets are kept only on a connection that has just lost one (lossPeriod). The proof of a
//     loss is the expected packet itself: it is marked as retransmitted, and a packet after it
//     came first. The first loss is answered by a sequence NAK, and the peer goes back. So is every
//     loss of a peer that does not mark its packets.
//   - A packet marked as the newest must not have a PSN below one that has already arrived: the
//     peer would not have sent that one yet. A retransmission must equal the copy that is kept. A
//     kept packet must not be in error. Any contradiction drops all kept packets, and none are kept
//     for a while (suspectPeriod). An attacker that sends packets from a thousand random PSNs is
//     detected by the first or second of them. That is long before one hits the PSN of a lost
//     packet.
//   - Kept packets are dropped if the missing packet does not arrive in time (keepTimeout).
//   - A peer that has marked one packet marks them all. Unmarked packets are dropped
//     (expected.lacksMark).
//
// In a simulation, whose packets nobody forges (Shared.NoForgeries), the first loss is like others.
//
// The peer must retransmit packets that were kept and then dropped. If they were already reported
// to the peer, a sequence NAK revokes the report. A path that reorders packets therefore makes the
// peer go back each time.
type early struct {
	kept         *store        // the kept packets; nil if there are none
	keepUntil    time.Duration // packets may be kept until then, because one was lost recently
	suspectUntil time.Duration // no packets are kept until then, because some may have been forged
	top          uint32        // one past the highest PSN that has arrived, if ahead is set
	ahead        bool          // packets after the expected one have arrived
	gap          bool          // they arrived before the expected one, which is still missing
	trimmed      trimmed
}

// keeps reports whether packets are kept. The receiver may be nil.
func (e *early) keeps() bool { return e != nil && e.kept != nil }

// onEarly records a packet that arrived early. It returns false, and changes nothing, if the packet
// contradicts earlier ones.
func (e *early) onEarly(psn uint32, m marking) bool {
	switch {
	case !e.ahead || wire.PSNDiff(psn, e.top) >= 0:
		e.ahead, e.top = true, wire.PSNAdd(psn, 1)
	case m == newest && wire.PSNDiff(e.top, psn) > 1:
		return false
	}
	return true
}

// onExpected records that the expected packet has arrived. It returns false if its marking
// contradicts earlier packets.
func (e *early) onExpected(psn uint32, m marking, clock Clock) (consistent bool) {
	gap := e.gap
	e.gap = false
	switch {
	case !e.ahead || m == unmarked:
	case wire.PSNDiff(e.top, psn) <= 1:
		e.ahead = false
	case m == newest:
		return false
	case gap:
		if now := clock(); now >= e.suspectUntil {
			e.keepUntil = now + lossPeriod
		}
	}
	return true
}

// setGap records whether the expected packet is missing.
func (e *early) setGap(missing bool) { e.gap = missing }

// mayKeep reports whether packets may be kept.
func (e *early) mayKeep(now time.Duration) bool { return now < e.keepUntil }

// keep begins to keep packets.
func (e *early) keep(k *store) { e.kept, e.gap = k, true }

// stopKeeping stops keeping packets and returns the store.
func (e *early) stopKeeping() (was *store) {
	was, e.kept = e.kept, nil
	return was
}

// suspect records that some packets may have been forged.
func (e *early) suspect(now time.Duration) {
	e.ahead, e.keepUntil, e.suspectUntil = false, 0, now+suspectPeriod
}

// onTimeout records that the missing packet did not arrive in time.
func (e *early) onTimeout() { e.keepUntil = 0 }
