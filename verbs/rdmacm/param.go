package rdmacm

import (
	"fmt"

	"github.com/softrnic/softrnic/verbs"
)

// PortSpace says what a port number means (rdma_port_space, same values).
type PortSpace uint16

const (
	IPoIB PortSpace = 0x0002
	TCP   PortSpace = 0x0106 // reliable connections
	UDP   PortSpace = 0x0111 // datagrams
	IB    PortSpace = 0x013f // any service
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

// MaxDepth, as ResponderResources or InitiatorDepth, is as many as the device has; in Accept, not more than the peer
// can use.
const MaxDepth = 0xff

// ConnParam is what one end of a connection asks for or answers (rdma_conn_param).
type ConnParam struct {
	// PrivateData goes to the peer's application, which on RoCE may see zeros behind it. At most, on RoCE: 56 bytes
	// with Connect, 196 with Accept, 148 with Reject; for UDP 180 with Connect, 136 with Accept.
	PrivateData        []byte
	ResponderResources uint8 // READs and atomics that the peer may have outstanding here
	InitiatorDepth     uint8 // and those that this end will have outstanding there
	FlowControl        bool
	RetryCount         uint8 // 0–7
	RNRRetryCount      uint8 // 0–7, 7 is for ever
	SRQ                bool
	QPNum              uint32 // 24 bits
}

// Defaults is what Connect and Accept take for nil: no private data, MaxDepth, flow control, 7 retries of each kind.
func Defaults() *ConnParam {
	return &ConnParam{ResponderResources: MaxDepth, InitiatorDepth: MaxDepth, FlowControl: true, RetryCount: 7, RNRRetryCount: 7}
}

// UDParam is how to send to a UD QP (rdma_ud_param).
type UDParam struct {
	PrivateData []byte
	AHAttr      verbs.AHAttr
	QPNum       uint32
	QKey        uint32
}
