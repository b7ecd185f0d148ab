package verbs

// sink takes the completion of a request that is complete when PostSendAndPoll has posted it. It
// then does not go through the CQ. The QP is locked.
type sink struct {
	busy bool // a call of PostSendAndPoll uses it, even while the QP is unlocked for a moment
	open bool
	full bool
	wc   WC
}

// PostSendAndPoll is PostSend for one request, and then Poll of the QP's SendCQ, without progress.
// It takes less time than both if the request is complete by then, as those between QPs of one
// process often are, and then returns its completion alone, even if the CQ has others. An error is
// that of PostSend, and n is then 0. An error of the CQ is left to the next Poll.
func (qp *QP) PostSendAndPoll(wr *SendWR, wcs []WC) (n int, err error) {
	if n, err = qp.postAndSink(wr, wcs); err == nil && n == 0 {
		n, _ = qp.init.SendCQ.take(wcs, nil)
	}
	return n, err
}

// postAndSink posts a request, and returns what the sink has taken.
func (qp *QP) postAndSink(wr *SendWR, wcs []WC) (n int, err error) {
	if !qp.mu.TryLock() { // like qp.lock, which is not inlined
		qp.lockSlow()
	}
	defer qp.unlock()
	if qp.closed || !qp.acceptsSends() {
		return 0, qp.rejectPost("post send to", "RTS", 1)
	}
	if err := qp.queuePosted(wr); err != nil {
		return 0, &PostError{0, err}
	}
	s := qp.openSink(len(wcs))
	qp.ringDoorbell(1)
	if s == nil {
		return 0, nil
	}
	if s.full {
		wcs[0], n = s.wc, 1
	}
	s.busy, s.open, s.full = false, false, false
	return n, nil
}

// openSink returns the QP's sink, which takes the next completion of a send request, or nil. No
// completion of the QP is in the CQ, so that their order is kept.
func (qp *QP) openSink(room int) *sink {
	if qp.extra == nil {
		qp.extra = new(qpExtra)
	}
	cq, s := qp.init.SendCQ, &qp.extra.sink
	if room == 0 || s.busy || qp.observed != 0 || cq.stamps != nil || cq.pollReady.Load() != 0 {
		return nil
	}
	s.busy, s.open = true, true
	return s
}

// sinks reports whether the sink takes a completion. If the CQ is armed, it causes an event, and
// goes through the CQ.
func (qp *QP) sinks() bool {
	return qp.extra != nil && qp.extra.sink.open && qp.init.SendCQ.armed.Load() == disarmed
}

// closeSink makes completions go through the CQ.
func (qp *QP) closeSink() {
	if qp.extra != nil {
		qp.extra.sink.open = false
	}
}

// take takes a completion.
func (s *sink) take(wc *WC) {
	s.open, s.full, s.wc = false, true, *wc
}
