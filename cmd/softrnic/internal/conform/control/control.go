// Package control is the protocol with which softrnic conform controls a target: it creates queue
// pairs, posts work requests and reads memory. The target's side is softrnic serve --conform.
//
// The protocol is one JSON object per line over TCP. The tester sends Requests. The target answers
// each with one Reply, in order. The first Request of a connection is "hello" with the target's
// token. A wrong token ends the connection. When a connection ends, its objects are closed.
// Bytes are in base64 (RFC 4648 §4, as in encoding/json). Keys and addresses are numbers. A target
// grants at most MaxQPs queue pairs with regions of MaxMemory bytes.
//
//	op            uses                            answers with
//	hello         Token                           Name, Addr, RFC7306
//	create_qp     Create                          QP, QPN, RemoteAddr, RKey
//	connect       QP, Connect                     -
//	              to RTR and then RTS; a UD QP has no peer
//	post_recv     QP, WRID, Offset, Length        -
//	              a receive into the QP's own region
//	post_send     QP, WRID, Offset, Length, Send  -
//	              signaled
//	poll          QP, WaitMillis                  Completions
//	              those of one poll, or none after WaitMillis
//	read          QP, Offset, Length              Data
//	              of the region
//	write         QP, Offset, Data                -
//	guard         QP                              Intact
//	              whether the bytes around the region are unchanged
//	state         QP                              State
//	              as in package verbs: "RTS", "ERR"; empty if the driver does not report it
//	destroy_qp    QP                              -
//
// A QP over iWARP is connected by rdma_cm, one step for each request. A QP over RoCEv2 is connected
// in this way or by connect. A target without rdma_cm refuses listen and dial.
//
//	listen        QP, CM                          Port
//	              on an address of the target
//	dial          QP, CM                          -
//	              to the address of the tester in CM; ESTABLISHED or another event follows
//	cm_event      QP, WaitMillis                  Event, Data, ReadsIn, ReadsOut
//	              the QP's next event, or none after WaitMillis
//	accept        QP, CM                          -
//	              after CONNECT_REQUEST
//	reject        QP, CM                          -
//	              after CONNECT_REQUEST
//	disconnect    QP                              -
package control

import "time"

// TokenVariable is the environment variable with the token. Other users see arguments, and not the
// environment.
const TokenVariable = "SOFTRNIC_CONFORM_TOKEN"

// Limits of a target.
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

// Request is a request of the tester.
type Request struct {
	Op         string   `json:"op"`
	Token      string   `json:"token,omitempty"`
	QP         int      `json:"qp,omitempty"` // from the answer to create_qp
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

// Create has the attributes of a new QP and of its memory region.
type Create struct {
	Type      string `json:"type"`                // RC, UC or UD
	Transport string `json:"transport,omitempty"` // rocev2, the default, or iwarp
	// In a new protection domain, not that of the connection.
	OwnPD  bool `json:"own_pd,omitempty"`
	Memory int  `json:"memory"` // bytes of the region
	// Rights of the QP: remote_write, remote_read, remote_atomic.
	QPAccess []string `json:"qp_access,omitempty"`
	// Rights of the region; local writes are always allowed.
	MRAccess []string `json:"mr_access,omitempty"`
	QKey     uint32   `json:"qkey,omitempty"` // UD
}

// Connect has the peer of a QP and the parameters of the connection.
type Connect struct {
	LocalAddr string `json:"local_addr"` // the target's address for the QP
	PeerAddr  string `json:"peer_addr"`
	PeerQPN   uint32 `json:"peer_qpn"`
	MTU       int    `json:"mtu"`           // path MTU in bytes
	RQPSN     uint32 `json:"rq_psn"`        // the first PSN of the tester
	SQPSN     uint32 `json:"sq_psn"`        // the first PSN of the target
	MinRNR    uint8  `json:"min_rnr_timer"` // the code, as QPAttr.MinRNRTimer
	Timeout   uint8  `json:"timeout"`
	Retry     uint8  `json:"retry_cnt"`
	RNRRetry  uint8  `json:"rnr_retry"`
	MaxRD     uint8  `json:"max_rd_atomic"`
	MaxDestRD uint8  `json:"max_dest_rd_atomic"`
	OnlyRecv  bool   `json:"only_recv,omitempty"` // stay in RTR
}

// CM has the parameters of rdma_cm.
type CM struct {
	// HOST:PORT. In listen: of the target; port 0 means any port. In dial: of the tester.
	Addr string `json:"addr,omitempty"`
	Data []byte `json:"private_data,omitempty"` // in dial, accept and reject
	// In dial and accept: outstanding READs and atomics that the target accepts.
	ReadsIn uint8 `json:"responder_resources"`
	// READs and atomics that the target may have outstanding.
	ReadsOut uint8 `json:"initiator_depth"`
}

// Send is a work request of the target.
type Send struct {
	// SEND, SEND_WITH_IMM, SEND_WITH_INV, RDMA_WRITE, RDMA_WRITE_WITH_IMM, RDMA_READ, CMP_SWAP,
	// FETCH_ADD.
	Opcode     string `json:"opcode"`
	RemoteAddr uint64 `json:"remote_addr,omitempty"`
	RKey       uint32 `json:"rkey,omitempty"`
	Imm        uint32 `json:"imm,omitempty"`
	CompareAdd uint64 `json:"compare_add,omitempty"`
	Swap       uint64 `json:"swap,omitempty"`
	Solicited  bool   `json:"solicited,omitempty"`
	Fence      bool   `json:"fence,omitempty"`
	Invalidate uint32 `json:"invalidate,omitempty"` // the tester's key in SEND_WITH_INV
}

// Reply is the target's answer. Error is empty if the request has succeeded.
type Reply struct {
	Error string   `json:"error,omitempty"`
	Name  string   `json:"name,omitempty"` // of the device
	Addr  []string `json:"addr,omitempty"` // addresses of its port, if known
	// Over iWARP it supports atomics and immediate data, which are optional.
	RFC7306     bool         `json:"rfc7306,omitempty"`
	QP          int          `json:"qp,omitempty"`
	QPN         uint32       `json:"qpn,omitempty"`
	RemoteAddr  uint64       `json:"remote_addr,omitempty"`
	RKey        uint32       `json:"rkey,omitempty"`
	Data        []byte       `json:"data,omitempty"`
	Intact      bool         `json:"intact,omitempty"`
	State       string       `json:"state,omitempty"`
	Completions []Completion `json:"completions,omitempty"`
	Port        uint16       `json:"port,omitempty"`
	// The name in librdmacm without RDMA_CM_EVENT_: CONNECT_REQUEST, ESTABLISHED.
	Event    string `json:"event,omitempty"`
	ReadsIn  uint8  `json:"responder_resources,omitempty"`
	ReadsOut uint8  `json:"initiator_depth,omitempty"`
}

// Completion is a work completion. Status is libibverbs' name without IBV_WC_, such as SUCCESS and
// REM_ACCESS_ERR.
type Completion struct {
	WRID    uint64 `json:"wr_id"`
	Status  string `json:"status"`
	Opcode  string `json:"opcode"`
	ByteLen uint32 `json:"byte_len"`
	Imm     uint32 `json:"imm,omitempty"`
	WithImm bool   `json:"with_imm,omitempty"`
	Inv     uint32 `json:"invalidated,omitempty"` // the target's invalidated key
	WithInv bool   `json:"with_inv,omitempty"`
	SrcQP   uint32 `json:"src_qp,omitempty"` // of a datagram
}
