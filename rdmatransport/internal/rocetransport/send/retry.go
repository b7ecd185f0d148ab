package send

// retryInfinite is the rnr_retry count without a limit.
const retryInfinite = 7

// retries counts the retries that retry_cnt and rnr_retry limit.
type retries struct {
	timeoutsAndNAKs uint8 // timeouts and sequence NAKs since the last progress or RNR NAK
	rnrNAKs         uint8 // RNR NAKs since the last progress; not counted if the limit is infinite
}

func (r *retries) reset() { *r = retries{} }

// onTimeoutOrNAK counts a timeout or a sequence NAK. It returns false if the limit is reached.
func (r *retries) onTimeoutOrNAK(limit uint8) bool {
	if r.timeoutsAndNAKs >= limit {
		return false
	}
	r.timeoutsAndNAKs++
	return true
}

// left returns how many timeouts and sequence NAKs may still follow.
func (r *retries) left(limit uint8) int { return int(limit) - int(r.timeoutsAndNAKs) }

// onRNRNAK counts an RNR NAK. It returns false if the limit is reached. The NAK proves the peer
// alive, so the count for retry_cnt restarts.
func (r *retries) onRNRNAK(limit uint8) bool {
	r.timeoutsAndNAKs = 0
	if limit == retryInfinite {
		return true
	}
	if r.rnrNAKs >= limit {
		return false
	}
	r.rnrNAKs++
	return true
}
