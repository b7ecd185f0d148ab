package receive

import (
	"time"

	"github.com/softrnic/softrnic/rdmatransport/roce/wire"
)

// early is what is known of packets that came too early, and decides whether they are kept, or the
// peer goes back.
//
// Nothing in a packet proves who sent it. Whoever knows the addresses and QP numbers, and sends
// packets with PSNs at random, hits the one that is expected with 1 in 2^24; that is RoCE's only
// defence against those who do not see the packets. A store of early packets must not turn one PSN
// that counts into a thousand. So:
//
//   - A packet is kept only for a connection that has just lost one (lossMemory). That is shown by
//     a packet in its turn that is marked as sent again, with others sent behind it, after one of
//     those came without it. The first loss, as all of a peer that does not mark its packets, is
//     answered by a sequence NAK, and the peer goes back.
//   - A packet that was the newest when it was sent, and comes from before another, shows that the
//     peer had not sent that other one. So does one that differs from a copy that is kept of it,
//     and one that is kept and is in error when its turn comes. Then all is dropped, and nothing
//     kept for a while (distrust). Somebody who sends packets from a thousand PSNs at random is
//     found out by the first or second, long before one hits a PSN whose packet was lost.
//   - What is kept is dropped if what is missing does not come for a while (keepLongest).
//   - A peer that has marked packets marks them all: others are dropped (expected.lacks).
//
// What was kept and is dropped has to be sent again. If the peer was told that it was kept, a
// sequence NAK tells it otherwise. So a peer whose packets change their order on the way is made to
// go back each time.
type early struct {
	kept       *store        // those that are kept; nil if none are
	lossy      time.Duration // until when they may be: one was lost a short while ago
	distrusted time.Duration // until when they may not, whatever is lost: some were perhaps not the peer's
	top        uint32        // one past the highest PSN that has come, if ahead is set
	ahead      bool          // packets have come from further on than the expected one
	gap        bool          // they came before the expected one, which has not come since
}

// keeps reports whether any are kept. There may be no early.
func (e *early) keeps() bool { return e != nil && e.kept != nil }

// came notes a packet that came too early. If that contradicts what came before, it returns false,
// and nothing changes.
func (e *early) came(psn uint32, m marking) bool {
	switch {
	case !e.ahead || wire.PSNDiff(psn, e.top) >= 0:
		e.ahead, e.top = true, wire.PSNAdd(psn, 1)
	case m == newest && wire.PSNDiff(e.top, psn) > 1:
		return false
	}
	return true
}

// turn notes that the expected packet has come, with the given marking; false if that contradicts
// what came before.
func (e *early) turn(psn uint32, m marking, clock Clock) (consistent bool) {
	gap := e.gap
	e.gap = false
	switch {
	case !e.ahead || m == unmarked:
	case wire.PSNDiff(e.top, psn) <= 1:
		e.ahead = false
	case m == newest:
		return false
	case gap:
		if now := clock(); now >= e.distrusted {
			e.lossy = now + lossMemory
		}
	}
	return true
}

// setGap notes whether the expected packet is missing.
func (e *early) setGap(missing bool) { e.gap = missing }

// mayKeep reports whether packets may be kept.
func (e *early) mayKeep(now time.Duration) bool { return now < e.lossy }

// keep begins to keep packets.
func (e *early) keep(k *store) { e.kept, e.gap = k, true }

// forget ends that.
func (e *early) forget() (was *store) {
	was, e.kept = e.kept, nil
	return was
}

// suspect notes that some packets were perhaps not the peer's.
func (e *early) suspect(now time.Duration) { e.ahead, e.lossy, e.distrusted = false, 0, now+distrust }

// overdue notes that what was missing has not come.
func (e *early) overdue() { e.lossy = 0 }
