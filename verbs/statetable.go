package verbs

// transition has the attributes that a transition requires, and those that it allows, in addition
// to QPAttrState.
type transition struct{ required, optional QPAttrMask }

// stateTable has the transitions of each QP type (IBTA §11.2.5.3, QP state transition properties).
// It omits those from any state to RESET and ERR, which take no attributes.
var stateTable = map[QPType]map[[2]QPState]transition{
	RC: connected(
		transition{required: QPAttrMaxDestRDAtomic | QPAttrMinRNRTimer},
		transition{
			required: QPAttrTimeout | QPAttrRetryCnt | QPAttrRNRRetry | QPAttrMaxQPRDAtomic,
			optional: QPAttrMinRNRTimer,
		},
		QPAttrMinRNRTimer,
		QPAttrTimeout|QPAttrRetryCnt|QPAttrRNRRetry|QPAttrMaxQPRDAtomic|QPAttrMaxDestRDAtomic|QPAttrMinRNRTimer,
	),
	UC: withSQE(connected(transition{}, transition{}, 0, 0), QPAttrCurState|QPAttrAccessFlags),
	UD: withSQE(map[[2]QPState]transition{
		{StateReset, StateInit}: {required: QPAttrPKeyIndex | QPAttrPort | QPAttrQKey},
		{StateInit, StateInit}:  {optional: QPAttrPKeyIndex | QPAttrPort | QPAttrQKey},
		{StateInit, StateRTR}:   {optional: QPAttrPKeyIndex | QPAttrQKey},
		{StateRTR, StateRTS}:    {required: QPAttrSQPSN, optional: QPAttrCurState | QPAttrQKey},
		{StateRTS, StateRTS}:    {optional: QPAttrCurState | QPAttrQKey},
		{StateRTS, StateSQD}:    {optional: QPAttrEnSQDAsyncNotify},
		{StateSQD, StateSQD}:    {optional: QPAttrPKeyIndex | QPAttrQKey},
		{StateSQD, StateRTS}:    {optional: QPAttrCurState | QPAttrQKey},
	}, QPAttrCurState|QPAttrQKey),
	RawPacket: withSQE(map[[2]QPState]transition{
		{StateReset, StateInit}: {required: QPAttrPort},
		{StateInit, StateInit}:  {optional: QPAttrPort},
		{StateInit, StateRTR}:   {},
		{StateRTR, StateRTS}:    {optional: QPAttrCurState},
		{StateRTS, StateRTS}:    {optional: QPAttrCurState},
		{StateRTS, StateSQD}:    {optional: QPAttrEnSQDAsyncNotify},
		{StateSQD, StateRTS}:    {optional: QPAttrCurState},
	}, QPAttrCurState),
	XRCSend: connected(
		transition{},
		transition{required: QPAttrTimeout | QPAttrRetryCnt | QPAttrRNRRetry | QPAttrMaxQPRDAtomic},
		0,
		QPAttrTimeout|QPAttrRetryCnt|QPAttrRNRRetry|QPAttrMaxQPRDAtomic,
	),
	XRCRecv: connected(
		transition{required: QPAttrMaxDestRDAtomic | QPAttrMinRNRTimer},
		transition{required: QPAttrTimeout, optional: QPAttrMinRNRTimer},
		QPAttrMinRNRTimer,
		QPAttrTimeout|QPAttrMaxDestRDAtomic|QPAttrMinRNRTimer,
	),
}

// connected returns the table of a connected service: the common attributes, and the arguments for
// this service. toRTR and toRTS are for the transitions to these states, rts is for changes in RTS
// and for SQD → RTS, and sqd for changes in SQD.
func connected(toRTR, toRTS transition, rts, sqd QPAttrMask) map[[2]QPState]transition {
	const (
		port   = QPAttrPKeyIndex | QPAttrPort | QPAttrAccessFlags
		change = QPAttrCurState | QPAttrAccessFlags | QPAttrAltPath | QPAttrPathMigState
	)
	return map[[2]QPState]transition{
		{StateReset, StateInit}: {required: port},
		{StateInit, StateInit}:  {optional: port},
		{StateInit, StateRTR}: {
			required: toRTR.required | QPAttrAV | QPAttrPathMTU | QPAttrDestQPN | QPAttrRQPSN,
			optional: toRTR.optional | QPAttrAltPath | QPAttrAccessFlags | QPAttrPKeyIndex,
		},
		{StateRTR, StateRTS}: {required: toRTS.required | QPAttrSQPSN, optional: toRTS.optional | change},
		{StateRTS, StateRTS}: {optional: rts | change},
		{StateRTS, StateSQD}: {optional: QPAttrEnSQDAsyncNotify},
		{StateSQD, StateSQD}: {
			optional: sqd | QPAttrAV | QPAttrAltPath | QPAttrAccessFlags | QPAttrPKeyIndex | QPAttrPathMigState,
		},
		{StateSQD, StateRTS}: {optional: rts | change},
	}
}

// withSQE adds the transition from SQE to RTS. Only QPs of unreliable services enter SQE.
func withSQE(t map[[2]QPState]transition, optional QPAttrMask) map[[2]QPState]transition {
	t[[2]QPState{StateSQE, StateRTS}] = transition{optional: optional}
	return t
}

// iwarpTable has the transitions of RC QPs over iWARP. With a stream on which the MPA start-up is
// complete, the QP goes directly from INIT to RTS. The attributes that RoCEv2 needs for RTR are
// properties of the stream.
var iwarpTable = map[[2]QPState]transition{
	{StateReset, StateInit}: {
		required: QPAttrPort | QPAttrAccessFlags,
		optional: QPAttrPKeyIndex,
	},
	{StateInit, StateInit}: {
		optional: QPAttrPKeyIndex | QPAttrPort | QPAttrAccessFlags,
	},
	{StateInit, StateRTS}: {
		required: QPAttrLLPStream,
		optional: QPAttrAccessFlags | QPAttrMaxQPRDAtomic | QPAttrMaxDestRDAtomic,
	},
	{StateRTS, StateRTS}: {
		optional: QPAttrCurState | QPAttrAccessFlags,
	},
}

// checkTransition checks that a transition is allowed with the attributes that mask names.
func checkTransition(op string, t QPType, transport Transport, from, to QPState, mask QPAttrMask) error {
	table := stateTable[t]
	if transport == IWARP {
		table = iwarpTable
	}
	tr, ok := table[[2]QPState{from, to}]
	switch {
	case to == StateReset || to == StateErr:
	case !ok && from == to:
		return Errorf(ErrInvalid, op, "no attributes can be modified in %v without a transition", from)
	case !ok:
		return Errorf(ErrInvalid, op, "%v→%v is not a transition of %v QPs over %v", from, to, t, transport)
	}
	if missing := tr.required &^ mask; missing != 0 {
		return Errorf(ErrInvalid, op, "%v→%v needs %v", from, to, missing)
	}
	if extra := mask &^ (QPAttrState | tr.required | tr.optional); extra != 0 {
		return Errorf(ErrInvalid, op, "%v→%v does not allow %v", from, to, extra)
	}
	return nil
}
