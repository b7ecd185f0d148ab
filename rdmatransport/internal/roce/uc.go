package roce

// On the path: unreliable connections, both ways. A message is complete when its last packet has
// been sent. Packets that come in are executed as for RC, but a message of which a packet is
// missing or wrong is dropped: nothing is ever answered. (IBTA Vol 1 §9.8.2)

import (
	"time"

	"github.com/softrnic/softrnic/rdmatransport/internal/roce/send"
	"github.com/softrnic/softrnic/rdmatransport/roce/wire"
	"github.com/softrnic/softrnic/verbs"
)

// unreliable is the state of sending without acknowledgements, of UC and UD.
type unreliable struct {
	psn    uint32        // of the next packet
	packet uint32        // UC: to be sent next, of the oldest request
	resume time.Duration // UC: when the pause behind a window ends; 0 if there is none

	_ [48]byte // keeps those of different QPs in different cache lines
}

// sendMessages sends what is posted. As nobody acknowledges anything, it sends a window at a time,
// with a pause behind it for others to run.
func (q *qp) sendMessages() {
	u := q.unreliable
	if u.resume != 0 || q.crowded() {
		return
	}
	for budget := send.Window(send.DefaultWindow, q.mtu); q.h.SendLen() > 0; {
		if q.draining() && u.packet == 0 {
			return
		}
		wr := q.h.Send(0)
		if isLocal(wr) {
			status := q.executeLocal(wr)
			q.h.CompleteSend(status, 0)
			if status != verbs.WCSuccess {
				q.traceState(q.h.State(), verbs.StateSQE)
				q.h.FailSend()
				return
			}
			continue
		}
		for packets := q.packets(uint32(wr.Length())); u.packet < packets; u.packet++ {
			if budget == 0 {
				u.resume = q.e.now() + windowPause
				return
			}
			if !q.pass() {
				return
			}
			budget--
			if status := q.sendData(wr, u.packet, u.psn, false); status != verbs.WCSuccess {
				u.packet = 0
				q.h.CompleteSend(status, 0)
				q.traceState(q.h.State(), verbs.StateSQE)
				q.h.FailSend()
				return
			}
			u.psn = wire.PSNAdd(u.psn, 1)
		}
		u.packet = 0
		q.complete(1)
	}
}

// receiveMessage executes one packet. A packet that is not the next in order ends the message that
// is open. The next First or Only packet opens another.
func (q *qp) receiveMessage(p *wire.Packet, info wire.Info) {
	r := &q.resp
	if q.receiving.OnUnreliable(p.PSN) {
		q.e.Counters.OutOfSeqRequest.Add(1)
		r.message = noMessage
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

// dropMessage drops the open message. A receive request that it has taken is used by the next
// message.
func (q *qp) dropMessage() bool {
	q.resp.message = noMessage
	q.receiving.OnUnreliableDropped()
	return false
}
