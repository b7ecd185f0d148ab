package rdmacm

import (
	"syscall"

	"github.com/softrnic/softrnic/verbs"
)

// This file asks the Injector of a device what is to fail: see [verbs.Inject].

// CreateExemptChannel is CreateEventChannel for a library between a program and this package, which
// makes other calls than its program. No Injector is asked about the channel and its IDs: the
// library asks about its program's calls, with verbs.InjectedFault.
func CreateExemptChannel(devs ...*verbs.Device) (*EventChannel, error) {
	c, err := createChannel(devs)
	if err == nil {
		c.exempt = true
	}
	return c, err
}

// faultNames are the names of librdmacm's functions by the operation that errors name. Those that
// cannot fail are not among them.
var faultNames = map[string]string{"create ID": "rdma_create_id", "close ID": "rdma_destroy_id", "migrate ID": "rdma_migrate_id",
	"bind": "rdma_bind_addr", "resolve address": "rdma_resolve_addr", "resolve route": "rdma_resolve_route", "listen": "rdma_listen",
	"connect": "rdma_connect", "accept": "rdma_accept", "reject": "rdma_reject", "establish": "rdma_establish",
	"disconnect": "rdma_disconnect", "notify": "rdma_notify", "join multicast": "rdma_join_multicast",
	"leave multicast": "rdma_leave_multicast", "create QP": "rdma_create_qp", "create XRC QP": "rdma_create_qp",
	"create SRQ": "rdma_create_srq", "get QP attributes": "rdma_init_qp_attr", "set TOS": "rdma_set_option",
	"set reuse address": "rdma_set_option", "set AF only": "rdma_set_option", "set ACK timeout": "rdma_set_option"}

// fault returns the error with which an operation on devices fails, or nil.
func (c *EventChannel) fault(op string, devs ...*verbs.Device) error {
	if name := faultNames[op]; name != "" && !c.exempt {
		return verbs.InjectedFault(name, devs...)
	}
	return nil
}

// fault is that of the channel for an operation of the ID, which is locked.
func (id *ID) fault(op string) error {
	switch {
	case id.exempt:
		return nil
	case id.dev != nil:
		return id.ch.fault(op, id.dev)
	}
	return id.ch.fault(op, id.ch.devs...)
}

func (id *ID) faultUnlocked(op string) error {
	id.mu.Lock()
	defer id.mu.Unlock()
	return id.fault(op)
}

// exemptFromFaults is for operations whose errors the application does not get.
func (id *ID) exemptFromFaults() {
	id.mu.Lock()
	defer id.mu.Unlock()
	id.exempt = true
}

// outcome returns the event with which a call fails later, or nil.
func (id *ID) outcome(name string) *ConnEvent {
	id.mu.Lock()
	defer id.mu.Unlock()
	return id.outcomeLocked(name)
}

// outcomeLocked is outcome with the ID locked.
func (id *ID) outcomeLocked(name string) *ConnEvent {
	devs := id.ch.devs
	if id.dev != nil {
		devs = []*verbs.Device{id.dev}
	}
	var o *ConnEvent
	for _, d := range devs { // all are asked, so that they count the same calls
		if i := verbs.InjectorOf(d); i != nil {
			if t, status, ok := i.Outcome(name); ok && o == nil {
				o = &ConnEvent{Type: EventType(t), Status: status, Conn: failedConn{}}
			}
		}
	}
	return o
}

// addInTime adds an event to the channel, later if the Injector delays it. The ID is locked.
func (id *ID) addInTime(e *Event) {
	if i := verbs.InjectorOf(id.dev); i != nil {
		if d := i.EventLate(uint8(e.Type)); d > 0 {
			id.dev.Clock().AfterFunc(d, func() {
				id.mu.Lock()
				defer id.mu.Unlock()
				if id.state != closed {
					id.ch.add(e)
				}
			})
			return
		}
	}
	id.ch.add(e)
}

// InjectAddrChange raises AddrChange for each ID that is bound to the device, as Linux does when
// the active interface of a bond changes. It returns the number of IDs.
func InjectAddrChange(d *verbs.Device) (n int) {
	for _, id := range devices.idsOf(d) {
		id.mu.Lock()
		if id.dev == d && id.state != closed && id.state != deviceRemoved && !id.addrChangeQueued.Swap(true) {
			id.ch.add(&Event{Type: AddrChange, ID: id})
			n++
		}
		id.mu.Unlock()
	}
	return n
}

// failedConn is the connection of a Connect that the Injector lets fail. Nothing was sent.
type failedConn struct{}

func errNotConnected(op string) error {
	return verbs.Errorf(syscall.ENOTCONN, op, "the connection has failed (an injected fault)")
}

func (failedConn) QPAttr(verbs.QPState) (verbs.QPAttr, verbs.QPAttrMask, error) {
	return verbs.QPAttr{}, 0, errNotConnected("get QP attributes")
}
func (failedConn) Accept(*ConnParam, uint32) error { return errNotConnected("accept") }
func (failedConn) Establish() error                { return errNotConnected("establish") }
func (failedConn) Reject([]byte) error             { return errNotConnected("reject") }
func (failedConn) Disconnect() error               { return errNotConnected("disconnect") }
func (failedConn) Notify() error                   { return errNotConnected("notify") }
func (failedConn) Close()                          {}
