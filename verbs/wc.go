package verbs

import "fmt"

// WC is a work completion (ibv_wc). When Status is not WCSuccess, only WRID, Status, QPNum and
// VendorErr are valid.
type WC struct {
	WRID   uint64
	Status WCStatus
	Opcode WCOpcode
	Flags  WCFlags
	// NetworkHdrType is the network header of a datagram.
	NetworkHdrType NetworkHdrType
	VendorErr      uint32
	ByteLen        uint32 // bytes received, or placed by a READ or an atomic
	// ImmData is valid with WCWithImm; it is a number, not in network byte order. InvalidatedRKey
	// is valid with WCWithInv.
	ImmData         uint32
	InvalidatedRKey uint32
	QPNum           uint32
	SrcQP           uint32
	PKeyIndex       uint16
	SLID            uint16
	SL              uint8 // of a datagram; on Ethernet, the priority in its VLAN tag
	DLIDPathBits    uint8
	// CVLAN is the VLAN tag of a datagram: the priority in the upper 3 bits, the VLAN ID in the
	// lower 12. It is 0 without a tag.
	CVLAN   uint16
	FlowTag uint32 // of the flow that steered a frame to a raw packet QP: see FlowSpecActionTag
}

// Err returns nil if the work request has succeeded, otherwise a *WCError.
func (wc *WC) Err() error {
	if wc.Status == WCSuccess {
		return nil
	}
	return &WCError{WRID: wc.WRID, Status: wc.Status, QPNum: wc.QPNum, VendorErr: wc.VendorErr}
}

// WCError is the error of a failed work request. Its fields are the valid ones of the completion.
type WCError struct {
	WRID      uint64
	Status    WCStatus
	QPNum     uint32
	VendorErr uint32
}

func (e *WCError) Error() string {
	return fmt.Sprintf("work request %d of QP %#x failed with %v: %s", e.WRID, e.QPNum, e.Status, e.Status.Description())
}

// WCFlags are the optional parts that a completion has (ibv_wc_flags, same values).
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

// NetworkHdrType is a network header of RoCE packets. The values are those in completions of RoCEv2
// hardware.
type NetworkHdrType uint8

const (
	NetworkHdrNone NetworkHdrType = 0 // no datagram, or one of RoCE v1, where the GRH is the header
	NetworkHdrIPv6 NetworkHdrType = 1
	NetworkHdrIPv4 NetworkHdrType = 2
)

// WCOpcode is the operation that has completed (ibv_wc_opcode, same values). The bit WCRecv is set
// for receive requests.
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

// String returns the ibverbs name without IBV_WC_.
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
	WCLocQPOpErr:       {"LOC_QP_OP_ERR", "the QP cannot carry out this request"},
	WCLocEECOpErr:      {"LOC_EEC_OP_ERR", "the EE context cannot carry out this request"},
	WCLocProtErr:       {"LOC_PROT_ERR", "the lkey of an SGE is invalid, or does not allow the access"},
	WCWRFlushErr:       {"WR_FLUSH_ERR", "flushed: the QP is in the error state"},
	WCMWBindErr:        {"MW_BIND_ERR", "the memory window could not be bound"},
	WCBadRespErr:       {"BAD_RESP_ERR", "the peer's response was not expected"},
	WCLocAccessErr:     {"LOC_ACCESS_ERR", "local memory does not allow the access that the peer requested"},
	WCRemInvReqErr:     {"REM_INV_REQ_ERR", "the peer rejected the request as invalid"},
	WCRemAccessErr:     {"REM_ACCESS_ERR", "the peer's memory does not allow this access"},
	WCRemOpErr:         {"REM_OP_ERR", "the peer could not carry out the request"},
	WCRetryExcErr:      {"RETRY_EXC_ERR", "the peer did not respond: retries exhausted"},
	WCRNRRetryExcErr:   {"RNR_RETRY_EXC_ERR", "the peer has no receive request posted: RNR retries exhausted"},
	WCLocRDDViolErr:    {"LOC_RDD_VIOL_ERR", "local RDD violation"},
	WCRemInvRDReqErr:   {"REM_INV_RD_REQ_ERR", "the peer rejected the RD request as invalid"},
	WCRemAbortErr:      {"REM_ABORT_ERR", "the peer aborted the operation"},
	WCInvEECNErr:       {"INV_EECN_ERR", "no such EE context"},
	WCInvEECStateErr:   {"INV_EEC_STATE_ERR", "the EE context is in the wrong state"},
	WCFatalErr:         {"FATAL_ERR", "fatal device error"},
	WCRespTimeoutErr:   {"RESP_TIMEOUT_ERR", "the response came too late"},
	WCGeneralErr:       {"GENERAL_ERR", "an error without its own status"},
	WCTMErr:            {"TM_ERR", "tag matching failed"},
	WCTMRndvIncomplete: {"TM_RNDV_INCOMPLETE", "the tag matching rendezvous must be completed by software"},
}

// String returns the ibverbs name without IBV_WC_.
func (s WCStatus) String() string {
	if int(s) < len(wcStatuses) {
		return wcStatuses[s].name
	}
	return name(nil, int(s), "WC status")
}

// Description returns the status in words (ibv_wc_status_str).
func (s WCStatus) Description() string {
	if int(s) < len(wcStatuses) {
		return wcStatuses[s].text
	}
	return s.String()
}
