// Package control is the protocol by which softrnic conform has a target make queue pairs, post work requests and show its
// memory. The target's side is softrnic serve --conform.
//
// The protocol is one JSON object a line, over TCP. The tester sends a Request and the target answers each with one Reply, in
// order. The first Request of a connection is "hello", with the token that the target asks for; a wrong token ends the
// connection. What a connection has made is destroyed when it ends. Bytes are in base64 (RFC 4648 §4, as encoding/json has
// it), keys and addresses are numbers. A target bounds what it is asked for: regions of MaxMemory bytes, MaxQPs queue pairs.
//
//	op            uses                                    answers with
//	hello         Token                                   Name, Addr, RFC7306
//	create_qp     Create                                  QP, QPN, RemoteAddr, RKey
//	connect       QP, Connect                             -        to RTR and then RTS; a UD QP has no peer
//	post_recv     QP, WRID, Offset, Length                -        a receive into the QP's own region
//	post_send     QP, WRID, Offset, Length, Send          -        signaled
//	poll          QP, WaitMillis                          Completions, those of one poll, or none after WaitMillis
//	read          QP, Offset, Length                      Data, of the region
//	write         QP, Offset, Data                        -
//	guard         QP                                      Intact: whether the bytes around the region are as they were
//	state         QP                                      State, as verbs names them: "RTS", "ERR"; none if its driver does not tell
//	destroy_qp    QP                                      -
//
// A QP over iWARP is connected by rdma_cm, of which the target does one step for each request. So may one over RoCEv2, for which there
// is connect too. A target without rdma_cm refuses listen and dial.
//
//	listen        QP, CM                                  Port    of an address of the target
//	dial          QP, CM                                  -       to the address of the tester in CM; ESTABLISHED or another event follows
//	cm_event      QP, WaitMillis                          Event, Data, ReadsIn, ReadsOut: the QP's next event, or none after WaitMillis
//	accept        QP, CM                                  -       after CONNECT_REQUEST
//	reject        QP, CM                                  -       after CONNECT_REQUEST
//	disconnect    QP                                      -
package control

import "time"

// Bounds of what a target grants.
const (
	MaxMemory = 1 << 20 // bytes of a region
	MaxQPs    = 64      // of a connection
	MaxLine   = 2 << 20 // bytes of a line
	MaxWait   = 10 * time.Second
)

// Operations of a Request.
const (
	Hello     = "hello"
	CreateQP  = "create_qp"
	ConnectQP = "connect"
	PostRecv  = "post_recv"
	PostSend  = "post_send"
	Poll      = "poll"
	Read      = "read"
	Write     = "write"
	Guard     = "guard"
	State     = "state"
	DestroyQP = "destroy_qp"

	Listen     = "listen"
	DialTester = "dial"
	CMEvent    = "cm_event"
	Accept     = "accept"
	Reject     = "reject"
	Disconnect = "disconnect"
)

// Request is what the tester sends.
type Request struct {
	Op         string   `json:"op"`
	Token      string   `json:"token,omitempty"`
	QP         int      `json:"qp,omitempty"` // as create_qp answered
	WRID       uint64   `json:"wr_id,omitempty"`
	Offset     int      `json:"offset,omitempty"` // in the QP's region, in bytes
	Length     int      `json:"length,omitempty"`
	Data       []byte   `json:"data,omitempty"`
	WaitMillis int      `json:"wait_ms,omitempty"`
	Create     *Create  `json:"create,omitempty"`
	Connect    *Connect `json:"connect,omitempty"`
	CM         *CM      `json:"cm,omitempty"`
	Send       *Send    `json:"send,omitempty"`
}

// Create is what a QP is to be, and its region of memory.
type Create struct {
	Type      string   `json:"type"`                // RC, UC or UD
	Transport string   `json:"transport,omitempty"` // rocev2, which is meant if it is missing, or iwarp
	OwnPD     bool     `json:"own_pd,omitempty"`    // in a protection domain of its own, and not in that of the connection
	Memory    int      `json:"memory"`              // bytes of the region
	QPAccess  []string `json:"qp_access,omitempty"` // rights of the QP: remote_write, remote_read, remote_atomic
	MRAccess  []string `json:"mr_access,omitempty"` // rights of the region, which may always be written locally
	QKey      uint32   `json:"qkey,omitempty"`      // UD
	RecvDepth int      `json:"recv_depth,omitempty"`
}

// Connect is the peer of a QP, and what both keep to.
type Connect struct {
	LocalAddr  string `json:"local_addr"` // the target's address that the QP has
	PeerAddr   string `json:"peer_addr"`
	PeerQPN    uint32 `json:"peer_qpn"`
	MTU        int    `json:"mtu"`    // path MTU in bytes
	RQPSN      uint32 `json:"rq_psn"` // the first PSN of the tester
	SQPSN      uint32 `json:"sq_psn"` // the first PSN of the target
	MinRNR     uint8  `json:"min_rnr_timer"`
	Timeout    uint8  `json:"timeout"`
	Retry      uint8  `json:"retry_cnt"`
	RNRRetry   uint8  `json:"rnr_retry"`
	MaxRD      uint8  `json:"max_rd_atomic"`
	MaxDestRD  uint8  `json:"max_dest_rd_atomic"`
	OnlyRecv   bool   `json:"only_recv,omitempty"` // stay in RTR
	TrafficCls uint8  `json:"traffic_class,omitempty"`
}

// CM is what rdma_cm is given.
type CM struct {
	Addr     string `json:"addr,omitempty"`         // host:port: of the target in listen, where port 0 is any; of the tester in dial
	Data     []byte `json:"private_data,omitempty"` // in dial, accept and reject
	ReadsIn  uint8  `json:"responder_resources"`    // in dial and accept: READs and atomics that the target is to accept at a time
	ReadsOut uint8  `json:"initiator_depth"`        // those that the target may have outstanding
}

// Send is a work request of the target.
type Send struct {
	Opcode     string `json:"opcode"` // SEND, SEND_WITH_IMM, SEND_WITH_INV, RDMA_WRITE, RDMA_WRITE_WITH_IMM, RDMA_READ, CMP_SWAP, FETCH_ADD
	RemoteAddr uint64 `json:"remote_addr,omitempty"`
	RKey       uint32 `json:"rkey,omitempty"`
	Imm        uint32 `json:"imm,omitempty"`
	CompareAdd uint64 `json:"compare_add,omitempty"`
	Swap       uint64 `json:"swap,omitempty"`
	Solicited  bool   `json:"solicited,omitempty"`
	Fence      bool   `json:"fence,omitempty"`
	Invalidate uint32 `json:"invalidate,omitempty"` // the tester's key that SEND_WITH_INV names
}

// Reply is the target's answer. Error is empty if what was asked for was done.
type Reply struct {
	Error       string       `json:"error,omitempty"`
	Name        string       `json:"name,omitempty"`    // of the device
	Addr        []string     `json:"addr,omitempty"`    // of its port, as far as it knows
	RFC7306     bool         `json:"rfc7306,omitempty"` // over iWARP it has atomics and immediate data, which are optional
	QP          int          `json:"qp,omitempty"`
	QPN         uint32       `json:"qpn,omitempty"`
	RemoteAddr  uint64       `json:"remote_addr,omitempty"`
	RKey        uint32       `json:"rkey,omitempty"`
	Data        []byte       `json:"data,omitempty"`
	Intact      bool         `json:"intact,omitempty"`
	State       string       `json:"state,omitempty"`
	Completions []Completion `json:"completions,omitempty"`
	Port        uint16       `json:"port,omitempty"`
	Event       string       `json:"event,omitempty"` // as librdmacm names it, without RDMA_CM_EVENT_: CONNECT_REQUEST, ESTABLISHED
	ReadsIn     uint8        `json:"responder_resources,omitempty"`
	ReadsOut    uint8        `json:"initiator_depth,omitempty"`
}

// Completion is a work completion. Status is libibverbs' name without IBV_WC_, such as SUCCESS and REM_ACCESS_ERR.
type Completion struct {
	WRID    uint64 `json:"wr_id"`
	Status  string `json:"status"`
	Opcode  string `json:"opcode"`
	ByteLen uint32 `json:"byte_len"`
	Imm     uint32 `json:"imm,omitempty"`
	WithImm bool   `json:"with_imm,omitempty"`
	Inv     uint32 `json:"invalidated,omitempty"` // the target's key that the tester has invalidated
	WithInv bool   `json:"with_inv,omitempty"`
	SrcQP   uint32 `json:"src_qp,omitempty"` // of a datagram
}
