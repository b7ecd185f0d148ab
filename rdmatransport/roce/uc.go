package roce

// On the path: unreliable connections, both ways. A message completes when its last packet has been sent. What comes in
// is executed as for RC, but whatever is missing or wrong makes its message vanish: nothing is ever answered. (IBTA Vol 1
// §9.8.2)

import (
	"github.com/softrnic/softrnic/rdmatransport/roce/wire"
	"github.com/softrnic/softrnic/verbs"
)

// sendMessages sends what is posted: a window at a time, with a pause behind each for others to run, as nobody
// acknowledges anything.
func (q *qp) sendMessages() {
	r := &q.req
	if r.rnrWait != 0 {
		return
	}
	for budget := r.maxWindow; q.h.SendLen() > 0; {
		if q.draining() && r.curPkt == 0 {
			return
		}
		wr := q.h.Send(0)
		if isLocal(wr.Opcode) {
			status := q.carryOut(wr)
			q.h.CompleteSend(status, 0)
			if status != verbs.WCSuccess {
				q.h.FailSend()
				return
			}
			continue
		}
		s := sentWR{packets: q.packets(uint32(wr.Length()))}
		for ; r.curPkt < s.packets; r.curPkt++ {
			if budget == 0 {
				r.rnrWait = q.e.now() + responsePause
				return
			}
			if !q.mayPass() {
				return
			}
			budget--
			if status := q.sendData(wr, &s, r.curPkt, r.next, false); status != verbs.WCSuccess {
				r.curPkt = 0
				q.h.CompleteSend(status, 0)
				q.h.FailSend()
				return
			}
			r.next = wire.PSNAdd(r.next, 1)
		}
		r.curPkt = 0
		if wr.Opcode == verbs.Send || wr.Opcode == verbs.SendWithImm {
			q.stats.sends++
		}
		q.h.CompleteSend(verbs.WCSuccess, 0)
	}
}

// receiveMessage executes one packet. One that is not the next in order ends the message before it, wherever that was;
// the next First or Only packet starts another.
func (q *qp) receiveMessage(p *wire.Packet, info wire.Info) {
	r := &q.resp
	if p.PSN != r.psn {
		q.e.Counters.OutOfSeqRequest.Add(1)
		r.psn, r.message = p.PSN, noMessage
	}
	r.hear(q.h)
	if info.First() {
		r.message = noMessage
	}
	switch {
	case !r.inSequence(p, info) || !q.permitted(info):
		q.dropMessage()
	case info.Send():
		q.execSend(p, info)
	default:
		q.execWrite(p, info)
	}
}

// dropMessage forgets the message in progress: its receive request waits for the next one.
func (q *qp) dropMessage() bool {
	r := &q.resp
	r.message = noMessage
	r.psn = wire.PSNAdd(r.psn, 1)
	return false
}
