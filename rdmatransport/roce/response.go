package roce

// On the path: what the responder owes, in PSN order: READ responses and atomic results first, as they were asked for,
// then one acknowledgement or NAK for all the rest. (IBTA Vol 1 §9.7.5.1.3)

import (
	"slices"

	"github.com/softrnic/softrnic/rdmatransport/roce/internal/send"
	"github.com/softrnic/softrnic/rdmatransport/roce/wire"
	"github.com/softrnic/softrnic/verbs"
)

// replies is a responder's READs and atomics.
type replies struct {
	jobs    []job // still to be answered, by PSN; at most three times depth, and maxReplays
	history []job // the last depth of them or more, for duplicates; a ring once there are depth of them
	oldest  int   // place in history of the oldest: 0 until the ring is closed
}

// owes tells that READs or atomics are still to be answered.
func (r *responder) owes() bool { return r.replies != nil && len(r.replies.jobs) > 0 }

// job is a READ, atomic, FLUSH or ATOMIC WRITE to be answered, or one that was.
type job struct {
	kind    jobKind
	replay  bool      // asked for again
	partial bool      // a repeated READ that starts behind the original's first packet
	msn     uint32    // messages completed with it
	psn     uint32    // of its first response still to be sent
	packets uint32    // responses still to be sent
	sent    uint32    // responses sent
	reth    wire.RETH // READ: what is still to be read
	pd      *verbs.PD // XRC: of the SRQ that the request named
	orig    uint64    // atomic: what memory held, if there is no later
	later   *later    // nil if it was carried out as it came
}

type jobKind uint8

const (
	readJob jobKind = iota
	atomicJob
	emptyJob // a READ response of no bytes: FLUSH, ATOMIC WRITE
)

func (j *job) end() uint32 { return wire.PSNAdd(j.psn, j.packets) }

// full tells that the requester has more READs and atomics outstanding than it was granted (max_dest_rd_atomic).
// What it repeats does not count: that may have been on its way when the response was.
func (r *responder) full() bool {
	n := 0
	if r.replies != nil {
		for i := range r.replies.jobs {
			if !r.replies.jobs[i].replay {
				n++
			}
		}
	}
	return n >= int(r.depth)
}

// remember keeps a READ or atomic for duplicates, in place of the oldest: the requester cannot be missing that one's
// response any more.
func (r *responder) remember(j job) {
	if r.replies == nil { // now, not before: most QPs never answer a READ
		r.replies = &replies{history: make([]job, 0, r.depth), jobs: make([]job, 0, 2*int(r.depth))}
	}
	p := r.replies
	if len(p.history) < int(r.depth) {
		p.history = append(p.history, j)
		return
	}
	p.history[p.oldest] = j
	p.oldest = (p.oldest + 1) % len(p.history)
}

// setDepth changes max_dest_rd_atomic. Of a ring that is to grow, the oldest entry moves to the front, since remember
// appends to the end. One that is larger than the new depth stays as it is: the requester may still repeat all of it.
func (r *responder) setDepth(depth uint8) {
	r.depth = depth
	if p := r.replies; p != nil && len(p.history) < int(depth) {
		p.history = slices.Concat(p.history[p.oldest:], p.history[:p.oldest])
		p.oldest = 0
	}
}

// insert queues a job by its PSN, in place of those that it repeats. Repetitions cannot make the queue grow: they
// are dropped when it is full, as if lost.
func (r *responder) insert(j job) {
	p := r.replies
	p.jobs = slices.DeleteFunc(p.jobs, func(o job) bool {
		return wire.PSNDiff(o.psn, j.end()) < 0 && wire.PSNDiff(j.psn, o.end()) < 0
	})
	if j.replay && len(p.jobs) >= 2*int(r.depth)+maxReplays {
		return
	}
	i := 0
	for i < len(p.jobs) && wire.PSNDiff(p.jobs[i].psn, j.psn) < 0 {
		i++
	}
	p.jobs = slices.Insert(p.jobs, i, j)
}

// willAnswer tells that the n responses from psn on are still to be sent.
func (r *responder) willAnswer(psn, n uint32) bool {
	return slices.ContainsFunc(r.replies.jobs, func(j job) bool {
		return j.kind == readJob && wire.PSNDiff(psn, j.psn) >= 0 && wire.PSNDiff(wire.PSNAdd(psn, n), j.end()) <= 0
	})
}

// burst is how many responses of a READ are sent at once: a window, but fewer where the READ is longer than that, because
// its requester has no other way to say how fast they may come than to ask again for those that it missed.
func (q *qp) burst(j *job) uint32 {
	whole := send.Window(q.mtu)
	switch {
	case q.resp.burst != 0:
		return q.resp.burst
	case j.sent+j.packets > whole:
		return min(firstBurst, whole)
	}
	return whole
}

// missed is told that responses of a READ were lost: the next come more slowly.
func (q *qp) missed(j *job) { q.resp.burst = max(q.burst(j)/2, send.MinWindow) }

// through is told that all responses of a READ are sent: the next come faster.
func (q *qp) through(j *job) {
	if whole := send.Window(q.mtu); !j.replay && q.burst(j) < whole {
		q.resp.burst = min(2*q.burst(j), whole)
	}
}

// respond sends what is due, up to a burst of responses; the rest follows when the timer fires.
func (q *qp) respond() {
	r := &q.resp
	if r.resume != 0 {
		return
	}
	for sent := uint32(0); r.owes(); {
		j := &r.replies.jobs[0]
		if j.waits() && !q.carryOutLater(j) {
			return
		}
		for most := q.burst(j); j.packets > 0 && sent < most; sent++ {
			if !q.pass() || !q.respondOne(j) {
				return
			}
		}
		if j.packets > 0 {
			r.resume = q.e.now() + responsePause
			return
		}
		if j.kind == readJob {
			q.through(j)
		}
		r.replies.jobs = slices.Delete(r.replies.jobs, 0, 1)
	}
	switch {
	case r.nak != 0:
		q.sendAck(r.nak, r.psn)
		r.nak = 0
		if r.fatal {
			q.failRecv(r.status)
		}
	case r.sackDue:
		q.sendSack()
	case r.ackDue:
		q.sendAck(wire.AckUnlimited, r.ackPSN)
	}
	r.ackDue, r.sackDue = false, false
}

// respondOne sends the next packet of a job; false if the region is gone, or faults.
func (q *qp) respondOne(j *job) bool {
	p := wire.Packet{BTH: wire.BTH{PSN: j.psn}, AETH: wire.AETH{Syndrome: wire.AckUnlimited, MSN: j.msn}}
	n := uint32(0)
	switch j.kind {
	case atomicJob:
		p.Opcode = wire.RCAtomicAck
		p.AtomicAckETH.Orig = j.orig
		if j.later != nil {
			p.AtomicAckETH.Orig = j.later.orig
		}
		q.sendHeader(&p)
	case emptyJob:
		p.Opcode = wire.RCReadResponseOnly
		q.sendHeader(&p)
	case readJob:
		q.resp.pd = j.pd
		n = min(j.reth.Length, q.mtu)
		p.Opcode = readOpcode(j.sent == 0 && !j.partial, j.packets == 1)
		data, ok := q.region(j.reth.RKey, j.reth.Addr, uint64(n), verbs.AccessRemoteRead)
		if !ok {
			return q.giveUp(wire.NakRemoteAccess, j.psn, verbs.WCRemAccessErr)
		}
		if header, b := q.datagram(&p, int(n)); b != nil {
			if !data.Read(b[p.EncodeHeader(b):]) {
				q.out.Drop()
				return q.giveUp(wire.NakRemoteOperational, j.psn, verbs.WCRemOpErr)
			}
			q.seal(header, b)
		}
	}
	j.sent++
	j.packets--
	j.psn = wire.PSNAdd(j.psn, 1)
	j.reth.Addr += uint64(n)
	j.reth.Length -= n
	return true
}

// giveUp ends the connection over a READ that was accepted and cannot be answered to its end.
func (q *qp) giveUp(nak uint8, psn uint32, status verbs.WCStatus) bool {
	q.resp.replies.jobs = q.resp.replies.jobs[:0]
	q.sendAck(nak, psn)
	q.failRecv(status)
	return false
}

// readOpcode is the opcode of a READ response. The first packet of a repetition from the middle is a Middle: rxe's
// requester insists on it, and others go by the PSN.
func readOpcode(first, last bool) wire.Opcode {
	switch {
	case first && last:
		return wire.RCReadResponseOnly
	case first:
		return wire.RCReadResponseFirst
	case last:
		return wire.RCReadResponseLast
	}
	return wire.RCReadResponseMiddle
}

// sendAck sends an acknowledge packet: ACK, NAK or RNR NAK.
func (q *qp) sendAck(syndrome uint8, psn uint32) {
	p := wire.Packet{BTH: wire.BTH{Opcode: wire.RCAck, PSN: psn}, AETH: wire.AETH{Syndrome: syndrome, MSN: q.resp.msn}}
	q.sendHeader(&p)
}

// failRecv ends the connection on the responder's side: the receive request that a broken message had taken completes
// with status, everything else is flushed. Where no request was taken, an event says what the peer did (IBTA Vol 1
// §11.6.3.2).
func (q *qp) failRecv(status verbs.WCStatus) {
	switch {
	case q.resp.taken:
		wc := verbs.WC{Status: status, Opcode: verbs.WCRecv}
		q.h.CompleteRecv(&wc, true)
	case status == verbs.WCRemAccessErr:
		q.h.Event(verbs.EventQPAccessErr)
	default:
		q.h.Event(verbs.EventQPReqErr)
	}
	q.fail()
}
