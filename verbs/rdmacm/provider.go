package rdmacm

import (
	"context"
	"io"
	"net/netip"

	"github.com/softrnic/softrnic/verbs"
)

// This file is the seam between rdma_cm's front end and what sets connections up on the wire: IB CM datagrams for
// RoCEv2, MPA over TCP for iWARP. An application never needs it.
//
// The front end owns IDs, event channels, port numbers, and moves QPs through their states. A provider exchanges the
// messages, with their retransmissions and time-outs, and reports what came of it.

// Provider is what a verbs.Provider implements besides, to be used with rdma_cm.
type Provider interface {
	// Route finds how dst is reached from this device, from src if that is valid. It does not wait. An error means that
	// the device has no way to dst, or not the address src.
	Route(transport verbs.Transport, src, dst netip.Addr) (Route, error)
	// Resolve waits until the neighbour on the route answers (ARP, neighbour discovery), or ctx ends.
	Resolve(ctx context.Context, r Route) error

	// Listen takes connection requests for an address, or for all of the device's if it is unspecified. Each arrives at
	// h as a ConnectRequest with a ProviderConn of its own. At most attr.Backlog of them are kept that nobody has accepted or
	// rejected; more are turned away. Later events of those connections arrive at h too.
	Listen(attr *ListenAttr, h Handler) (io.Closer, error)
	// Connect sends a connection request (for UDP a service ID resolution request); its outcome arrives at h.
	Connect(attr *ConnectAttr, h Handler) (ProviderConn, error)

	// JoinMulticast makes the port of the route receive a group; h gets MulticastJoin or MulticastError.
	JoinMulticast(r Route, group netip.Addr, h Handler) (io.Closer, error)
}

// Route is a way from a device to an address.
type Route struct {
	Transport verbs.Transport
	Src, Dst  netip.Addr
	Port      uint8     // of the device
	GIDIndex  int       // of Src
	MTU       verbs.MTU // the largest path MTU
	TOS       uint8     // type of service, as set on the ID
	SL        uint8     // service level, as the peer asked for
}

// ListenAttr says what to listen for. An unspecified address of either family means all addresses of both: the front
// end turns away what a listener for one family is not to see.
type ListenAttr struct {
	Transport verbs.Transport
	Space     PortSpace
	Addr      netip.AddrPort
	Backlog   int
	TOS       uint8 // type of service of what a provider sends on its own stream, as set on the ID
}

// ConnectAttr says whom to connect to and how.
type ConnectAttr struct {
	Route
	Space      PortSpace
	LocalPort  uint16
	RemotePort uint16
	QPType     verbs.QPType
	AckTimeout uint8 // local ACK timeout to ask for, 4.096 µs × 2^n; 0 lets the provider choose
	Param      ConnParam
}

// Handler takes a connection's events. It is called on a goroutine of the provider, with no lock held, one call at a
// time for one connection; it must not wait, and may call the connection's methods.
type Handler func(*ConnEvent)

// ConnEvent is what happened to a connection on the wire.
type ConnEvent struct {
	// Type is ConnectRequest, ConnectResponse (the peer accepted: move the QP to RTS, then Establish), Established,
	// Rejected, Unreachable, ConnectError, Disconnected, TimewaitExit, MulticastJoin or MulticastError.
	Type EventType
	// Status is 0, a negative errno, or for Rejected the reason as rdma_cm reports it.
	Status int
	// Conn is the connection; in a ConnectRequest it is new.
	Conn ProviderConn
	// Route, LocalPort and RemotePort are set in a ConnectRequest, seen from this side.
	Route
	LocalPort, RemotePort uint16
	// QPType is, in a ConnectRequest, what the peer's QP is to be connected to: RC if 0, or XRC_RECV.
	QPType verbs.QPType
	// Param is what the peer sent; its depths are swapped to this side's view, as rdma_cm does. For UDP, UD is set.
	Param ConnParam
	UD    UDParam
}

// ProviderConn is one end of a connection. Its methods may be called from any goroutine and do not wait. A method that does
// not fit the connection's state gives an error and changes nothing.
type ProviderConn interface {
	// QPAttr is what the QP's transition to the given state needs, with what both sides agreed on
	// (rdma_init_qp_attr).
	QPAttr(to verbs.QPState) (verbs.QPAttr, verbs.QPAttrMask, error)
	// Accept answers a ConnectRequest, once the QP is ready to receive. For UDP, qkey is the QP's Q_Key.
	Accept(param *ConnParam, qkey uint32) error
	// Establish answers a ConnectResponse, once the QP is in RTS.
	Establish() error
	// Reject turns a ConnectRequest or a ConnectResponse down.
	Reject(privateData []byte) error
	// Disconnect ends an established connection; Disconnected follows, and later TimewaitExit. After the peer's
	// Disconnected it acknowledges that.
	Disconnect() error
	// Notify says that the QP saw the peer's first message (IBV_EVENT_COMM_EST): as good as its last handshake message.
	Notify() error
	// Close forgets the connection; the peer is told what fits the state. No event follows.
	Close()
}
