package verbs

// Modify changes the attributes that mask chooses; with QPAttrState, the state. All or nothing: an error, which names
// the attribute that is missing, forbidden or out of range, leaves the QP as it was.
//
// To SQD, send requests that are begun go on to their end, then SQDraining is over and EventSQDrained comes if
// EnSQDAsyncNotify asked for it; others wait for RTS.
//
// To ERR, everything posted is flushed in order. To RESET, everything posted vanishes without completion and the
// attributes are forgotten; completions already in a CQ stay there.
func (qp *QP) Modify(attr *QPAttr, mask QPAttrMask) error {
	op := qp.op("modify")
	if attr == nil {
		return Errorf(ErrInvalid, op, "no attributes")
	}
	qp.modifying.Lock()
	defer qp.modifying.Unlock()

	// The port is asked about before the QP is locked: the provider may need locks for it that it holds when a
	// packet comes in and wants this QP.
	port := attr.PortNum
	if mask&QPAttrPort == 0 {
		qp.mu.Lock()
		port = qp.attr.PortNum
		qp.mu.Unlock()
	}
	env, err := qp.pd.dev.portEnv(op, port, mask)
	if err != nil {
		return err
	}

	qp.mu.Lock()
	defer qp.unlock()
	if err := qp.alive("modify"); err != nil {
		return err
	}
	from, to := qp.state, qp.state
	if mask&QPAttrState != 0 {
		to = attr.QPState
	}
	if mask&QPAttrCurState != 0 && attr.CurQPState != from {
		return Errorf(ErrInvalid, op, "CurQPState is %v, the QP is in %v", attr.CurQPState, from)
	}
	if mask&QPAttrRateLimit != 0 {
		if err := qp.checkRateLimit(op, to, attr.RateLimit); err != nil {
			return err
		}
	}
	if err := checkTransition(op, qp.init.Type, qp.init.Transport, from, to, mask&^QPAttrRateLimit); err != nil {
		return err
	}
	if err := env.check(op, attr, mask); err != nil {
		return err
	}
	if err := qp.prov.Modify(from, to, attr, mask); err != nil {
		return wrap(op, err)
	}
	if to == StateErr {
		qp.enterErr()
		return nil
	}
	switch qp.state = to; to {
	case StateReset:
		qp.sq.reset()
		qp.rq.reset()
		qp.attr = QPAttr{}
		qp.inlineMR = nil
		qp.draining = false
	default:
		qp.attr.merge(attr, mask)
		if mask&QPAttrPort != 0 {
			qp.maxMsg = uint64(env.attr.MaxMsgSz)
			if qp.init.Type == UD {
				qp.maxMsg = uint64(env.attr.ActiveMTU.Bytes())
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
	}
	return nil
}

// checkRateLimit tells whether a QP that is to be in a state can have a rate limit: on the way to RTS, or there, as with
// ibv_modify_qp_rate_limit.
func (qp *QP) checkRateLimit(op string, to QPState, limit uint32) error {
	switch caps := &qp.pd.dev.attr.PacketPacing; {
	case qp.init.Transport == IWARP || caps.SupportedQPTs>>qp.init.Type&1 == 0:
		return Errorf(ErrNotSupported, op, "QPAttrRateLimit: the device reports no packet pacing of %v QPs over %v", qp.init.Type,
			qp.init.Transport)
	case to != StateRTS:
		return Errorf(ErrInvalid, op, "QPAttrRateLimit: a QP takes it in RTS, not in %v", to)
	case limit != 0 && (limit < caps.RateLimitMin || limit > caps.RateLimitMax):
		return Errorf(ErrInvalid, op, "RateLimit %d is neither 0 nor in %d–%d", limit, caps.RateLimitMin, caps.RateLimitMax)
	}
	return nil
}

// portEnv is what a QP's attributes are measured by.
type portEnv struct {
	num  uint8
	attr PortAttr
	gids []GIDEntry
	dev  *DeviceAttr
}

// portEnv asks the provider for what mask needs.
func (d *Device) portEnv(op string, port uint8, mask QPAttrMask) (e portEnv, err error) {
	e = portEnv{num: port, dev: &d.attr}
	if mask&QPAttrPort != 0 {
		if err := checkRange(op, "PortNum", int(port), 1, int(d.attr.PhysPortCnt)); err != nil {
			return e, err
		}
	}
	if port == 0 { // still in RESET: the table will refuse whatever needs a port
		return e, nil
	}
	if mask&(QPAttrPort|QPAttrPKeyIndex|QPAttrPathMTU) != 0 {
		if e.attr, err = d.prov.QueryPort(port); err != nil {
			return e, wrap(op, err)
		}
	}
	if mask&QPAttrAV != 0 {
		if e.gids, err = d.prov.GIDTable(port); err != nil {
			return e, wrap(op, err)
		}
	}
	return e, nil
}

// check checks the values of the attributes that mask chooses.
func (e *portEnv) check(op string, a *QPAttr, mask QPAttrMask) error {
	apm := mask & (QPAttrAltPath | QPAttrPathMigState)
	switch {
	case apm != 0 && e.dev.DeviceCapFlags&DeviceAutoPathMig == 0:
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
		{QPAttrPKeyIndex, "PKeyIndex", uint32(a.PKeyIndex), int(e.attr.PKeyTblLen) - 1},
		{QPAttrRQPSN, "RQPSN", a.RQPSN, 1<<24 - 1},
		{QPAttrSQPSN, "SQPSN", a.SQPSN, 1<<24 - 1},
		{QPAttrDestQPN, "DestQPNum", a.DestQPNum, 1<<24 - 1},
		{QPAttrTimeout, "Timeout", uint32(a.Timeout), 31},
		{QPAttrMinRNRTimer, "MinRNRTimer", uint32(a.MinRNRTimer), 31},
		{QPAttrRetryCnt, "RetryCnt", uint32(a.RetryCnt), 7},
		{QPAttrRNRRetry, "RNRRetry", uint32(a.RNRRetry), 7},
		{QPAttrMaxQPRDAtomic, "MaxRDAtomic", uint32(a.MaxRDAtomic), e.dev.MaxQPInitRDAtom},
		{QPAttrMaxDestRDAtomic, "MaxDestRDAtomic", uint32(a.MaxDestRDAtomic), e.dev.MaxQPRDAtom},
	} {
		if mask&c.bit != 0 && int64(c.v) > int64(c.max) {
			return Errorf(ErrInvalid, op, "%s %d is not in 0–%d", c.arg, c.v, c.max)
		}
	}
	if bad := a.QPAccessFlags &^ (accessQP | accessOptional); mask&QPAttrAccessFlags != 0 && bad != 0 {
		return Errorf(ErrInvalid, op, "QPAccessFlags %v: a QP has no %v", a.QPAccessFlags, bad)
	}
	if mask&QPAttrPathMTU != 0 {
		if a.PathMTU.Bytes() == 0 {
			return Errorf(ErrInvalid, op, "PathMTU %d is not in 1–5 (MTU256–MTU4096)", uint8(a.PathMTU))
		}
		if a.PathMTU > e.attr.ActiveMTU {
			return Errorf(ErrInvalid, op, "PathMTU %v is more than the active MTU of %v of port %d", a.PathMTU,
				e.attr.ActiveMTU, e.num)
		}
	}
	if mask&QPAttrAV != 0 {
		return e.checkAV(op, &a.AHAttr)
	}
	return nil
}

func (e *portEnv) checkAV(op string, ah *AHAttr) error {
	grh := &ah.GRH
	switch {
	case !ah.IsGlobal:
		return Errorf(ErrInvalid, op, "AHAttr.IsGlobal is false: RoCE needs a GRH")
	case ah.PortNum != e.num:
		return Errorf(ErrInvalid, op, "AHAttr.PortNum is %d, the QP's port %d", ah.PortNum, e.num)
	case ah.SL > 15:
		return Errorf(ErrInvalid, op, "AHAttr.SL %d is not in 0–15", ah.SL)
	case grh.FlowLabel >= 1<<20:
		return Errorf(ErrInvalid, op, "AHAttr.GRH.FlowLabel %#x has more than 20 bits", grh.FlowLabel)
	case grh.DGID == GID{}:
		return Errorf(ErrInvalid, op, "AHAttr.GRH.DGID is zero")
	}
	for i := range e.gids {
		if e.gids[i].Index == int(grh.SGIDIndex) && e.gids[i].GID != (GID{}) {
			return nil
		}
	}
	return Errorf(ErrInvalid, op, "AHAttr.GRH.SGIDIndex %d: port %d has no such GID, it has %d", grh.SGIDIndex, e.num,
		len(e.gids))
}
