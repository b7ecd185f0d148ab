package roce

// On the path: what happens when nothing comes back, or less than was sent. (IBTA Vol 1 §9.7.6.1.3, §9.9.2)

import (
	"time"

	"github.com/softrnic/softrnic/rdmatransport/roce/wire"
	"github.com/softrnic/softrnic/verbs"
)

// forever is the rnr_retry count that means: as often as it takes.
const forever = 7

// ackTimeout is the local ACK timeout of 4.096 µs × 2^n; 0 means none.
func ackTimeout(n uint8) time.Duration {
	if n == 0 {
		return 0
	}
	return max(4096*time.Nanosecond<<n, minTimeout)
}

// startTimeout runs the retransmission timer while anything is in flight and no RNR wait is on.
func (q *qp) startTimeout() {
	r := &q.req
	if r.idle() {
		r.timeout, r.probe = 0, 0
		return
	}
	t := ackTimeout(q.h.Attr().Timeout)
	switch {
	case t == 0:
		r.timeout, r.probe = 0, 0
	case r.timeout == 0 && r.rnrWait == 0 && sends(q.h.State()):
		now := q.e.now()
		r.timeout = now + t
		if r.probes < maxProbes && (r.wait != 0 || r.selective) {
			r.probe = now + q.probeWait()
		}
	}
}

// checkTimeouts acts on what is due.
func (q *qp) checkTimeouts(now time.Duration) {
	r := &q.req
	switch {
	case r.rnrWait != 0 && now >= r.rnrWait:
		r.rnrWait = 0
	case r.timeout != 0 && now >= r.timeout:
		// A timer that fires late tells that this process did not run: the answer may wait to be received.
		if t := ackTimeout(q.h.Attr().Timeout); now-r.timeout > t/2 && !r.excused {
			r.excused = true
			r.timeout = now + t
			return
		}
		r.wentBack = false
		q.retry()
	case r.probe != 0 && now >= r.probe:
		q.sendProbe()
	}
}

// goBack answers a sequence NAK of una, explicit or implied, of a peer that keeps nothing behind a gap. One loss makes
// many such NAKs; only the first counts until there is progress or a probe, which takes care of a second loss.
func (q *qp) goBack() {
	if !q.req.wentBack {
		q.req.wentBack = true
		q.retry()
	}
}

// retry sends everything from una on again if retry_cnt allows one more time, else fails the oldest request.
func (q *qp) retry() {
	r := &q.req
	if r.retries >= q.h.Attr().RetryCnt {
		q.e.Counters.RetryExceeded.Add(1)
		q.failSend(verbs.WCRetryExcErr)
		return
	}
	r.retries++
	q.e.Counters.Retries.Add(1)
	r.window = max(r.window/2, minWindow)
	q.rewind()
}

// receiverNotReady waits as long as the peer asked for before packet psn and what comes behind it are sent again. Answers
// to what comes before it may be missing; they are asked for meanwhile.
func (q *qp) receiverNotReady(psn uint32, code uint8) {
	r := &q.req
	q.e.Counters.RcvdRNR.Add(1)
	r.retries = 0 // the peer is alive: retry_cnt is for one that is not
	if limit := q.h.Attr().RNRRetry; limit != forever {
		if r.rnrRetries >= limit {
			q.e.Counters.RNRRetryExceeded.Add(1)
			q.refused(psn, verbs.WCRNRRetryExcErr)
			return
		}
		r.rnrRetries++
	}
	if r.rec != nil && psn != r.una {
		r.rec.forget(r.rec.at(psn)) // the peer keeps what comes behind it
		r.timeout, r.probe = 0, 0
	} else {
		q.rewind()
	}
	r.wentBack = false // it came, so a sequence NAK of it tells of the loss of the repetition
	r.rnrWait, r.rnrPSN = q.e.now()+wire.RNRTimer(code), psn
}

// rewind makes una, which is in the oldest request, the next to be sent. What is sent again has a timeout of its own.
func (q *qp) rewind() {
	r := &q.req
	q.endRecovery()
	r.rttStart = 0
	r.lastAsk = r.una
	r.cur = r.first
	r.curPkt = uint32(wire.PSNDiff(r.una, r.at(r.first).firstPSN))
	if r.asked != nil {
		r.asked.n = 0
	}
	r.timeout, r.probe = 0, 0
	r.probed = false
}
