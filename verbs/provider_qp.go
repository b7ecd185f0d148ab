package verbs

import "runtime"

// QPHandle gives a provider access to one QP: its lock, attributes and queues. All methods except
// Lock need the QP locked, unless documented otherwise. Send work requests are numbered by their
// position in the send queue, from 0 for the oldest that is not completed. A pointer into a queue
// is valid until that request is completed.
type QPHandle struct{ qp *QP }

// Lock locks the QP. The lock is not reentrant: completing a work request never calls back into the
// provider or the application.
func (h QPHandle) Lock() { h.qp.lock() }

// LockPeer locks another QP in addition to this one, which is locked. All pairs are locked in one
// order, so LockPeer may have to unlock this QP for a moment. It then returns false, and the state
// of this QP may have changed. The peer may have been closed: the provider's half of the QP
// records that.
func (h QPHandle) LockPeer(peer QPHandle) (kept bool) {
	switch {
	case peer.qp.mu.TryLock():
		return true
	case h.qp.lockOrder < peer.qp.lockOrder:
		peer.qp.lockSlow()
		return true
	}
	h.qp.unlock()
	peer.qp.lock()
	h.qp.lock()
	return false
}

// UnlockPeer unlocks a QP that LockPeer has locked.
func (h QPHandle) UnlockPeer(peer QPHandle) {
	qp := peer.qp
	if qp.cqOverrun {
		qp.failOverrun()
	}
	// A function of OnEvent may lock this QP: it is called when this one is unlocked too.
	if qp.reportFlags&reportsPending != 0 {
		for _, ch := range qp.extra.unreported {
			h.qp.deferReport(ch)
		}
		clear(qp.extra.unreported)
		qp.extra.unreported = qp.extra.unreported[:0]
		qp.reportFlags &^= reportsPending
	}
	qp.mu.Unlock()
}

// DeferEvents makes the functions of CompChannel.OnEvent run on goroutines of their own until
// UnlockDeferred. It is for callers that hold locks of their own.
func (h QPHandle) DeferEvents() { h.qp.reportFlags |= reportsDeferred }

// UnlockDeferred unlocks the QP after DeferEvents.
func (h QPHandle) UnlockDeferred() { h.qp.unlockDeferred() }

// Unlock unlocks the QP.
func (h QPHandle) Unlock() { h.qp.unlock() }

// Contended reports whether another goroutine waits for the QP's lock. The QP need not be locked.
func (h QPHandle) Contended() bool { return h.qp.waiting.Load() > 0 }

// Yield unlocks the QP, lets goroutines run that wait for its lock, and locks it again. The state
// of the QP may have changed meanwhile, and the QP may have been closed.
func (h QPHandle) Yield() {
	h.qp.unlock()
	runtime.Gosched() // without this, the current goroutine would take the lock again before any other
	h.qp.lock()
}

// SelectSRQ makes Recv and CompleteRecv of an XRC_RECV QP use the XRC SRQ with the given number. It
// returns this SRQ's protection domain, which the keys in the message must belong to. It returns
// nil if the QP's XRC domain has no such SRQ, or if a message to another SRQ is not complete.
func (h QPHandle) SelectSRQ(num uint32) *PD { return h.qp.selectSRQ(num) }

// PD returns the QP's protection domain; that of an XRC_RECV QP has no regions. The QP need not be
// locked.
func (h QPHandle) PD() *PD { return h.qp.pd }

// RecvPD returns the protection domain of the request that Recv returns: that of the SRQ, or
// without one that of the QP.
func (h QPHandle) RecvPD() *PD {
	if s := h.qp.srq; s != nil {
		return s.pd
	}
	return h.qp.pd
}

// PDHasQPs reports whether the QP's PD has QPs of a transport. The QP need not be locked.
func (h QPHandle) PDHasQPs(t Transport) bool { return h.qp.pd.qpsOf[t].Load() > 0 }

// State returns the QP's state.
func (h QPHandle) State() QPState { return h.qp.state }

// Attr returns the QP's attributes as last modified, and during ProviderQP.Modify those before it.
// They are read-only.
func (h QPHandle) Attr() *QPAttr { return &h.qp.attr }

// SendLen returns the number of send work requests that are posted and not completed.
func (h QPHandle) SendLen() int { return h.qp.sq.len() }

// Send returns the i-th oldest send work request that is not completed, 0 ≤ i < SendLen.
func (h QPHandle) Send(i int) *PostedSend { return (*PostedSend)(h.qp.sq.at(i)) }

// CompleteSend removes the oldest send work request from the queue. It adds a work completion to
// the send CQ if the request is signaled or status is not WCSuccess. byteLen is the number of bytes
// that a READ or an atomic placed.
func (h QPHandle) CompleteSend(status WCStatus, byteLen uint32) { h.qp.completeSend(status, byteLen) }

// Recv returns the receive work request that the next incoming message consumes, or nil without
// one. It is the oldest of the QP's receive queue. With an SRQ, Recv moves the oldest request of
// the SRQ to this QP. Recv returns the same request until CompleteRecv.
func (h QPHandle) Recv() *PostedRecv { return (*PostedRecv)(h.qp.currentRecv()) }

// CompleteRecv completes the request that Recv returned. It fills in wc.WRID and wc.QPNum; the
// provider sets all other fields. solicited reports whether the message had the solicited event
// bit.
func (h QPHandle) CompleteRecv(wc *WC, solicited bool) { h.qp.completeRecv(wc, solicited) }

// CountRemote counts operations of the peer that have succeeded, and their bytes, for a completion
// counter: CompCntrRemoteRead when the data is sent, CompCntrRemoteWrite when it is placed. n may
// be 0, if more bytes of the operation follow.
func (h QPHandle) CountRemote(op CompCntrOps, n, bytes uint64) {
	if h.qp.observed&counted == 0 {
		return
	}
	if op == CompCntrRemoteWrite && h.Placing() {
		h.qp.holdCount(op, n, bytes)
		return
	}
	h.qp.countOps(op, WCSuccess, n, bytes)
}

// CountMoved counts n bytes of a READ or WRITE of the peer that moved without packets, and the
// operation with the last ones.
func (h QPHandle) CountMoved(wr *PostedSend, n uint64, last bool) {
	if h.qp.observed&counted != 0 {
		h.qp.countMoved(wr, n, last)
	}
}

// CountRemoteError counts an operation of the peer that has failed.
func (h QPHandle) CountRemoteError(op CompCntrOps) {
	if h.qp.observed&counted != 0 {
		h.qp.countOps(op, WCRemOpErr, 0, 0)
	}
}

// Fail moves the QP to ERR because a work request failed, and flushes all posted work requests in
// order, starting with the request that Recv returned. The provider first completes the failed
// request, and stops its timers itself: ProviderQP.Modify is not called. Fail raises no event. If
// no completion reports the error, for example when a peer's WRITE is rejected, the provider calls
// Event (IBTA Vol 1 §11.6.3.2).
func (h QPHandle) Fail() { h.qp.fail() }

// FailSend moves a QP of an unreliable service to SQE because a send request failed. The rest of
// the send queue is flushed in order, and receiving continues. The provider first completes the
// failed request (IBTA Vol 1 §10.3.1.6).
func (h QPHandle) FailSend() { h.qp.failSend() }

// Drained reports that a QP in SQD has no more send requests in flight. Repeated calls have no
// effect.
func (h QPHandle) Drained() { h.qp.drained() }

// Event reports an asynchronous event of the QP, such as EventCommEst, to the application.
func (h QPHandle) Event(t AsyncEventType) { h.qp.event(t) }

// AH returns the provider's half of an address handle.
func (h QPHandle) AH(ah *AH) ProviderAH { return ah.prov }
