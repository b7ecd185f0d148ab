package rdmacm

import (
	"io"
	"net/netip"
	"syscall"

	"github.com/softrnic/softrnic/verbs"
)

// membership is an ID's membership of a multicast group.
type membership struct {
	io.Closer
	sendOnly bool
	qp       *verbs.QP // the QP that is attached to the group, or nil
}

// JoinMulticast joins a multicast group (rdma_join_multicast). It attaches the ID's UD QP to the
// group, if CreateQP has created one. MulticastJoin follows, with the parameters for sending to the
// group in UD, or MulticastError. The ID must be bound to a device.
func (id *ID) JoinMulticast(group netip.Addr) error { return id.joinMulticast(group, false) }

// JoinMulticastSendOnly is JoinMulticast for an ID that only sends to the group
// (RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER). The ID's QP is not attached, and routers and switches
// hear of no member.
func (id *ID) JoinMulticastSendOnly(group netip.Addr) error { return id.joinMulticast(group, true) }

func (id *ID) joinMulticast(group netip.Addr, sendOnly bool) error {
	const op = "join multicast"
	group = canonical(group)
	if !group.IsMulticast() {
		return verbs.Errorf(verbs.ErrInvalid, op, "%v is not a multicast address", group)
	}
	if err := id.lock(op, bound, addrResolved, routeResolved, connecting, requested, accepted); err != nil {
		return err
	}
	defer id.mu.Unlock()
	if id.dev == nil {
		return verbs.Errorf(verbs.ErrInvalid, op, "the ID is not bound to a device yet")
	}
	if id.groups()[group] != nil {
		return verbs.Errorf(syscall.EADDRINUSE, op, "the ID has already joined %v", group)
	}
	m, err := provider(id.dev).JoinMulticast(id.route, group, sendOnly, func(e *ConnEvent) { id.handleMulticast(group, e) })
	if err != nil {
		return &verbs.Error{Op: op, Err: err}
	}
	r := id.makeExtra()
	if r.groups == nil {
		r.groups = make(map[netip.Addr]*membership)
	}
	r.groups[group] = &membership{Closer: m, sendOnly: sendOnly}
	return nil
}

// handleMulticast handles the outcome of JoinMulticast.
func (id *ID) handleMulticast(group netip.Addr, ce *ConnEvent) {
	id.mu.Lock()
	defer id.mu.Unlock()
	m := id.groups()[group]
	ended := id.state == closed || id.state == deviceRemoved
	if ended || m == nil || ce.Type != MulticastJoin && ce.Type != MulticastError {
		return
	}
	e := &Event{Type: ce.Type, ID: id, Status: ce.Status, UD: cloneUD(ce.UD), Group: group}
	if qp := id.ownQP(); ce.Type == MulticastJoin && !m.sendOnly && qp != nil && qp.Type() == verbs.UD {
		if err := qp.AttachMcast(ce.UD.AHAttr.GRH.DGID); err != nil {
			e.Type, e.Status, e.UD = MulticastError, status(err, syscall.EINVAL), UDParam{}
		} else {
			m.qp = qp
		}
	}
	id.ch.add(e)
}

// detachGroups detaches the QP from all groups. The ID is locked.
func (id *ID) detachGroups() {
	for group, m := range id.groups() {
		m.detach(group)
	}
}

func (m *membership) detach(group netip.Addr) {
	if m.qp != nil {
		// This fails only if the application has detached or closed the QP itself.
		_ = m.qp.DetachMcast(verbs.GIDFromAddr(group))
		m.qp = nil
	}
}

// LeaveMulticast leaves a group (rdma_leave_multicast). It fails with EADDRNOTAVAIL if the ID has
// not joined the group.
func (id *ID) LeaveMulticast(group netip.Addr) error {
	const op = "leave multicast"
	group = canonical(group)
	if err := id.lock(op); err != nil {
		return err
	}
	m := id.groups()[group]
	delete(id.groups(), group)
	if m != nil {
		m.detach(group)
	}
	id.mu.Unlock()
	if m == nil {
		return verbs.Errorf(syscall.EADDRNOTAVAIL, op, "the ID has not joined %v", group)
	}
	return m.Close()
}
