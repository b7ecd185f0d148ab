package verbs

// transition is what Modify needs and takes, besides QPAttrState.
type transition struct{ required, optional QPAttrMask }

// stateTable has, per QP type, the transitions of IBTA §11.2.5.3 (QP state transition properties) but those that are
// always there: from anywhere to RESET and ERR, without attributes. QPAttrCurState may come along from RTR on.
var stateTable = map[QPType]map[[2]QPState]transition{
	RC: {
		{StateReset, StateInit}: {
			required: QPAttrPKeyIndex | QPAttrPort | QPAttrAccessFlags,
		},
		{StateInit, StateInit}: {
			optional: QPAttrPKeyIndex | QPAttrPort | QPAttrAccessFlags,
		},
		{StateInit, StateRTR}: {
			required: QPAttrAV | QPAttrPathMTU | QPAttrDestQPN | QPAttrRQPSN | QPAttrMaxDestRDAtomic |
				QPAttrMinRNRTimer,
			optional: QPAttrAltPath | QPAttrAccessFlags | QPAttrPKeyIndex,
		},
		{StateRTR, StateRTS}: {
			required: QPAttrTimeout | QPAttrRetryCnt | QPAttrRNRRetry | QPAttrSQPSN | QPAttrMaxQPRDAtomic,
			optional: QPAttrCurState | QPAttrAltPath | QPAttrAccessFlags | QPAttrMinRNRTimer | QPAttrPathMigState,
		},
		{StateRTS, StateRTS}: {
			optional: QPAttrCurState | QPAttrAccessFlags | QPAttrAltPath | QPAttrPathMigState | QPAttrMinRNRTimer,
		},
	},
}

// iwarpTable is the table of RC QPs over iWARP. A stream that MPA has started takes the QP from INIT straight to RTS,
// and carries what RoCEv2 has attributes for.
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

// checkTransition tells whether a transition with these attributes is allowed.
func checkTransition(op string, t QPType, transport Transport, from, to QPState, mask QPAttrMask) error {
	table := stateTable[t]
	if transport == IWARP {
		table = iwarpTable
	}
	tr, ok := table[[2]QPState{from, to}]
	switch {
	case to == StateReset || to == StateErr:
	case !ok && from == to:
		return Errorf(ErrInvalid, op, "in %v no attributes can be modified without a change of state", from)
	case !ok:
		return Errorf(ErrInvalid, op, "%v→%v is no transition of %v QPs over %v", from, to, t, transport)
	}
	if missing := tr.required &^ mask; missing != 0 {
		return Errorf(ErrInvalid, op, "%v→%v needs %v", from, to, missing)
	}
	if extra := mask &^ (QPAttrState | tr.required | tr.optional); extra != 0 {
		return Errorf(ErrInvalid, op, "%v→%v does not take %v", from, to, extra)
	}
	return nil
}
