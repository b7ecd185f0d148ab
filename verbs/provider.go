package verbs

import (
	"context"
	"net/netip"
)

// The files whose names start with provider have the API for providers, which applications do not
// need. This file has the interfaces that a provider implements, and provider_qp.go the QPHandle
// that a provider gets. provider_objects.go has methods of regions and posted requests, and
// functions for memory that may fault.
//
// This package owns every object, checks every argument, runs the state machines, and holds the
// work queues and completion queues. A provider takes posted work requests from a QP through its
// [QPHandle], executes them, and reports completions and events through the same handle.
//
// A provider may implement further interfaces, which are found by a type assertion:
//
//   - [Clocked]: its network has a time of its own
//
// Lock order: QP (QPHandle.Lock) → SRQ → CQ → CompChannel. A provider calls the methods of a handle
// with the QP locked. It may lock at most two QPs, of any devices, and must lock the second with
// QPHandle.LockPeer.

// Provider is the implementation of a device, such as that of package rdmatransport. Applications
// only pass it to [Open].
type Provider interface {
	// Name returns the device's name, such as "softrnic0".
	Name() string
	// QueryDevice and QueryPort describe the device and a port; ports count from 1 to
	// DeviceAttr.PhysPortCnt.
	QueryDevice() DeviceAttr
	QueryPort(port uint8) (PortAttr, error)
	// GIDTable returns a snapshot of the port's GIDs in the order of their indices, which may have
	// gaps.
	GIDTable(port uint8) ([]GIDEntry, error)

	// Watch registers f to be called with each event of a port (EventGIDChange, EventPortActive or
	// EventPortErr). When the device has failed for good, f is called with EventDeviceFatal and
	// port 0. Open calls it once.
	Watch(f func(t AsyncEventType, port uint8))

	// RegMR chooses the keys of a region, whose other fields are set, and makes it accessible by
	// them.
	RegMR(mr *MR) (lkey, rkey uint32, err error)
	// DeregMR makes the keys invalid. The caller then takes and releases the lock of every QP of
	// the PD. No access under a QP's lock is therefore still running when the deregistration
	// returns.
	DeregMR(mr *MR)

	// AllocMW chooses the rkey of a memory window that is not bound yet. DeallocMW makes it
	// invalid; the caller then takes and releases QP locks as after DeregMR. While a window is
	// bound, its region counts it (RegisteredMR.AddWindow).
	AllocMW(mw *MW) (rkey uint32, err error)
	DeallocMW(mw *MW)

	// CreateQP creates the provider's half of a QP, in state RESET, and chooses its number.
	CreateQP(h QPHandle, attr *QPInitAttr) (ProviderQP, uint32, error)

	// CreateAH creates the provider's half of an address handle. attr has been checked against port
	// and GIDs.
	CreateAH(attr *AHAttr) (ProviderAH, error)

	// AttachMcast makes a UD QP's port join a multicast group, and the QP receive a copy of each
	// datagram sent to it. DetachMcast undoes it. The QP is not locked, and is neither modified nor
	// closed during the call.
	AttachMcast(qp ProviderQP, group GID) error
	DetachMcast(qp ProviderQP, group GID) error

	// CreateFlow steers the frames of a flow to a raw packet QP. attr is a copy, and has been
	// checked. The QP is not locked, and is neither modified nor closed during the call; it
	// outlives the flow.
	CreateFlow(qp ProviderQP, attr *FlowAttr) (ProviderFlow, error)

	// Progress receives packets that have arrived, and sends packets that were delayed to share a
	// frame, on the calling goroutine and without blocking. It returns false if there was nothing
	// to do. CQ.Poll calls it when the CQ is empty (see Wait), with no lock of this package held.
	Progress() bool
	// EndProgress announces that the caller is about to sleep. After Progress, a device may expect
	// further calls for a while; after EndProgress it immediately makes progress by itself.
	EndProgress()

	// HWCounters and PortCounters return snapshots of the counters of the device and of a port, by
	// name; nil without counters, as does ProviderQP.Counters. The port exists, and Close has not been
	// called.
	HWCounters() (map[string]uint64, error)
	PortCounters(port uint8) (map[string]uint64, error)

	// Shutdown implements Device.Shutdown. Close follows it.
	Shutdown(ctx context.Context) error
	// Close releases the device, which has no QP and no MR left.
	Close() error
}

// ProviderQP is the provider's half of a QP. Every method is called with the QP locked.
type ProviderQP interface {
	// Modify executes a transition, or a change of attributes if from equals to. The state table
	// allows it, and the attributes have been checked. An error leaves the QP in its old state.
	// When to is ERR, the provider stops its timers; the caller then flushes posted work requests,
	// in order.
	Modify(from, to QPState, attr *QPAttr, mask QPAttrMask) error
	// Query fills in the attributes that only the provider knows (PSNs).
	Query(attr *QPAttr)
	// PostSend is the doorbell of the send queue: new work requests are at its end. The provider
	// sends what its window allows before it returns. The QP is in RTS, or in SQD. In SQD only
	// requests whose transmission has started continue, and QPHandle.Drained reports their end.
	// PostSend is also called after a Modify between these two states.
	PostSend()
	// PostRecv is the doorbell of the receive queue: new work requests are at its end.
	PostRecv()
	// Placed is called when QPHandle.Placing or PlacingFull becomes false, and when QPHandle.Fetch or
	// Update has a result. The provider sends what waited for it. If failed is not nil, data has not
	// arrived, and the provider ends the connection as for memory that faults.
	Placed(failed *PlaceError)
	// Counters returns a snapshot of the QP's counters, by name; nil without counters.
	Counters() map[string]uint64
	// Peer returns the address of the connected peer, or the zero Addr without one.
	Peer() netip.Addr
	// Destroy destroys the provider's half. Afterwards the provider never uses its handle again.
	Destroy()
}

// ProviderAH is the provider's half of an address handle.
type ProviderAH interface {
	// Destroy destroys it. Concurrent sends may still use the address handle.
	Destroy()
}

// ProviderFlow is the provider's half of a flow.
type ProviderFlow interface {
	// Destroy ends the flow. The QP may still receive frames that arrived before.
	Destroy()
}
