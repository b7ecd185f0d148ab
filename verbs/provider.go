package verbs

// This file is the seam between the front end and what moves the data. An application never needs it; a provider
// needs nothing else.
//
// The front end owns every object, validates every argument, runs the state machines and holds the work queues and
// completion queues. A provider takes posted work requests from a QP through its [QPHandle], moves them, and answers
// with completions through the same handle.
//
// Locks, in the order they are taken: QP (QPHandle.Lock) → SRQ → CQ → CompChannel. A provider calls into the handle with
// the QP locked. It may hold the locks of two QPs, of any devices, when the second was taken with QPHandle.LockPeer; never
// of more.

// Provider makes a device: rdmatransport is one.
type Provider interface {
	// Name is the device's name, such as "softrnic0".
	Name() string
	// QueryDevice and QueryPort describe the device; ports count from 1 to DeviceAttr.PhysPortCnt.
	QueryDevice() DeviceAttr
	QueryPort(port uint8) (PortAttr, error)
	// GIDTable is a snapshot of the port's GIDs, in the order of their indices, which may have gaps.
	GIDTable(port uint8) ([]GIDEntry, error)

	// Watch has f called with each event of a port, EventGIDChange, EventPortActive or EventPortErr, and with
	// EventDeviceFatal, of port 0, when the device will never work again. Open calls it once.
	Watch(f func(t AsyncEventType, port uint8))

	// RegMR draws keys for a region whose other fields are set, and makes it reachable under them.
	RegMR(mr *MR) (lkey, rkey uint32, err error)
	// DeregMR makes the keys unknown. The front end then waits for every QP of the PD to leave its lock, so that no
	// access begun under a QP's lock is still running when deregistration returns.
	DeregMR(mr *MR)

	// AllocMW draws the rkey of a memory window that is not bound yet; DeallocMW makes it unknown. The front end then
	// waits as after DeregMR. A region to which a window is bound is held (MR.Hold).
	AllocMW(mw *MW) (rkey uint32, err error)
	DeallocMW(mw *MW)

	// CreateQP makes the provider's half of a QP, in state RESET, and draws its number.
	CreateQP(h QPHandle, attr *QPInitAttr) (ProviderQP, uint32, error)

	// CreateAH makes the provider's half of an address handle. attr has been checked against port and GIDs.
	CreateAH(attr *AHAttr) (ProviderAH, error)

	// AttachMcast makes a UD QP's port receive a multicast group, and the QP get a copy of what comes. DetachMcast
	// undoes it. The QP is not locked, and is neither modified nor destroyed meanwhile.
	AttachMcast(qp ProviderQP, group GID) error
	DetachMcast(qp ProviderQP, group GID) error

	// CreateFlow gives a raw packet QP the frames of a flow. attr is a copy, and has been checked. The QP is not locked,
	// and is neither modified nor destroyed meanwhile; it outlives the flow.
	CreateFlow(qp ProviderQP, attr *FlowAttr) (ProviderFlow, error)

	// Progress receives what has arrived and sends what waits for company, on the calling goroutine and without
	// waiting; false if there was nothing to do. An application that polls an empty CQ drives the device so. No lock
	// of verbs is held.
	Progress() bool
	// EndProgress says that the caller is about to sleep: the device goes on by itself at once, where after Progress
	// it may rely for a while on being driven.
	EndProgress()

	// Close releases the device; no QP and no MR is left.
	Close() error
}

// ProviderQP is the provider's half of a QP. Every method is called with the QP locked.
type ProviderQP interface {
	// Modify carries out a transition (or a change of attributes, from == to) that the state machine allows; attr
	// and mask have passed the table. An error leaves the QP in its old state. When to is ERR the provider stops its
	// timers; the front end then flushes what is posted, in order.
	Modify(from, to QPState, attr *QPAttr, mask QPAttrMask) error
	// Query fills in what only the provider knows (PSNs).
	Query(attr *QPAttr)
	// PostSend: new work requests are at the end of the send queue. The provider sends what its window allows before
	// it returns. The QP is in RTS; or in SQD, where only what was begun before is sent, and QPHandle.Drained tells when
	// that is over. Modify between these two states is followed by it.
	PostSend()
	// PostRecv: new work requests are at the end of the receive queue.
	PostRecv()
	// Destroy forgets the QP: afterwards the provider never touches its handle again.
	Destroy()
}

// ProviderAH is the provider's half of an address handle.
type ProviderAH interface {
	// Destroy forgets the way. Sends on it that run at the same time do no harm.
	Destroy()
}

// ProviderFlow is the provider's half of a flow.
type ProviderFlow interface {
	// Destroy ends the flow; frames may still be on their way to the QP.
	Destroy()
}

// QPHandle is a provider's hold on one QP. All methods but Lock need the QP locked, except where they say otherwise.
// Send work requests are addressed by their place in the queue of posted, uncompleted ones: 0 is the oldest. A
// pointer into a queue is valid until that request is completed.
type QPHandle struct{ qp *QP }

// Lock locks the QP. It is not reentrant: completing a work request never calls back into the provider or the
// application.
func (h QPHandle) Lock() { h.qp.mu.Lock() }

// LockPeer locks another QP beside this one, which is locked. All pairs are locked in one order, so it may have to
// unlock this one for a while: kept is then false, and whatever was known of it has to be looked at again. The peer
// may be destroyed: a provider knows from its own half.
func (h QPHandle) LockPeer(peer QPHandle) (kept bool) {
	switch {
	case peer.qp.mu.TryLock():
		return true
	case h.qp.order < peer.qp.order:
		peer.qp.mu.Lock()
		return true
	}
	h.qp.unlock()
	peer.qp.mu.Lock()
	h.qp.mu.Lock()
	return false
}

// Unlock unlocks the QP.
func (h QPHandle) Unlock() { h.qp.unlock() }

// SelectSRQ makes the XRC SRQ of a number the one whose requests Recv and CompleteRecv are about, and returns its
// protection domain, the one that counts for the message; nil if the QP's XRC domain has none of that number, or a
// message to another is not complete. Only for XRC_RECV QPs.
func (h QPHandle) SelectSRQ(num uint32) *PD { return h.qp.selectSRQ(num) }

// PD is the QP's protection domain, of XRC_RECV QPs one without regions; needs no lock.
func (h QPHandle) PD() *PD { return h.qp.pd }

// State is the QP's state.
func (h QPHandle) State() QPState { return h.qp.state }

// Attr is the QP's attributes as last modified (during ProviderQP.Modify, those before it); read only.
func (h QPHandle) Attr() *QPAttr { return &h.qp.attr }

// SendLen is the number of posted, uncompleted send work requests.
func (h QPHandle) SendLen() int { return h.qp.sq.len() }

// Send is the i-th oldest uncompleted send work request, 0 ≤ i < SendLen.
func (h QPHandle) Send(i int) *SendWR { return h.qp.sq.at(i) }

// CompleteSend takes the oldest send work request off the queue. A work completion is made if the request is
// signalled or status is not WCSuccess; byteLen is what READ and atomics placed.
func (h QPHandle) CompleteSend(status WCStatus, byteLen uint32) { h.qp.completeSend(status, byteLen) }

// Recv is the receive work request that the next incoming message consumes: the oldest of the QP's receive queue, or
// of its SRQ, from which it is then taken for this QP. Nil if there is none. The same request is returned until
// CompleteRecv.
func (h QPHandle) Recv() *RecvWR { return h.qp.currentRecv() }

// CompleteRecv completes the request that Recv returned. It fills in wc.WRID and wc.QPNum; the provider sets all
// else. solicited tells whether the message asked for an event.
func (h QPHandle) CompleteRecv(wc *WC, solicited bool) { h.qp.completeRecv(wc, solicited) }

// Fail moves the QP to ERR, as a failed work request does: everything posted is flushed in order, the request that
// Recv returned first. The provider completes the request that failed before it calls Fail and stops its timers
// itself; Modify is not called. No event comes of it: of an error that no completion tells, such as a peer's WRITE that
// was refused, the provider makes one (IBTA Vol 1 §11.6.3.2).
func (h QPHandle) Fail() { h.qp.fail() }

// FailSend moves a QP to SQE, as a failed send request does on unreliable services: what is left in the send queue is
// flushed in order, receiving goes on. The provider completes the request that failed before it calls FailSend (IBTA Vol
// 1 §10.3.1.6).
func (h QPHandle) FailSend() { h.qp.failSend() }

// Drained says that, in SQD, no send request is under way any more; more than once does no harm.
func (h QPHandle) Drained() { h.qp.drained() }

// Event reports an asynchronous event of the QP, such as EventCommEst, to the application.
func (h QPHandle) Event(t AsyncEventType) { h.qp.event(t) }
