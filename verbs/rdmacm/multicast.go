package rdmacm

import (
	"io"
	"net/netip"
	"syscall"

	"github.com/softrnic/softrnic/verbs"
)

// JoinMulticast makes the ID's port receive a group (rdma_join_multicast). MulticastJoin follows, whose UD says how to
// send to the group, or MulticastError. The ID must know its device.
func (id *ID) JoinMulticast(group netip.Addr) error {
	const op = "join multicast"
	group = plain(group)
	if !group.IsMulticast() {
		return verbs.Errorf(verbs.ErrInvalid, op, "%v is no multicast address", group)
	}
	if err := id.lock(op, bound, addrResolved, routeResolved, connecting, requested, accepted); err != nil {
		return err
	}
	defer id.mu.Unlock()
	if id.dev == nil {
		return verbs.Errorf(verbs.ErrInvalid, op, "the ID is bound to no device yet")
	}
	if id.groups[group] != nil {
		return verbs.Errorf(syscall.EADDRINUSE, op, "the ID is in %v already", group)
	}
	m, err := provider(id.dev).JoinMulticast(id.route, group, func(e *ConnEvent) { id.joined(group, e) })
	if err != nil {
		return &verbs.Error{Op: op, Detail: err.Error(), Err: err}
	}
	if id.groups == nil {
		id.groups = make(map[netip.Addr]io.Closer)
	}
	id.groups[group] = m
	return nil
}

func (id *ID) joined(group netip.Addr, ce *ConnEvent) {
	id.mu.Lock()
	defer id.mu.Unlock()
	if id.state == destroyed || id.groups[group] == nil || ce.Type != MulticastJoin && ce.Type != MulticastError {
		return
	}
	id.ch.add(&Event{Type: ce.Type, ID: id, Status: ce.Status, UD: ownUD(ce.UD), Group: group})
}

// LeaveMulticast leaves a group (rdma_leave_multicast). EADDRNOTAVAIL if the ID is not in it.
func (id *ID) LeaveMulticast(group netip.Addr) error {
	const op = "leave multicast"
	group = plain(group)
	if err := id.lock(op); err != nil {
		return err
	}
	m := id.groups[group]
	delete(id.groups, group)
	id.mu.Unlock()
	if m == nil {
		return verbs.Errorf(syscall.EADDRNOTAVAIL, op, "the ID is not in %v", group)
	}
	return m.Close()
}
