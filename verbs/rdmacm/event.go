package rdmacm

import (
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"
	"syscall"

	"github.com/softrnic/softrnic/verbs"
)

// EventType is what happened to an ID (rdma_cm_event_type, same values).
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
	// DeviceRemoval: the ID's device is gone or closed. A connection is over, what was posted is flushed, and all that the ID
	// is good for is Destroy. A listener on several devices gets it with the last of them.
	DeviceRemoval
	MulticastJoin
	MulticastError
	// AddrChange is a hint: the ID's local address was taken from the device. Packets to that address are not received any
	// more, so that a connection fails before long unless the address comes back.
	AddrChange
	TimewaitExit
)

var eventNames = [...]string{"RDMA_CM_EVENT_ADDR_RESOLVED", "RDMA_CM_EVENT_ADDR_ERROR", "RDMA_CM_EVENT_ROUTE_RESOLVED",
	"RDMA_CM_EVENT_ROUTE_ERROR", "RDMA_CM_EVENT_CONNECT_REQUEST", "RDMA_CM_EVENT_CONNECT_RESPONSE",
	"RDMA_CM_EVENT_CONNECT_ERROR", "RDMA_CM_EVENT_UNREACHABLE", "RDMA_CM_EVENT_REJECTED", "RDMA_CM_EVENT_ESTABLISHED",
	"RDMA_CM_EVENT_DISCONNECTED", "RDMA_CM_EVENT_DEVICE_REMOVAL", "RDMA_CM_EVENT_MULTICAST_JOIN",
	"RDMA_CM_EVENT_MULTICAST_ERROR", "RDMA_CM_EVENT_ADDR_CHANGE", "RDMA_CM_EVENT_TIMEWAIT_EXIT"}

// String is what rdma_event_str prints.
func (t EventType) String() string {
	if int(t) < len(eventNames) {
		return eventNames[t]
	}
	return fmt.Sprintf("UNKNOWN EVENT %d", uint8(t))
}

// Event is what happened to an ID (rdma_cm_event).
type Event struct {
	Type EventType
	// ID is the ID that it happened to: in a ConnectRequest a new one, made by the listener ListenID.
	ID, ListenID *ID
	// Status is 0, a negative errno, or for Rejected the reason: on RoCE that of IBTA §12.6.7.2, such as
	// RejectConsumerDefined.
	Status int
	// Param is what the peer sent in a ConnectRequest, ConnectResponse, Established, Rejected or Disconnected. In a
	// ConnectRequest its depths are seen from this side, and not more than the device has: they can be given to Accept as
	// they are.
	Param ConnParam
	// UD says how to send: to the peer that Established names, or to the group of a MulticastJoin.
	UD UDParam
	// Group is set in MulticastJoin and MulticastError.
	Group netip.Addr

	acked atomic.Bool
}

// Ack gives an event back that GetEvent returned (rdma_ack_cm_event). Each must be: Destroy of its ID, for a
// ConnectRequest of its listener, waits for it. What the event holds stays valid.
func (e *Event) Ack() error {
	if e.acked.Swap(true) {
		return verbs.Errorf(verbs.ErrInvalid, "acknowledge event", "%v is acknowledged already", e.Type)
	}
	e.owner().taken.done()
	return nil
}

// owner is the ID that the event counts for: a child that nobody has seen goes with its listener.
func (e *Event) owner() *ID {
	if e.ListenID != nil {
		return e.ListenID
	}
	return e.ID
}

// Err is nil for an event that tells of success, else an *EventError.
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

// Reasons for Rejected on RoCE (IBTA §12.6.7.2) that applications meet. The others are the provider's to say.
const (
	RejectNoResources     = 3
	RejectTimeout         = 4
	RejectInvalidService  = 8 // nobody listens
	RejectStaleConnection = 10
	RejectConsumerDefined = 28 // by the application, with its private data
)

var rejectReasons = map[int]string{RejectNoResources: "no resources", RejectTimeout: "timeout",
	RejectInvalidService: "invalid service ID: nobody listens there", RejectStaleConnection: "stale connection",
	RejectConsumerDefined: "by the application"}

// EventError is an event that tells of a failure, as an error. It wraps an errno: ECONNREFUSED if Rejected,
// ECONNRESET if Disconnected, ENODEV if DeviceRemoval, else that of Status.
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

// status is an error as the Status of an event.
func status(err error, otherwise syscall.Errno) int {
	var errno syscall.Errno
	switch {
	case err == nil:
		return 0
	case errors.As(err, &errno):
		return -int(errno)
	case isTimeout(err):
		return -int(syscall.ETIMEDOUT)
	}
	return -int(otherwise)
}

func isTimeout(err error) bool {
	var t interface{ Timeout() bool }
	return errors.As(err, &t) && t.Timeout()
}
