package rocetransport

import (
	"github.com/softrnic/softrnic/rdmatransport/internal/rocetransport/send"
	"github.com/softrnic/softrnic/verbs"
)

// Consequences of send events: work requests complete in order, or the QP fails.

// act applies the outcome of an event. It returns false if the QP has failed.
func (q *qp) act(o send.Outcome) bool {
	if o.Completed > 0 {
		q.complete(o.Completed)
	}
	return o.Action == send.Proceed || q.react(o.Action)
}

func (q *qp) react(a send.Action) bool {
	c := &q.e.Counters
	switch a {
	case send.WentBack:
		c.Retries.Add(1)
		q.count().retries++
	case send.Probed:
		c.Probes.Add(1)
	case send.RetriesExceeded:
		c.RetryExceeded.Add(1)
		q.failSend(verbs.WCRetryExcErr)
		return false
	}
	return true
}

// complete completes the n oldest requests with success.
func (q *qp) complete(n int) {
	for range n {
		wr := q.h.Send(0)
		switch wr.Opcode {
		case verbs.Send, verbs.SendWithImm, verbs.SendWithInv:
			q.count().sends++
		}
		q.h.CompleteSend(verbs.WCSuccess, answerLen(wr))
	}
}

// failRequest fails a request that the peer refuses, and the connection with it. Earlier requests
// wait for responses, which a peer in the error state will not send. They are flushed, like all
// later ones.
func (q *qp) failRequest(o *send.Outcome, status verbs.WCStatus) {
	q.complete(o.Completed)
	for range o.Request {
		q.h.CompleteSend(verbs.WCWRFlushErr, 0)
	}
	q.failSend(status)
}

// failSend completes the oldest request with an error and moves the QP to ERR. Before that, it
// acknowledges executed requests of the peer, which the peer would otherwise retransmit until its
// retries are exhausted. The caller flushes.
func (q *qp) failSend(status verbs.WCStatus) {
	if q.reliable() && receives(q.h.State()) && q.mayDelayAck() {
		q.respond()
	}
	q.h.CompleteSend(status, 0)
	q.fail()
}

// answerLen returns the byte count of a completion.
func answerLen(wr *verbs.PostedSend) uint32 {
	switch {
	case wr.Opcode == verbs.RDMARead:
		return uint32(wr.Length())
	case isAtomic(wr.Opcode):
		return 8
	}
	return 0
}

// fail moves the QP to the error state. The failed work request is already complete.
func (q *qp) fail() {
	q.stop()
	q.traceState(q.h.State(), verbs.StateErr)
	q.h.Fail()
}

// stop clears all deadlines of the QP's timer.
func (q *qp) stop() {
	q.sending.Stop()
	q.receiving.Stop()
	if u := q.unreliable; u != nil {
		u.resume = 0
	}
	if q.pace != nil {
		q.pace.wake = 0
	}
}
