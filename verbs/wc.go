package verbs

// WC is a work completion (ibv_wc). When Status is not WCSuccess only WRID, Status, QPNum and VendorErr count.
type WC struct {
	WRID      uint64
	Status    WCStatus
	Opcode    WCOpcode
	Flags     WCFlags
	VendorErr uint32
	ByteLen   uint32 // bytes received, or placed by a READ or atomic
	// ImmData, in host order, is there with WCWithImm; InvalidatedRKey with WCWithInv.
	ImmData         uint32
	InvalidatedRKey uint32
	QPNum           uint32
	SrcQP           uint32
	PKeyIndex       uint16
	SLID            uint16
	SL              uint8 // that a datagram came with; over Ethernet, the priority in its VLAN tag
	DLIDPathBits    uint8
	// CVLAN is the VLAN tag that a datagram came with: priority, 3 bits, and VLAN ID, the lower 12; 0 if it had none.
	CVLAN   uint16
	FlowTag uint32 // of the flow that brought a frame to a raw packet QP: see FlowSpecActionTag
}

// WCFlags say what else a completion carries (ibv_wc_flags, same values).
type WCFlags uint8

const (
	WCGRH      WCFlags = 1 << 0
	WCWithImm  WCFlags = 1 << 1
	WCIPCsumOK WCFlags = 1 << 2
	WCWithInv  WCFlags = 1 << 3
)

func (f WCFlags) String() string {
	return flags([]string{"GRH", "WITH_IMM", "IP_CSUM_OK", "WITH_INV"}, uint32(f))
}

// WCOpcode is the operation completed (ibv_wc_opcode, same values). The bit WCRecv is set in those of receives.
type WCOpcode uint8

const (
	WCSend            WCOpcode = 0
	WCRDMAWrite       WCOpcode = 1
	WCRDMARead        WCOpcode = 2
	WCCompSwap        WCOpcode = 3
	WCFetchAdd        WCOpcode = 4
	WCBindMW          WCOpcode = 5
	WCLocalInv        WCOpcode = 6
	WCTSO             WCOpcode = 7
	WCFlush           WCOpcode = 8
	WCAtomicWrite     WCOpcode = 9
	WCRecv            WCOpcode = 128
	WCRecvRDMAWithImm WCOpcode = 129
)

var wcOpcodes = []string{"SEND", "RDMA_WRITE", "RDMA_READ", "COMP_SWAP", "FETCH_ADD", "BIND_MW", "LOCAL_INV", "TSO",
	"FLUSH", "ATOMIC_WRITE",
	WCRecv: "RECV", WCRecvRDMAWithImm: "RECV_RDMA_WITH_IMM"}

// String is the ibverbs name without IBV_WC_.
func (o WCOpcode) String() string { return name(wcOpcodes, int(o), "WC opcode") }

// WCStatus is the outcome of a work request (ibv_wc_status, same values).
type WCStatus uint8

const (
	WCSuccess WCStatus = iota
	WCLocLenErr
	WCLocQPOpErr
	WCLocEECOpErr
	WCLocProtErr
	WCWRFlushErr
	WCMWBindErr
	WCBadRespErr
	WCLocAccessErr
	WCRemInvReqErr
	WCRemAccessErr
	WCRemOpErr
	WCRetryExcErr
	WCRNRRetryExcErr
	WCLocRDDViolErr
	WCRemInvRDReqErr
	WCRemAbortErr
	WCInvEECNErr
	WCInvEECStateErr
	WCFatalErr
	WCRespTimeoutErr
	WCGeneralErr
	WCTMErr
	WCTMRndvIncomplete
)

var wcStatuses = [...]struct{ name, text string }{
	WCSuccess:          {"SUCCESS", "done"},
	WCLocLenErr:        {"LOC_LEN_ERR", "the message does not fit the local buffers"},
	WCLocQPOpErr:       {"LOC_QP_OP_ERR", "the QP cannot carry this request out"},
	WCLocEECOpErr:      {"LOC_EEC_OP_ERR", "the EE context cannot carry this request out"},
	WCLocProtErr:       {"LOC_PROT_ERR", "an SGE names memory that its lkey does not cover or allow"},
	WCWRFlushErr:       {"WR_FLUSH_ERR", "flushed: the QP went to the error state first"},
	WCMWBindErr:        {"MW_BIND_ERR", "the memory window could not be bound"},
	WCBadRespErr:       {"BAD_RESP_ERR", "the peer's response makes no sense"},
	WCLocAccessErr:     {"LOC_ACCESS_ERR", "the responder's own memory does not allow this access"},
	WCRemInvReqErr:     {"REM_INV_REQ_ERR", "the peer calls the request invalid"},
	WCRemAccessErr:     {"REM_ACCESS_ERR", "the peer's memory does not allow this access"},
	WCRemOpErr:         {"REM_OP_ERR", "the peer could not carry the request out"},
	WCRetryExcErr:      {"RETRY_EXC_ERR", "no answer from the peer: retries used up"},
	WCRNRRetryExcErr:   {"RNR_RETRY_EXC_ERR", "the peer has no receive posted: RNR retries used up"},
	WCLocRDDViolErr:    {"LOC_RDD_VIOL_ERR", "local RDD violation"},
	WCRemInvRDReqErr:   {"REM_INV_RD_REQ_ERR", "the peer calls the RD request invalid"},
	WCRemAbortErr:      {"REM_ABORT_ERR", "the peer gave the operation up"},
	WCInvEECNErr:       {"INV_EECN_ERR", "no such EE context"},
	WCInvEECStateErr:   {"INV_EEC_STATE_ERR", "the EE context is in the wrong state"},
	WCFatalErr:         {"FATAL_ERR", "fatal device error"},
	WCRespTimeoutErr:   {"RESP_TIMEOUT_ERR", "the response came too late"},
	WCGeneralErr:       {"GENERAL_ERR", "an error that has no status of its own"},
	WCTMErr:            {"TM_ERR", "tag matching failed"},
	WCTMRndvIncomplete: {"TM_RNDV_INCOMPLETE", "the tag matching rendezvous is left to software"},
}

// String is the ibverbs name without IBV_WC_.
func (s WCStatus) String() string {
	if int(s) < len(wcStatuses) {
		return wcStatuses[s].name
	}
	return name(nil, int(s), "WC status")
}

// Description is the status in words, as ibv_wc_status_str does it.
func (s WCStatus) Description() string {
	if int(s) < len(wcStatuses) {
		return wcStatuses[s].text
	}
	return s.String()
}
