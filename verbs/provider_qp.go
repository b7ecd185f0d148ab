package verbs

import "runtime"

// QPHandle gives a provider access to one QP: its lock, attributes and queues. All methods but Lock need the QP locked,
// except where they say otherwise. Send work requests are numbered by their place in the send queue, from 0, which is
// the oldest that is not completed. A pointer into a queue is valid until that request is completed.
type QPHandle struct{ qp *QP }

// Lock locks the QP. The lock is not reentrant: completing a work request never calls back into the provider or the
// application.
func (h QPHandle) Lock() { h.qp.lock() }

// LockPeer locks another QP in addition to this one, which is locked. All pairs are locked in one order, so LockPeer may
// have to unlock this QP for a moment. It then returns false, and what the caller knew of this QP may have changed. The
// peer may have been destroyed, which a provider knows from its own half.
func (h QPHandle) LockPeer(peer QPHandle) (kept bool) {
	switch {
	case peer.qp.mu.TryLock():
		return true
	case h.qp.lockOrder < peer.qp.lockOrder:
		peer.qp.lockSlowly()
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
	if qp.telling&tells != 0 { // a function that is told may want this QP: it waits until that is unlocked, too
		for _, ch := range qp.rare.untold {
			h.qp.tellOf(ch)
		}
		clear(qp.rare.untold)
		qp.rare.untold = qp.rare.untold[:0]
		qp.telling &^= tells
	}
	qp.mu.Unlock()
}

// TellLater has the functions of CompChannel.OnEvent called on goroutines of their own until UnlockLater, as the caller holds locks of
// its own.
func (h QPHandle) TellLater() { h.qp.telling |= tellsLater }

// UnlockLater unlocks the QP after TellLater.
func (h QPHandle) UnlockLater() { h.qp.unlockTellingLater() }

// Unlock unlocks the QP.
func (h QPHandle) Unlock() { h.qp.unlock() }

// Wanted reports whether another goroutine waits for the QP's lock. It needs no lock.
func (h QPHandle) Wanted() bool { return h.qp.waiting.Load() > 0 }

// Yield unlocks the QP, lets goroutines run that wait for its lock, and locks it again. What the caller knew of the QP may
// have changed; the QP may have been destroyed.
func (h QPHandle) Yield() {
	h.qp.unlock()
	runtime.Gosched() // without this, the present goroutine would take the lock again before any other
	h.qp.lock()
}

// SelectSRQ makes Recv and CompleteRecv of an XRC_RECV QP use the XRC SRQ with the given number, and returns that SRQ's
// protection domain, which is the one that the message is checked against. It returns nil if the QP's XRC domain has no
// such SRQ, or if a message to another SRQ is not complete.
func (h QPHandle) SelectSRQ(num uint32) *PD { return h.qp.selectSRQ(num) }

// PD returns the QP's protection domain; that of an XRC_RECV QP has no regions. It needs no lock.
func (h QPHandle) PD() *PD { return h.qp.pd }

// RecvPD returns the protection domain whose regions the request that Recv returns names: that of the SRQ, if it comes from one.
func (h QPHandle) RecvPD() *PD {
	if s := h.qp.srq; s != nil {
		return s.pd
	}
	return h.qp.pd
}

// PDHasRoCE tells whether the PD has QPs of RoCE.
func (h QPHandle) PDHasRoCE() bool { return h.qp.pd.roceQPs.Load() > 0 }

// State returns the QP's state.
func (h QPHandle) State() QPState { return h.qp.state }

// Attr returns the QP's attributes as last modified; during ProviderQP.Modify, as they were before it. They are read only.
func (h QPHandle) Attr() *QPAttr { return &h.qp.attr }

// SendLen returns the number of send work requests that are posted and not completed.
func (h QPHandle) SendLen() int { return h.qp.sq.len() }

// Send returns the i-th oldest send work request that is not completed, 0 ≤ i < SendLen.
func (h QPHandle) Send(i int) *PostedSend { return (*PostedSend)(h.qp.sq.at(i)) }

// CompleteSend removes the oldest send work request from the queue. It adds a work completion to the send CQ if the
// request is signaled or status is not WCSuccess. byteLen is the number of bytes that a READ or an atomic placed.
func (h QPHandle) CompleteSend(status WCStatus, byteLen uint32) { h.qp.completeSend(status, byteLen) }

// Recv returns the receive work request that the next incoming message consumes, nil if there is none. It is the oldest
// of the QP's receive queue; of an SRQ, Recv moves the oldest request to this QP. It returns the same request until
// CompleteRecv.
func (h QPHandle) Recv() *PostedRecv { return (*PostedRecv)(h.qp.currentRecv()) }

// CompleteRecv completes the request that Recv returned. It fills in wc.WRID and wc.QPNum; the provider sets all
// other fields. solicited says whether the message had the solicited event bit.
func (h QPHandle) CompleteRecv(wc *WC, solicited bool) { h.qp.completeRecv(wc, solicited) }

// Fail moves the QP to ERR because a work request failed, and flushes everything posted in order, beginning with the
// request that Recv returned. The provider first completes the request that failed, and stops its timers itself:
// ProviderQP.Modify is not called. Fail raises no event. Where no completion reports the error, as when a peer's WRITE is
// refused, the provider calls Event (IBTA Vol 1 §11.6.3.2).
func (h QPHandle) Fail() { h.qp.fail() }

// FailSend moves a QP of an unreliable service to SQE because a send request failed: the rest of the send queue is
// flushed in order, and receiving goes on. The provider first completes the request that failed (IBTA Vol 1 §10.3.1.6).
func (h QPHandle) FailSend() { h.qp.failSend() }

// Drained reports that a QP in SQD has no more send requests under way. Repeated calls have no effect.
func (h QPHandle) Drained() { h.qp.drained() }

// Event reports an asynchronous event of the QP, such as EventCommEst, to the application.
func (h QPHandle) Event(t AsyncEventType) { h.qp.event(t) }

// AH returns the provider's half of an address handle.
func (h QPHandle) AH(ah *AH) ProviderAH { return ah.prov }

// Count counts one more frame, of n bytes, of a flow that steers to the QP. It needs no lock.
func (h QPHandle) Count(c *Counters, n int) {
	c.packets.Add(1)
	c.bytes.Add(uint64(n))
}
