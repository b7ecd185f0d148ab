package send

import "time"

// retryInfinite is the rnr_retry count without a limit.
const retryInfinite = 7

// retries counts the retries that retry_cnt and rnr_retry limit.
type retries struct {
	timeoutsAndNAKs uint8 // timeouts and sequence NAKs since the last progress or RNR NAK
	inTurn          uint8 // timeouts since the last progress or NAK
	rnrNAKs         uint8 // RNR NAKs since the last progress; not counted if the limit is infinite
}

func (r *retries) reset() { *r = retries{} }

// onTimeoutOrNAK counts a timeout or a sequence NAK. It returns false if the limit is reached.
func (r *retries) onTimeoutOrNAK(e modeEvent, limit uint8) bool {
	if r.timeoutsAndNAKs >= limit {
		return false
	}
	r.timeoutsAndNAKs++
	if e == onTimeout {
		r.inTurn++
	} else {
		r.inTurn = 0
	}
	return true
}

// backOff returns the timeout T, doubled for each timeout in turn, up to 4T or lateAnswer. IBTA Vol
// 1 §9.7.6.1.3 allows any time between T and 4T.
func (r *retries) backOff(T time.Duration) time.Duration {
	return max(T, min(T<<min(r.inTurn, 2), lateAnswer))
}

// onRNRNAK counts an RNR NAK. It returns false if the limit is reached. The NAK proves the peer
// alive, so the count for retry_cnt restarts.
func (r *retries) onRNRNAK(limit uint8) bool {
	r.timeoutsAndNAKs, r.inTurn = 0, 0
	if limit == retryInfinite {
		return true
	}
	if r.rnrNAKs >= limit {
		return false
	}
	r.rnrNAKs++
	return true
}
