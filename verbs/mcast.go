package verbs

// AttachMcast attaches a UD QP to a multicast group (ibv_attach_mcast). The QP's port joins the
// group, and each attached QP receives a copy of each datagram to the group that has its Q_Key. The
// QP must be in INIT or a later state. Attaching again has no effect.
func (qp *QP) AttachMcast(group GID) error {
	if err := qp.faultCall("attach_mcast"); err != nil {
		return err
	}
	const what = "attach multicast group to"
	qp.modifying.Lock()
	defer qp.modifying.Unlock()
	qp.lock()
	err, state, port := qp.alive(what), qp.state, qp.attr.PortNum
	qp.mu.Unlock()
	switch {
	case err != nil:
		return err
	case qp.init.Type != UD:
		return Errorf(ErrInvalid, qp.op(what), "it has type %v: only UD QPs receive multicast", qp.init.Type)
	case !group.Addr().IsMulticast():
		return Errorf(ErrInvalid, qp.op(what), "%v is not a multicast address", group.Addr())
	case state == StateReset:
		return Errorf(ErrInvalid, qp.op(what), "it is in RESET and has no port: move it to INIT first")
	case qp.groups[group] != 0:
		return nil
	}
	g := mcastGroup{port, group}
	if err := qp.pd.dev.attachMcast(qp.op(what), g); err != nil {
		return err
	}
	if err := qp.pd.dev.prov.AttachMcast(qp.prov, group); err != nil {
		qp.pd.dev.detachMcast(g)
		return wrap(qp.op(what), err)
	}
	if qp.groups == nil {
		qp.groups = make(map[GID]uint8)
	}
	qp.groups[group] = port
	return nil
}

// DetachMcast undoes AttachMcast (ibv_detach_mcast). It fails with ErrInvalid if the QP is not
// attached. A datagram that is being received may still complete.
func (qp *QP) DetachMcast(group GID) error {
	if err := qp.faultCall("detach_mcast"); err != nil {
		return err
	}
	const what = "detach multicast group from"
	qp.modifying.Lock()
	defer qp.modifying.Unlock()
	qp.lock()
	err := qp.alive(what)
	qp.mu.Unlock()
	if err != nil {
		return err
	}
	port := qp.groups[group]
	if port == 0 {
		return Errorf(ErrInvalid, qp.op(what), "it is not attached to %v", group.Addr())
	}
	if err := qp.pd.dev.prov.DetachMcast(qp.prov, group); err != nil {
		return wrap(qp.op(what), err)
	}
	qp.pd.dev.detachMcast(mcastGroup{port, group})
	delete(qp.groups, group)
	return nil
}

// attachMcast counts one more QP that is attached to a group, if the device's limits allow it.
func (d *Device) attachMcast(op string, g mcastGroup) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := d.mcast[g]
	switch {
	case n == 0 && len(d.mcast) >= d.attr.MaxMcastGrp:
		return Errorf(ErrNoMemory, op, "the device has reached its MaxMcastGrp of %d", d.attr.MaxMcastGrp)
	case n >= d.attr.MaxMcastQPAttach:
		return Errorf(ErrNoMemory, op, "the group has reached its MaxMcastQPAttach of %d", d.attr.MaxMcastQPAttach)
	}
	if err := d.reserve(op, &d.mcastQPs, d.attr.MaxTotalMcastQPAttach, "MaxTotalMcastQPAttach"); err != nil {
		return err
	}
	if d.mcast == nil {
		d.mcast = make(map[mcastGroup]int)
	}
	d.mcast[g] = n + 1
	return nil
}

func (d *Device) detachMcast(g mcastGroup) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mcastQPs--
	if d.mcast[g]--; d.mcast[g] == 0 {
		delete(d.mcast, g)
	}
}
