package send

// retryInfinite is the rnr_retry count without a limit.
const retryInfinite = 7

// retries counts the retries that retry_cnt and rnr_retry limit.
type retries struct {
	timeouts uint8 // timeouts and sequence NAKs since the last progress or RNR NAK
	rnr      uint8 // RNR NAKs since the last progress; not counted if the limit is infinite
}

func (r *retries) reset() { *r = retries{} }

// again counts a timeout or sequence NAK. It returns false if the limit is reached.
func (r *retries) again(limit uint8) bool {
	if r.timeouts >= limit {
		return false
	}
	r.timeouts++
	return true
}

// rnrAgain counts an RNR NAK. It returns false if the limit is reached. The NAK proves the peer
// alive, so the count for retry_cnt restarts.
func (r *retries) rnrAgain(limit uint8) bool {
	r.timeouts = 0
	if limit == retryInfinite {
		return true
	}
	if r.rnr >= limit {
		return false
	}
	r.rnr++
	return true
}
