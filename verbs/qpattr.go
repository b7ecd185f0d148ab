package verbs

// QPType is a QP's transport service (ibv_qp_type, same values).
type QPType uint8

const (
	RC        QPType = 2
	UC        QPType = 3
	UD        QPType = 4
	RawPacket QPType = 8
	XRCSend   QPType = 9
	XRCRecv   QPType = 10
)

var qpTypes = []string{RC: "RC", UC: "UC", UD: "UD", RawPacket: "RAW_PACKET", XRCSend: "XRC_SEND", XRCRecv: "XRC_RECV"}

func (t QPType) String() string { return name(qpTypes, int(t), "QP type") }

// QPState is a QP's state (ibv_qp_state, same values).
type QPState uint8

const (
	StateReset QPState = iota
	StateInit
	StateRTR
	StateRTS
	StateSQD
	StateSQE
	StateErr
)

var qpStates = []string{"RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"}

func (s QPState) String() string { return name(qpStates, int(s), "QP state") }

// QPCap has the sizes of a QP's queues (ibv_qp_cap).
type QPCap struct {
	MaxSendWR  int
	MaxRecvWR  int
	MaxSendSGE int
	MaxRecvSGE int
	// Bytes; CreateQP raises it to 16 times MaxSendSGE, the size of the SGEs, as rxe does.
	MaxInlineData int
}

// QPInitAttr holds the attributes that CreateQP takes (ibv_qp_init_attr).
type QPInitAttr struct {
	Context   any // for the application: QP.Context
	Type      QPType
	Transport Transport
	SendCQ    *CQ
	RecvCQ    *CQ // may be the same as SendCQ
	// SRQ is the source of receive requests, or nil. With an SRQ, Cap.MaxRecvWR and Cap.MaxRecvSGE
	// are ignored.
	SRQ      *SRQ
	Cap      QPCap
	SQSigAll bool // every send work request is signaled
	// BlockSelfMcastLB keeps a UD QP from receiving its own multicast datagrams
	// (IBV_QP_CREATE_BLOCK_SELF_MCAST_LB). Without it, the QP receives them if it is attached to
	// the group, as other QPs of the device do.
	BlockSelfMcastLB bool
}

// GRH is the global route of an address vector (ibv_global_route).
type GRH struct {
	DGID         GID
	FlowLabel    uint32 // 20 bits; higher bits are ignored, as in Linux
	SGIDIndex    uint8  // index of the source address in the port's GID table
	HopLimit     uint8  // 0: the provider chooses
	TrafficClass uint8  // DSCP and ECN
}

const maxFlowLabel = 1<<20 - 1

// AHAttr is an address vector (ibv_ah_attr). RoCE needs IsGlobal and GRH, and ignores DLID,
// SrcPathBits and StaticRate. SL is 0 to 15; its lower three bits are the priority of frames in a
// VLAN.
type AHAttr struct {
	GRH         GRH
	DLID        uint16
	SL          uint8
	SrcPathBits uint8
	StaticRate  uint8
	IsGlobal    bool
	PortNum     uint8
}

// QPAttr has the attributes that Modify sets and Query returns (ibv_qp_attr). Modify uses those
// that its mask names.
type QPAttr struct {
	QPState          QPState
	CurQPState       QPState
	PathMTU          MTU
	PathMigState     MigState
	QKey             uint32
	RQPSN            uint32 // 24 bits
	SQPSN            uint32 // 24 bits
	DestQPNum        uint32 // 24 bits
	QPAccessFlags    Access
	Cap              QPCap // Query only
	AHAttr           AHAttr
	PKeyIndex        uint16
	EnSQDAsyncNotify bool
	SQDraining       bool  // Query only
	MaxRDAtomic      uint8 // outstanding READs and atomics as requester
	MaxDestRDAtomic  uint8 // outstanding READs and atomics as responder
	// MinRNRTimer is the 5-bit code of the delay that the QP's RNR NAKs request (IBTA Vol 1
	// §9.7.5.2.8): 0 is 655.36 ms, 1 is 10 µs, 12 is 640 µs, … 31 is 491.52 ms.
	MinRNRTimer uint8
	PortNum     uint8
	Timeout     uint8    // 5 bits: 4.096 µs × 2^n; 0 is no timeout
	RetryCnt    uint8    // 3 bits
	RNRRetry    uint8    // 3 bits; 7 means no limit
	RateLimit   uint32   // kbit/s of IP packets, including READ responses; 0 is no limit
	Alt         *AltPath // with QPAttrAltPath
	// LLPStream is the stream of an iWARP QP for the transition to RTS (the LLP stream handle of
	// the RDMA protocol verbs). rdmacm gets it from the provider when a connection is established.
	LLPStream any
}

// AltPath is the alternate path of a connection (ibv_qp_attr's fields alt_…), for devices that
// report DeviceAutoPathMig.
type AltPath struct {
	AHAttr    AHAttr
	PKeyIndex uint16
	PortNum   uint8
	Timeout   uint8
}

// MigState is the path migration state of a QP (ibv_mig_state, same values).
type MigState uint8

const (
	MigMigrated MigState = iota
	MigRearm
	MigArmed
)

func (s MigState) String() string {
	return name([]string{"MIGRATED", "REARM", "ARMED"}, int(s), "path migration state")
}

// QPAttrMask is a set of attributes (ibv_qp_attr_mask, same values).
type QPAttrMask uint32

const (
	QPAttrState            QPAttrMask = 1 << 0
	QPAttrCurState         QPAttrMask = 1 << 1
	QPAttrEnSQDAsyncNotify QPAttrMask = 1 << 2
	QPAttrAccessFlags      QPAttrMask = 1 << 3
	QPAttrPKeyIndex        QPAttrMask = 1 << 4
	QPAttrPort             QPAttrMask = 1 << 5
	QPAttrQKey             QPAttrMask = 1 << 6
	QPAttrAV               QPAttrMask = 1 << 7
	QPAttrPathMTU          QPAttrMask = 1 << 8
	QPAttrTimeout          QPAttrMask = 1 << 9
	QPAttrRetryCnt         QPAttrMask = 1 << 10
	QPAttrRNRRetry         QPAttrMask = 1 << 11
	QPAttrRQPSN            QPAttrMask = 1 << 12
	QPAttrMaxQPRDAtomic    QPAttrMask = 1 << 13
	QPAttrAltPath          QPAttrMask = 1 << 14
	QPAttrMinRNRTimer      QPAttrMask = 1 << 15
	QPAttrSQPSN            QPAttrMask = 1 << 16
	QPAttrMaxDestRDAtomic  QPAttrMask = 1 << 17
	QPAttrPathMigState     QPAttrMask = 1 << 18
	QPAttrCap              QPAttrMask = 1 << 19
	QPAttrDestQPN          QPAttrMask = 1 << 20
	QPAttrRateLimit        QPAttrMask = 1 << 25
	// Not in libibverbs, where the kernel attaches the stream.
	QPAttrLLPStream QPAttrMask = 1 << 30
)

var qpAttrNames = []string{"QPAttrState", "QPAttrCurState", "QPAttrEnSQDAsyncNotify", "QPAttrAccessFlags",
	"QPAttrPKeyIndex", "QPAttrPort", "QPAttrQKey", "QPAttrAV", "QPAttrPathMTU", "QPAttrTimeout", "QPAttrRetryCnt",
	"QPAttrRNRRetry", "QPAttrRQPSN", "QPAttrMaxQPRDAtomic", "QPAttrAltPath", "QPAttrMinRNRTimer", "QPAttrSQPSN",
	"QPAttrMaxDestRDAtomic", "QPAttrPathMigState", "QPAttrCap", "QPAttrDestQPN", 25: "QPAttrRateLimit", 30: "QPAttrLLPStream"}

// String returns the constants' names, joined by "|".
func (m QPAttrMask) String() string { return flags(qpAttrNames, uint32(m)) }

// merge copies the attributes that mask names.
func (a *QPAttr) merge(b *QPAttr, mask QPAttrMask) {
	set := func(bit QPAttrMask) bool { return mask&bit != 0 }
	if set(QPAttrAccessFlags) {
		a.QPAccessFlags = b.QPAccessFlags
	}
	if set(QPAttrPKeyIndex) {
		a.PKeyIndex = b.PKeyIndex
	}
	if set(QPAttrPort) {
		a.PortNum = b.PortNum
	}
	if set(QPAttrQKey) {
		a.QKey = b.QKey
	}
	if set(QPAttrAV) {
		a.AHAttr = b.AHAttr
	}
	if set(QPAttrPathMTU) {
		a.PathMTU = b.PathMTU
	}
	if set(QPAttrTimeout) {
		a.Timeout = b.Timeout
	}
	if set(QPAttrRetryCnt) {
		a.RetryCnt = b.RetryCnt
	}
	if set(QPAttrRNRRetry) {
		a.RNRRetry = b.RNRRetry
	}
	if set(QPAttrRQPSN) {
		a.RQPSN = b.RQPSN
	}
	if set(QPAttrMaxQPRDAtomic) {
		a.MaxRDAtomic = b.MaxRDAtomic
	}
	if set(QPAttrMinRNRTimer) {
		a.MinRNRTimer = b.MinRNRTimer
	}
	if set(QPAttrSQPSN) {
		a.SQPSN = b.SQPSN
	}
	if set(QPAttrMaxDestRDAtomic) {
		a.MaxDestRDAtomic = b.MaxDestRDAtomic
	}
	if set(QPAttrAltPath) {
		a.Alt = b.Alt
	}
	if set(QPAttrPathMigState) {
		a.PathMigState = b.PathMigState
	}
	if set(QPAttrRateLimit) {
		a.RateLimit = b.RateLimit
	}
	if set(QPAttrDestQPN) {
		a.DestQPNum = b.DestQPNum
	}
}
