package roce

import (
	"github.com/softrnic/softrnic/rdmatransport/internal/roce/send"
	"github.com/softrnic/softrnic/verbs"
)

// On the path: what follows from an event of sending: work requests complete, in order, or the QP
// fails.

// act does what the outcome of an event says; false if the QP has failed.
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

// complete takes the n oldest requests, which have succeeded, off the send queue.
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

// failRequest fails a request that the peer will not execute, and with it the connection. The
// requests before it lack their answers, which the peer will not give any more: its QP is in the
// error state. They are flushed, as what comes behind is.
func (q *qp) failRequest(o *send.Outcome, status verbs.WCStatus) {
	q.complete(o.Completed)
	for range o.Request {
		q.h.CompleteSend(verbs.WCWRFlushErr, 0)
	}
	q.failSend(status)
}

// failSend completes the oldest request with an error and moves the QP to ERR. What was executed is
// acknowledged before: the peer would ask in vain afterwards. Callers flush.
func (q *qp) failSend(status verbs.WCStatus) {
	if q.reliable() && receives(q.h.State()) && q.mayDelayAck() {
		q.respond()
	}
	q.h.CompleteSend(status, 0)
	q.fail()
}

// answerLen is the completion's byte count: of what the request brought.
func answerLen(wr *verbs.SendWR) uint32 {
	switch {
	case wr.Opcode == verbs.RDMARead:
		return uint32(wr.Length())
	case isAtomic(wr.Opcode):
		return 8
	}
	return 0
}

// fail moves the QP to the error state. The work request that failed is completed already.
func (q *qp) fail() {
	q.quiet()
	q.traceState(q.h.State(), verbs.StateErr)
	q.h.Fail()
}

// quiet stops all that the QP's timer waits for: nothing is due any more.
func (q *qp) quiet() {
	q.sending.Stop()
	q.receiving.Stop()
	if u := q.unreliable; u != nil {
		u.resume = 0
	}
	if q.pace != nil {
		q.pace.wake = 0
	}
}
