package roce

// On the path: what a requester does about a peer that has been silent for longer than a round trip takes, long before the
// timeout. It sends one packet again: the last towards one that keeps what comes behind a gap and tells of it, the oldest
// towards one that goes back. Such a peer is silent if what it waits for was lost a second time, or its NAK was, or the
// acknowledgement; its answer tells which. A peer that is only slow has one more packet to answer.

import (
	"time"

	"github.com/softrnic/softrnic/rdmatransport/roce/wire"
	"github.com/softrnic/softrnic/verbs"
)

// sendProbe sends a packet again, which counts as no retry. The next waits twice as long, until a round trip without a
// probe was measured: it may be that the peer has become slower.
func (q *qp) sendProbe() {
	r := &q.req
	r.wait, r.rttStart, r.probe = 2*q.probeWait(), 0, 0
	if r.probes++; r.probes < maxProbes {
		r.probe = q.e.now() + r.wait
	}
	q.e.Counters.Probes.Add(1)
	if r.selective {
		q.probeEnd()
	} else {
		q.probeOldest()
	}
}

// probeOldest sends una again; where that is of a READ, the request for what is missing of it, with the bound it had.
func (q *qp) probeOldest() {
	r := &q.req
	r.wentBack = false
	wr, s := q.h.Send(0), r.at(r.first)
	k, n := uint32(wire.PSNDiff(r.una, s.firstPSN)), uint32(1)
	switch { // memory that cannot be read any more is for the timeout to find
	case wr.Opcode == verbs.RDMARead:
		n = uint32(wire.PSNDiff(r.reads()[0], r.una)) + 1
		q.sendRead(wr, k, r.una, n)
	case hasAnswer(wr.Opcode):
		q.sendSmall(wr, s, r.una)
	default:
		q.sendData(wr, s, k, r.una, true)
	}
	r.behind = wire.PSNAdd(r.una, n)
	r.probed = r.behind != r.max
}

// probeAnswered goes back to what follows the probe where the peer has that and no more: it has dropped the rest. Or it
// is slow, and has answered what was sent before; so there is not much to be sent until more answers come.
func (q *qp) probeAnswered() {
	r := &q.req
	d := wire.PSNDiff(r.una, r.behind)
	if d < 0 {
		return
	}
	r.probed = false
	if d == 0 && !r.selective {
		q.e.Counters.Retries.Add(1)
		r.window = minWindow
		q.rewind()
	}
}

// probeWait is how long to wait for an answer before there is a probe.
func (q *qp) probeWait() time.Duration {
	if w := q.req.wait; w != 0 {
		return w
	}
	return max(ackTimeout(q.h.Attr().Timeout)/probeShare, q.req.leastWait())
}

// leastWait is the least that probeWait may be.
func (r *requester) leastWait() time.Duration {
	if r.selective {
		return minProbe
	}
	return minBackProbe
}

// measure takes the round trip of a packet that is acknowledged and was sent once (RFC 6298 §2, §3). While round trips
// are short there is none after the first: nothing depends on how short, and reading the clock costs as much as sending
// a small packet.
func (q *qp) measure() {
	r := &q.req
	took := q.e.now() - r.rttStart
	r.rttStart = 0
	if r.rtt == 0 {
		r.rtt, r.rttVar = took, took/2
	} else {
		r.rttVar += ((took - r.rtt).Abs() - r.rttVar) / 4
		r.rtt += (took - r.rtt) / 8
	}
	r.wait = max(r.rtt+max(4*r.rttVar, r.rtt/2), r.leastWait())
}
