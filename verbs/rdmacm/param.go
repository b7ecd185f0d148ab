package rdmacm

import (
	"fmt"

	"github.com/softrnic/softrnic/verbs"
)

// PortSpace is a space of port numbers, which determines the type of QP (rdma_port_space, same
// values).
type PortSpace uint16

const (
	IPoIB PortSpace = 0x0002
	TCP   PortSpace = 0x0106 // RC QPs
	UDP   PortSpace = 0x0111 // UD QPs
	IB    PortSpace = 0x013f // any type of QP
)

func (s PortSpace) String() string {
	switch s {
	case IPoIB:
		return "IPOIB"
	case TCP:
		return "TCP"
	case UDP:
		return "UDP"
	case IB:
		return "IB"
	}
	return fmt.Sprintf("invalid port space %#x", uint16(s))
}

// MaxDepth, as ResponderResources or InitiatorDepth, means the device's maximum. In Accept it is
// limited to the peer's request.
const MaxDepth = 0xff

// ConnParam has the parameters of a connection request or reply (rdma_conn_param).
type ConnParam struct {
	// PrivateData is passed to the peer's application. On RoCE, zeros may be appended, and it has
	// at most 56 bytes in Connect, 196 in Accept and 148 in Reject. In port space UDP it has at most
	// 180 in Connect and 136 in Accept.
	PrivateData        []byte
	ResponderResources uint8 // outstanding READs and atomics that this side accepts from the peer
	InitiatorDepth     uint8 // outstanding READs and atomics that this side may send
	FlowControl        bool
	RetryCount         uint8 // 0–7
	RNRRetryCount      uint8 // 0–7; 7 means no limit
	SRQ                bool
	QPNum              uint32 // 24 bits
}

// DefaultConnParam returns the parameters that Connect and Accept use for nil: no private data,
// MaxDepth, flow control, and 7 retries of each kind.
func DefaultConnParam() *ConnParam {
	return &ConnParam{ResponderResources: MaxDepth, InitiatorDepth: MaxDepth, FlowControl: true, RetryCount: 7, RNRRetryCount: 7}
}

// UDParam has the parameters for sending to a UD QP (rdma_ud_param).
type UDParam struct {
	PrivateData []byte
	AHAttr      verbs.AHAttr
	QPNum       uint32
	QKey        uint32
}
