package verbs

// Modify changes the attributes that mask names, and with QPAttrState the state (ibv_modify_qp). An
// error names the attribute that is missing, not allowed or out of range, and leaves the QP
// unchanged. An XRC QP is one side of a connection. Like the kernel, Modify ignores attributes of
// the other side.
//
// A transition to SQD drains the send queue: requests whose transmission has started are completed,
// and the others wait for RTS. SQDraining is true until the queue is drained, and EventSQDrained
// follows if EnSQDAsyncNotify was set.
//
// A transition to ERR flushes all posted work requests, in order. A transition to RESET drops them
// without completion, clears the attributes, and removes the QP's completions from its CQs. It
// waits for a copy of a Backend that runs for the QP.
func (qp *QP) Modify(attr *QPAttr, mask QPAttrMask) error {
	if err := qp.faultCall(modifyName(attr, mask)); err != nil {
		return err
	}
	err := qp.modify(attr, mask)
	if err == nil && mask&QPAttrState != 0 && attr.QPState == StateReset {
		qp.awaitEnd()
	}
	return err
}

// modify is Modify for this package's own use, which no fault hits.
func (qp *QP) modify(attr *QPAttr, mask QPAttrMask) error {
	op := qp.op("modify")
	if attr == nil {
		return Errorf(ErrInvalid, op, "no attributes")
	}
	if mask&QPAttrAV != 0 && attr.AHAttr.GRH.FlowLabel > maxFlowLabel {
		a := *attr
		a.AHAttr.GRH.FlowLabel &= maxFlowLabel
		attr = &a
	}
	mask &^= ignoredAttrs(qp.init.Type)
	qp.modifying.Lock()
	defer qp.modifying.Unlock()

	// The port is queried before the QP is locked. The provider may take locks for the query, and
	// may hold the same locks while a received packet waits for this QP.
	port := attr.PortNum
	if mask&QPAttrPort == 0 {
		qp.lock()
		port = qp.attr.PortNum
		qp.mu.Unlock()
	}
	limits, err := qp.pd.dev.portLimits(op, port, mask)
	if err != nil {
		return err
	}

	qp.lock()
	// modifying is locked, and the caller may hold further locks, such as that of an rdma_cm ID.
	qp.reportFlags |= reportsDeferred
	defer qp.unlockDeferred()
	if err := qp.alive("modify"); err != nil {
		return err
	}
	from, to := qp.state, qp.state
	if mask&QPAttrState != 0 {
		to = attr.QPState
	}
	if mask&QPAttrCurState != 0 && attr.CurQPState != from {
		return Errorf(ErrInvalid, op, "CurQPState is %v, but the QP is in %v", attr.CurQPState, from)
	}
	if mask&QPAttrRateLimit != 0 {
		if err := qp.checkRateLimit(op, to, attr.RateLimit); err != nil {
			return err
		}
	}
	if err := checkTransition(op, qp.init.Type, qp.init.Transport, from, to, mask&^QPAttrRateLimit); err != nil {
		return err
	}
	if err := limits.check(op, attr, mask); err != nil {
		return err
	}
	if err := qp.prov.Modify(from, to, attr, mask); err != nil {
		return wrap(op, err)
	}
	if to == StateErr {
		qp.enterErr()
		return nil
	}
	qp.state = to
	qp.openRing()
	switch to {
	case StateReset:
		qp.endPlacing()
		qp.endStaging()
		qp.sq.reset()
		if qp.observed&measured != 0 {
			qp.extra.latency.ahead = -1
		}
		qp.dropRecvs()
		qp.attr = QPAttr{}
		qp.inlineMR = nil
		qp.draining = false
		qp.dropCompletions()
	default:
		qp.attr.merge(attr, mask)
		if mask&QPAttrPort != 0 {
			qp.maxMsg = limits.port.MaxMsgSz
			if qp.init.Type == UD {
				qp.maxMsg = uint32(limits.port.ActiveMTU.Bytes())
			}
		}
	}
	switch [2]QPState{from, to} {
	case [2]QPState{StateRTS, StateSQD}:
		qp.draining = true
		qp.attr.EnSQDAsyncNotify = mask&QPAttrEnSQDAsyncNotify != 0 && attr.EnSQDAsyncNotify
		qp.prov.PostSend()
	case [2]QPState{StateSQD, StateRTS}:
		qp.draining = false
		qp.prov.PostSend()
	case [2]QPState{StateSQD, StateSQD}:
		if mask&QPAttrAV != 0 {
			qp.prov.PostSend() // what waited for room on the old path
		}
	}
	return nil
}

// ignoredAttrs returns the attributes that a QP type does not use, but that programs set as for RC.
func ignoredAttrs(t QPType) QPAttrMask {
	switch t {
	case XRCSend:
		return QPAttrMaxDestRDAtomic | QPAttrMinRNRTimer
	case XRCRecv:
		return QPAttrMaxQPRDAtomic | QPAttrRetryCnt | QPAttrRNRRetry
	}
	return 0
}

// dropCompletions removes the QP's completions from its CQs, so that they are not mistaken for
// completions after the next transition from RESET. The kernel's drivers do the same.
func (qp *QP) dropCompletions() {
	for _, cq := range [...]*CQ{qp.init.SendCQ, qp.init.RecvCQ} {
		if cq != nil {
			cq.dropQP(qp.num)
		}
	}
}

// checkRateLimit checks a rate limit for a transition to state to. A limit can be set by a
// transition to RTS, or in RTS as by ibv_modify_qp_rate_limit.
func (qp *QP) checkRateLimit(op string, to QPState, limit uint32) error {
	switch caps := &qp.pd.dev.attr.PacketPacing; {
	case qp.init.Transport == IWARP || caps.SupportedQPTs>>qp.init.Type&1 == 0:
		return Errorf(ErrNotSupported, op, "QPAttrRateLimit: the device reports no packet pacing for %v QPs over %v", qp.init.Type,
			qp.init.Transport)
	case to != StateRTS:
		return Errorf(ErrInvalid, op, "QPAttrRateLimit: it can be set in RTS, not in %v", to)
	case limit != 0 && (limit < caps.RateLimitMin || limit > caps.RateLimitMax):
		return Errorf(ErrInvalid, op, "RateLimit %d is neither 0 nor in %d–%d", limit, caps.RateLimitMin, caps.RateLimitMax)
	}
	return nil
}

// portLimits has the bounds of a QP's attributes.
type portLimits struct {
	num  uint8
	port PortAttr
	gids []GIDEntry
	dev  *DeviceAttr
}

// portLimits queries the provider for the bounds of the attributes that mask names.
func (d *Device) portLimits(op string, port uint8, mask QPAttrMask) (l portLimits, err error) {
	l = portLimits{num: port, dev: &d.attr}
	if mask&QPAttrPort != 0 {
		if err := checkRange(op, "PortNum", int(port), 1, int(d.attr.PhysPortCnt)); err != nil {
			return l, err
		}
	}
	if port == 0 { // in RESET: the state table rejects attributes that need a port
		return l, nil
	}
	if mask&(QPAttrPort|QPAttrPKeyIndex|QPAttrPathMTU) != 0 {
		if l.port, err = d.prov.QueryPort(port); err != nil {
			return l, wrap(op, err)
		}
	}
	if mask&QPAttrAV != 0 {
		if l.gids, err = d.prov.GIDTable(port); err != nil {
			return l, wrap(op, err)
		}
	}
	return l, nil
}

// check checks the values of the attributes that mask names.
func (l *portLimits) check(op string, a *QPAttr, mask QPAttrMask) error {
	apm := mask & (QPAttrAltPath | QPAttrPathMigState)
	switch {
	case apm != 0 && l.dev.DeviceCapFlags&DeviceAutoPathMig == 0:
		return Errorf(ErrNotSupported, op, "%v: the device does not report AUTO_PATH_MIG", apm)
	case mask&QPAttrAltPath != 0 && a.Alt == nil:
		return Errorf(ErrInvalid, op, "QPAttrAltPath without Alt")
	case mask&QPAttrPathMigState != 0 && a.PathMigState > MigArmed:
		return Errorf(ErrInvalid, op, "PathMigState %v", a.PathMigState)
	}
	for _, c := range []struct {
		bit QPAttrMask
		arg string
		v   uint32
		max int
	}{
		{QPAttrPKeyIndex, "PKeyIndex", uint32(a.PKeyIndex), int(l.port.PKeyTblLen) - 1},
		{QPAttrRQPSN, "RQPSN", a.RQPSN, 1<<24 - 1},
		{QPAttrSQPSN, "SQPSN", a.SQPSN, 1<<24 - 1},
		{QPAttrDestQPN, "DestQPNum", a.DestQPNum, 1<<24 - 1},
		{QPAttrTimeout, "Timeout", uint32(a.Timeout), 31},
		{QPAttrMinRNRTimer, "MinRNRTimer", uint32(a.MinRNRTimer), 31},
		{QPAttrRetryCnt, "RetryCnt", uint32(a.RetryCnt), 7},
		{QPAttrRNRRetry, "RNRRetry", uint32(a.RNRRetry), 7},
		{QPAttrMaxQPRDAtomic, "MaxRDAtomic", uint32(a.MaxRDAtomic), l.dev.MaxQPInitRDAtom},
		{QPAttrMaxDestRDAtomic, "MaxDestRDAtomic", uint32(a.MaxDestRDAtomic), l.dev.MaxQPRDAtom},
	} {
		if mask&c.bit != 0 && int64(c.v) > int64(c.max) {
			return Errorf(ErrInvalid, op, "%s %d is not in 0–%d", c.arg, c.v, c.max)
		}
	}
	if bad := a.QPAccessFlags &^ (accessQP | accessOptional); mask&QPAttrAccessFlags != 0 && bad != 0 {
		return Errorf(ErrInvalid, op, "QPAccessFlags %v: a QP cannot have %v", a.QPAccessFlags, bad)
	}
	if mask&QPAttrPathMTU != 0 {
		if a.PathMTU.Bytes() == 0 {
			return Errorf(ErrInvalid, op, "PathMTU %d is not in 1–5 (MTU256–MTU4096)", uint8(a.PathMTU))
		}
		if a.PathMTU > l.port.ActiveMTU {
			return Errorf(ErrInvalid, op, "PathMTU %v is more than the active MTU of %v of port %d", a.PathMTU,
				l.port.ActiveMTU, l.num)
		}
	}
	if mask&QPAttrAV != 0 {
		return l.checkAV(op, &a.AHAttr)
	}
	return nil
}

func (l *portLimits) checkAV(op string, ah *AHAttr) error {
	grh := &ah.GRH
	switch {
	case !ah.IsGlobal:
		return Errorf(ErrInvalid, op, "AHAttr.IsGlobal is false: RoCE needs a GRH")
	case ah.PortNum != l.num:
		return Errorf(ErrInvalid, op, "AHAttr.PortNum is %d, but the port is %d", ah.PortNum, l.num)
	case ah.SL > 15:
		return Errorf(ErrInvalid, op, "AHAttr.SL %d is not in 0–15", ah.SL)
	case grh.DGID == GID{}:
		return Errorf(ErrInvalid, op, "AHAttr.GRH.DGID is zero")
	}
	for i := range l.gids {
		if l.gids[i].Index == int(grh.SGIDIndex) && l.gids[i].GID != (GID{}) {
			return nil
		}
	}
	return Errorf(ErrInvalid, op, "AHAttr.GRH.SGIDIndex %d: port %d has %d GIDs, but none with this index", grh.SGIDIndex, l.num,
		len(l.gids))
}
