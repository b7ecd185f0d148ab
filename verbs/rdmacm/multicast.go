package rdmacm

import (
	"io"
	"net/netip"
	"syscall"

	"github.com/softrnic/softrnic/verbs"
)

// membership is a group that an ID has joined.
type membership struct {
	io.Closer
	qp *verbs.QP // attached, or nil
}

// JoinMulticast makes the ID's port, and its UD QP if CreateQP made one before, receive a group (rdma_join_multicast).
// MulticastJoin follows, whose UD says how to send to the group, or MulticastError. The ID must know its device.
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
		id.groups = make(map[netip.Addr]*membership)
	}
	id.groups[group] = &membership{Closer: m}
	return nil
}

func (id *ID) joined(group netip.Addr, ce *ConnEvent) {
	id.mu.Lock()
	defer id.mu.Unlock()
	m := id.groups[group]
	if id.state == destroyed || id.state == removed || m == nil || ce.Type != MulticastJoin && ce.Type != MulticastError {
		return
	}
	e := &Event{Type: ce.Type, ID: id, Status: ce.Status, UD: ownUD(ce.UD), Group: group}
	if qp := id.ownQP(); ce.Type == MulticastJoin && qp != nil && qp.Type() == verbs.UD {
		if err := qp.AttachMcast(ce.UD.AHAttr.GRH.DGID); err != nil {
			e.Type, e.Status, e.UD = MulticastError, status(err, syscall.EINVAL), UDParam{}
		} else {
			m.qp = qp
		}
	}
	id.ch.add(e)
}

// detach takes the QP out of all groups. The ID is locked.
func (id *ID) detach() {
	for group, m := range id.groups {
		m.detach(group)
	}
}

func (m *membership) detach(group netip.Addr) {
	if m.qp != nil {
		// The only error is that the application detached or destroyed the QP itself.
		_ = m.qp.DetachMcast(verbs.GIDFromAddr(group))
		m.qp = nil
	}
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
	if m != nil {
		m.detach(group)
	}
	id.mu.Unlock()
	if m == nil {
		return verbs.Errorf(syscall.EADDRNOTAVAIL, op, "the ID is not in %v", group)
	}
	return m.Close()
}
