package verbs

import (
	"context"
	"net/netip"
)

// The files whose names begin with provider hold what a provider needs of this package and an application does not. This one has the
// interfaces that a provider implements, provider_qp.go the QPHandle that it is given, and provider_objects.go what it needs of
// regions, of posted requests, and of memory that may fault.
//
// Division of labour: this package owns every object, checks every argument, runs the state machines, and holds the work
// queues and completion queues. A provider takes posted work requests from a QP through its [QPHandle], carries them out,
// and reports completions and events through the same handle.
//
// Locks, in the order in which they are taken: QP (QPHandle.Lock) → SRQ → CQ → CompChannel. A provider calls the methods
// of a handle with the QP locked. It may hold the locks of two QPs, of any devices, if it took the second with
// QPHandle.LockPeer; never of more.

// Provider is a device as this package sees it; rdmatransport has one. Applications pass it to [Open] and otherwise do
// not need it.
type Provider interface {
	// Name returns the device's name, such as "softrnic0".
	Name() string
	// QueryDevice and QueryPort describe the device and a port; ports count from 1 to DeviceAttr.PhysPortCnt.
	QueryDevice() DeviceAttr
	QueryPort(port uint8) (PortAttr, error)
	// GIDTable returns a snapshot of the port's GIDs in the order of their indices, which may have gaps.
	GIDTable(port uint8) ([]GIDEntry, error)

	// Watch registers f to be called with each event of a port (EventGIDChange, EventPortActive or EventPortErr), and with
	// EventDeviceFatal and port 0 when the device has failed for good. Open calls it once.
	Watch(f func(t AsyncEventType, port uint8))

	// RegMR chooses the keys of a region, whose other fields are set, and makes it reachable by them.
	RegMR(mr *MR) (lkey, rkey uint32, err error)
	// DeregMR makes the keys invalid. The caller then takes and releases the lock of every QP of the PD, so that no
	// access that began under a QP's lock is still running when the deregistration returns.
	DeregMR(mr *MR)

	// AllocMW chooses the rkey of a memory window that is not bound yet. DeallocMW makes it invalid; the caller then
	// takes and releases QP locks as after DeregMR. While a window is bound, its region counts it (RegisteredMR.AddWindow).
	AllocMW(mw *MW) (rkey uint32, err error)
	DeallocMW(mw *MW)

	// CreateQP creates the provider's half of a QP, in state RESET, and chooses its number.
	CreateQP(h QPHandle, attr *QPInitAttr) (ProviderQP, uint32, error)

	// CreateAH creates the provider's half of an address handle. attr has been checked against port and GIDs.
	CreateAH(attr *AHAttr) (ProviderAH, error)

	// AttachMcast makes a UD QP's port join a multicast group, and the QP receive a copy of each datagram sent to it.
	// DetachMcast undoes it. The QP is not locked, and is neither modified nor destroyed during the call.
	AttachMcast(qp ProviderQP, group GID) error
	DetachMcast(qp ProviderQP, group GID) error

	// CreateFlow steers the frames of a flow to a raw packet QP. attr is a copy, and has been checked. The QP is not
	// locked, and is neither modified nor destroyed during the call; it outlives the flow.
	CreateFlow(qp ProviderQP, attr *FlowAttr) (ProviderFlow, error)

	// Progress receives what has arrived and sends what was held back to share a frame, on the calling goroutine and
	// without blocking. It returns false if there was nothing to do. CQ.Poll calls it when the CQ is empty (see Wait),
	// with no lock of this package held.
	Progress() bool
	// EndProgress announces that the caller is about to sleep. After Progress a device may expect further calls of it for
	// a while; after EndProgress it makes progress by itself at once.
	EndProgress()

	// HWCounters and PortCounters are snapshots of the counters of the device and of a port, by name; nil without any.
	HWCounters() map[string]uint64
	PortCounters(port uint8) (map[string]uint64, error)

	// Shutdown ends the device in order, as Device.Shutdown says. Close follows it.
	Shutdown(ctx context.Context) error
	// Close releases the device, which has no QP and no MR left.
	Close() error
}

// ProviderQP is the provider's half of a QP. Every method is called with the QP locked.
type ProviderQP interface {
	// Modify carries out a transition, or a change of attributes if from equals to. The state table allows it and the
	// attributes have been checked. An error leaves the QP in its old state. When to is ERR the provider stops its
	// timers; the caller then flushes what is posted, in order.
	Modify(from, to QPState, attr *QPAttr, mask QPAttrMask) error
	// Query fills in the attributes that only the provider knows (PSNs).
	Query(attr *QPAttr)
	// PostSend is the doorbell of the send queue: new work requests are at its end. The provider sends what its window
	// allows before it returns. The QP is in RTS, or in SQD. In SQD only requests whose transmission had begun go on, and
	// QPHandle.Drained reports their end. PostSend also follows a Modify between these two states.
	PostSend()
	// PostRecv is the doorbell of the receive queue: new work requests are at its end.
	PostRecv()
	// Counters is a snapshot of the QP's counters, by name; nil without any.
	Counters() map[string]uint64
	// Peer is the address that the QP is connected with; the zero Addr if it is not.
	Peer() netip.Addr
	// Destroy destroys the provider's half. Afterwards the provider never uses its handle again.
	Destroy()
}

// ProviderAH is the provider's half of an address handle.
type ProviderAH interface {
	// Destroy destroys it. Sends that use the address handle may run at the same time.
	Destroy()
}

// ProviderFlow is the provider's half of a flow.
type ProviderFlow interface {
	// Destroy ends the flow. The QP may still receive frames that have arrived before.
	Destroy()
}
