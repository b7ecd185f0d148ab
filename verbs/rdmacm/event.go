package rdmacm

import (
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"
	"syscall"

	"github.com/softrnic/softrnic/verbs"
)

// EventType is the kind of an event (rdma_cm_event_type, same values).
type EventType uint8

const (
	AddrResolved EventType = iota
	AddrError
	RouteResolved
	RouteError
	ConnectRequest
	ConnectResponse
	ConnectError
	Unreachable
	Rejected
	Established
	Disconnected
	// DeviceRemoval: the ID's device has failed or is closed. A connection has ended, and its
	// posted work requests are flushed. The ID can only be closed. A listener on several devices
	// gets the event with the last of them.
	DeviceRemoval
	MulticastJoin
	MulticastError
	// AddrChange is a hint: the ID's local address was removed from the device, which no longer
	// receives packets to it. A connection will fail unless the address is soon added again.
	AddrChange
	TimewaitExit
	// AddrInfoResolved is the end of rdma_resolve_addrinfo of librdmacm: names are resolved.
	AddrInfoResolved
	// AddrInfoError is the failure of a query of InfiniBand's service records. It has Linux's number,
	// and no device here reports it.
	AddrInfoError
	// User is an event of the application's own: see ID.WriteEvent.
	User
)

var eventNames = [...]string{"RDMA_CM_EVENT_ADDR_RESOLVED", "RDMA_CM_EVENT_ADDR_ERROR", "RDMA_CM_EVENT_ROUTE_RESOLVED",
	"RDMA_CM_EVENT_ROUTE_ERROR", "RDMA_CM_EVENT_CONNECT_REQUEST", "RDMA_CM_EVENT_CONNECT_RESPONSE",
	"RDMA_CM_EVENT_CONNECT_ERROR", "RDMA_CM_EVENT_UNREACHABLE", "RDMA_CM_EVENT_REJECTED", "RDMA_CM_EVENT_ESTABLISHED",
	"RDMA_CM_EVENT_DISCONNECTED", "RDMA_CM_EVENT_DEVICE_REMOVAL", "RDMA_CM_EVENT_MULTICAST_JOIN",
	"RDMA_CM_EVENT_MULTICAST_ERROR", "RDMA_CM_EVENT_ADDR_CHANGE", "RDMA_CM_EVENT_TIMEWAIT_EXIT",
	"RDMA_CM_EVENT_ADDRINFO_RESOLVED", "RDMA_CM_EVENT_ADDRINFO_ERROR", "RDMA_CM_EVENT_USER"}

// String returns the name in rdma_cma.h, which rdma_event_str returns too, except for User.
func (t EventType) String() string {
	if int(t) < len(eventNames) {
		return eventNames[t]
	}
	return fmt.Sprintf("UNKNOWN EVENT %d", uint8(t))
}

// Event is an event of an ID (rdma_cm_event).
type Event struct {
	Type EventType
	// ID is the ID of the event. In a ConnectRequest it is new, and ListenID is the listener.
	ID, ListenID *ID
	// Status is 0, a negative errno, or for Rejected the reason, which on RoCE is one of IBTA
	// §12.6.7.2, such as RejectConsumerDefined.
	Status int
	// Param has the peer's parameters, in a ConnectRequest, ConnectResponse, Established, Rejected
	// or Disconnected. The depths in a ConnectRequest are from this side's view and within the
	// device's limits, so that they can be passed to Accept unchanged.
	Param ConnParam
	// UD says how to send to the peer's UD QP, in Established, or to the group, in MulticastJoin.
	UD UDParam
	// Group is set in MulticastJoin and MulticastError.
	Group netip.Addr
	// Arg is the argument of ID.WriteEvent, in User and AddrInfoResolved.
	Arg uint64

	acked atomic.Bool
}

// Ack acknowledges an event that GetEvent or TryGetEvent returned (rdma_ack_cm_event). Every event
// must be acknowledged: Close of the ID waits for it. For a ConnectRequest, Close of the
// listener waits. The event's fields stay valid.
func (e *Event) Ack() error {
	if e.acked.Swap(true) {
		return verbs.Errorf(verbs.ErrInvalid, "acknowledge event", "%v is already acknowledged", e.Type)
	}
	e.owner().signals.ack()
	return nil
}

// WriteEvent adds an event to the ID's channel, with a status and an argument that only the reader
// interprets (rdma_write_cm_event). t is User, or AddrInfoResolved for a library that has resolved
// names for its application.
func (id *ID) WriteEvent(t EventType, status int, arg uint64) error {
	const op = "write event"
	if t != User && t != AddrInfoResolved {
		return verbs.Errorf(verbs.ErrInvalid, op, "%v is neither %v nor %v", t, User, AddrInfoResolved)
	}
	if err := id.lockOwn(op); err != nil {
		return err
	}
	defer id.mu.Unlock()
	id.ch.add(&Event{Type: t, ID: id, Status: status, Arg: arg})
	return nil
}

// owner returns the ID whose Close waits for the event. For a ConnectRequest that is the
// listener.
func (e *Event) owner() *ID {
	if e.ListenID != nil {
		return e.ListenID
	}
	return e.ID
}

// Err returns an *EventError if the event is a failure or the end of a connection, else nil.
func (e *Event) Err() error {
	switch e.Type {
	case AddrError, RouteError, ConnectError, Unreachable, Rejected, Disconnected, DeviceRemoval, MulticastError:
		return &EventError{Type: e.Type, Status: e.Status, PrivateData: e.Param.PrivateData}
	}
	if e.Status != 0 {
		return &EventError{Type: e.Type, Status: e.Status}
	}
	return nil
}

// The most common reasons for Rejected on RoCE (IBTA §12.6.7.2).
const (
	RejectNoResources     = 3
	RejectTimeout         = 4
	RejectInvalidService  = 8 // no listener
	RejectStaleConnection = 10
	RejectConsumerDefined = 28 // by the application, with its private data
)

var rejectReasons = map[int]string{RejectNoResources: "no resources", RejectTimeout: "timeout",
	RejectInvalidService: "invalid service ID: no listener", RejectStaleConnection: "stale connection",
	RejectConsumerDefined: "by the application"}

// EventError is the error of an event that reports a failure. It wraps an errno: ECONNREFUSED for
// Rejected, otherwise the errno of Status. If Status has none, it wraps ECONNRESET for
// Disconnected, and ENODEV for DeviceRemoval.
type EventError struct {
	Type        EventType
	Status      int
	PrivateData []byte // of a rejection
}

func (e *EventError) Error() string {
	switch reason := rejectReasons[e.Status]; {
	case e.Type == Rejected && reason != "":
		return fmt.Sprintf("%v: status %d, %s", e.Type, e.Status, reason)
	case e.Status < 0:
		return fmt.Sprintf("%v: status %d, %v", e.Type, e.Status, syscall.Errno(-e.Status))
	}
	return fmt.Sprintf("%v: status %d", e.Type, e.Status)
}

func (e *EventError) Unwrap() error {
	switch {
	case e.Type == Rejected:
		return syscall.ECONNREFUSED
	case e.Status < 0:
		return syscall.Errno(-e.Status)
	case e.Type == Disconnected:
		return syscall.ECONNRESET
	case e.Type == DeviceRemoval:
		return syscall.ENODEV
	}
	return nil
}

// status returns an error as the Status of an event. fallback is the errno for an error that has
// none.
func status(err error, fallback syscall.Errno) int {
	var errno syscall.Errno
	switch {
	case err == nil:
		return 0
	case errors.As(err, &errno):
		return -int(errno)
	case isTimeout(err):
		return -int(syscall.ETIMEDOUT)
	}
	return -int(fallback)
}

func isTimeout(err error) bool {
	var t interface{ Timeout() bool }
	return errors.As(err, &t) && t.Timeout()
}
