package send

// retryInfinite is the rnr_retry count that means: as often as it takes.
const retryInfinite = 7

// retries counts what retry_cnt and rnr_retry bound.
type retries struct {
	timeouts uint8 // timeouts and sequence NAKs since the last progress or RNR NAK
	rnr      uint8 // RNR NAKs since the last progress
}

func (r *retries) reset() { *r = retries{} }

// again counts one more timeout or sequence NAK; false if the limit does not allow it.
func (r *retries) again(limit uint8) bool {
	if r.timeouts >= limit {
		return false
	}
	r.timeouts++
	return true
}

// rnrAgain counts one more RNR NAK; false if the limit does not allow it. The peer is alive:
// retry_cnt is for one that is not, and begins anew.
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
