package roce

// On the path: whether request packets that came too early are kept (reorder.go), or the peer goes back.
//
// Nothing in a packet proves who sent it. Whoever knows the addresses and QP numbers, and sends packets with PSNs at
// random, hits the one that is expected with 1 in 2^24; that is RoCE's only defence against those who do not see the
// packets. A store of early packets must not turn one PSN that counts into a thousand. So:
//
//   - A packet is kept only for a connection that has just lost one (lossMemory). That is shown by a packet in its turn
//     that is marked as sent again, with others sent behind it, after one of those came without it. The first loss, as
//     all of a peer that does not mark its packets, is answered by a sequence NAK, and the peer goes back.
//   - A packet that was the newest when it was sent, and comes from before another, shows that the peer had not sent that
//     other one. So does one that differs from a copy that is kept of it, and one that is kept and is in error when its
//     turn comes. Then all is dropped, and nothing kept for a while (distrust). Somebody who sends packets from a thousand
//     PSNs at random is found out by the first or second, long before one hits a PSN whose packet was lost.
//   - What is kept is dropped if what is missing does not come for a while (heldLongest).
//   - A peer that has marked packets marks them all: others are dropped.
//
// What was kept and is dropped has to be sent again. Where the peer was told that it was here, a sequence NAK makes the
// peer forget that. A peer whose packets change their order on the way is asked to go back each time, then.

import (
	"time"

	"github.com/softrnic/softrnic/rdmatransport/roce/internal/send"
	"github.com/softrnic/softrnic/rdmatransport/roce/wire"
)

// early is what a responder knows of packets that came too early. It exists from the first of a peer that marks on.
type early struct {
	held     *reorder      // those that are kept; nil if none are
	lossy    time.Duration // until when they may be: one was lost a short while ago
	distrust time.Duration // until when they may not, whatever is lost: some were perhaps not the peer's
	top      uint32        // one past the highest PSN that has come, if ahead is set
	ahead    bool          // packets have come from further on than the expected one
	gap      bool          // without it, and it has not come since
}

// held is the packets that are kept, nil if there are none.
func (r *responder) held() *reorder {
	if r.early == nil {
		return nil
	}
	return r.early.held
}

// marking is what the mark of a request packet says.
type marking uint8

const (
	unmarked marking = iota
	newest           // see wire.Mark
	again
)

func (q *qp) marking(p *wire.Packet) marking {
	switch m := q.answers; {
	case m == 0:
	case p.Reserved7 == m.Newest():
		return newest
	case p.Reserved7 == m.Again():
		return again
	}
	return unmarked
}

// cameEarly takes in a packet that came too early; false if it is not kept.
func (q *qp) cameEarly(p *wire.Packet, m marking) bool {
	r := &q.resp
	d := wire.PSNDiff(p.PSN, r.psn)
	if !p.Opcode.Info().Known() || d >= int32(send.Span(q.mtu)) || p.Size() > int(q.mtu)+headerRoom {
		return false
	}
	if r.early == nil {
		r.early = new(early)
	}
	e := r.early
	switch {
	case !e.ahead || wire.PSNDiff(p.PSN, e.top) >= 0:
		e.ahead, e.top = true, wire.PSNAdd(p.PSN, 1)
	case m == newest && wire.PSNDiff(e.top, p.PSN) > 1:
		q.suspect()
		e.ahead, e.top = true, wire.PSNAdd(p.PSN, 1)
		return false
	}
	// What is missing may have been asked for, or have come and found no receive request.
	if e.held == nil && (r.nakSent || !q.startHolding()) {
		return false
	}
	return q.hold(p)
}

// startHolding takes a store, if it may and there is one.
func (q *qp) startHolding() bool {
	r := &q.resp
	now := q.e.now()
	if now >= r.early.lossy {
		return false
	}
	h := q.e.takeReorder()
	if h == nil {
		return false
	}
	h.top, h.until, h.told, h.deadline = r.psn, sackEvery, false, now+heldLongest
	r.early.held, r.early.gap = h, true
	return true
}

// cameBehind takes in a packet whose turn it is, after some from further on have come.
func (q *qp) cameBehind(p *wire.Packet, m marking) {
	e := q.resp.early
	switch {
	case wire.PSNDiff(e.top, p.PSN) <= 1:
		e.ahead = false
	case m == newest:
		q.suspect()
	case e.gap:
		if now := q.e.now(); now >= e.distrust {
			e.lossy = now + lossMemory
		}
	}
}

// suspect drops what is kept: some of it, or what contradicts it, is not the peer's. If the peer was told of it, the next
// gap is answered by a sequence NAK, and the peer forgets.
func (q *qp) suspect() {
	q.e.Counters.Suspect.Add(1)
	q.dropHeld()
	e := q.resp.early
	e.ahead, e.lossy, e.distrust = false, 0, q.e.now()+distrust
}

// heldTooLong drops what is kept: the peer is gone, or has never sent it.
func (q *qp) heldTooLong() {
	told := q.resp.held().told
	q.dropHeld()
	q.resp.early.lossy = 0
	if told {
		q.nakSequence()
	}
}
