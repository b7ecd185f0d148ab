package rocetransport

// Send and receive path of unreliable connections. A message completes when its last packet is
// sent. Received packets are executed as for RC, but a message with a missing or invalid packet is
// dropped. There are no acknowledgements. (IBTA Vol 1 §9.8.2)

import (
	"math"

	"github.com/softrnic/softrnic/rdmatransport/internal/rocetransport/send"
	"github.com/softrnic/softrnic/rdmatransport/wire"
	"github.com/softrnic/softrnic/verbs"
)

// sendMessages sends posted requests, a window at a time. Nothing is acknowledged, so a pause after
// each window lets other goroutines run. An adapter with a queue for the QP needs none.
func (q *qp) sendMessages() {
	u := q.unreliable
	if u.resume != 0 || q.blocked() {
		return
	}
	budget := send.Window(send.DefaultWindow, q.mtu)
	if q.hasQueue() {
		budget = math.MaxUint32
	}
	for q.h.SendLen() > 0 {
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
			if q.full() {
				return
			}
			if budget == 0 {
				u.resume = q.e.now() + windowPause
				return
			}
			if !q.rateAllows() {
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

// receiveMessage executes one packet. A packet out of order ends the open message, and the next
// First or Only packet opens another.
func (q *qp) receiveMessage(p *wire.Packet, info wire.Info) {
	r := &q.resp
	if q.receiving.OnUnreliable(p.PSN) {
		q.e.Counters.OutOfSeqRequest.Add(1)
		r.message = noMessage
	}
	r.noteRequest(q.h)
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

// dropMessage drops the open message. Its receive request is used for the next message.
func (q *qp) dropMessage() bool {
	q.resp.message = noMessage
	q.receiving.OnUnreliableDropped()
	return false
}
