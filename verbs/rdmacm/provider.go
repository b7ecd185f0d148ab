package rdmacm

import (
	"context"
	"io"
	"net/netip"

	"github.com/softrnic/softrnic/verbs"
)

// This file has the interfaces that a provider implements, and their arguments. Applications need
// only Route.
//
// This package owns IDs, event channels and port numbers, and moves QPs through their states. A
// provider exchanges the messages that establish and end connections: IB CM datagrams for RoCEv2,
// and MPA frames over TCP for iWARP. It handles their retransmissions and timeouts, and reports
// events.
//
// These interfaces are optional, and found by a type assertion. ARCHITECTURE.md lists what is lost
// without each.
//
//   - [Provider]: a [verbs.Provider] supports rdma_cm
//   - [PortHolder]: a [Provider] reserves ports among the processes that share its addresses
//   - [AccessController]: a [Provider] limits and identifies the hosts that reach its device
//   - [AuthenticatedConn]: a [ProviderConn] knows the identity of its peer

// Provider has the methods that a verbs.Provider needs in addition to support rdma_cm.
type Provider interface {
	// Route returns the route from this device to dst, from src if that is valid. It does not
	// block. It fails if the device has no route to dst, or does not have the address src.
	Route(transport verbs.Transport, src, dst netip.Addr) (Route, error)
	// Resolve resolves the MAC address of the neighbour on the route (ARP, neighbour discovery). It
	// waits for the answer, or until ctx ends.
	Resolve(ctx context.Context, r Route) error

	// Listen listens for connection requests to an address, or to all addresses of the device if it
	// is unspecified. For each request it calls h with a ConnectRequest and a new ProviderConn, and
	// later with that connection's events. At most attr.Backlog requests wait to be accepted or
	// rejected; further requests are rejected, or dropped so that the peer retransmits. Where the
	// source of a request can be forged, as in a datagram, the provider validates source addresses.
	// Peers with a validated address and all others then have separate backlogs of this size, so
	// that forged requests cannot fill both.
	Listen(attr *ListenAttr, h Handler) (io.Closer, error)
	// Connect sends a connection request, or in port space UDP a service ID resolution request. The
	// outcome is passed to h.
	Connect(attr *ConnectAttr, h Handler) (ProviderConn, error)

	// JoinMulticast makes the route's port join a group, unless the member only sends to it. h is
	// called with MulticastJoin or MulticastError.
	JoinMulticast(r Route, group netip.Addr, sendOnly bool, h Handler) (io.Closer, error)
}

// PortHolder is implemented by a Provider that shares its addresses with other processes.
type PortHolder interface {
	// HoldPort reserves a port of an address, of all addresses of the device's if it is the zero
	// Addr, or of all of one family if it is 0.0.0.0 or ::. The reservation for this process ends
	// when the closer is closed. HoldPort may wait for other processes. The error wraps EADDRINUSE
	// if another process has the port at this address, and EADDRNOTAVAIL if one of the two is for all
	// addresses, and they have a family in common: afOnly limits the port to addr's.
	HoldPort(space PortSpace, addr netip.AddrPort, afOnly bool) (io.Closer, error)
}

// AccessController is implemented by a Provider that may limit the hosts that reach its device. The
// provider applies the limit to the device's own connections and packets. The methods do not block.
type AccessController interface {
	// Allows reports whether a host may reach the device, and the device the host.
	Allows(host netip.Addr) bool
	// Admits is Allows for a request or datagram of the host that came by another socket. It counts
	// a host that may not.
	Admits(host netip.Addr) bool
	// Identify returns the authenticated identity of the host with an address, and whether it has
	// one.
	Identify(host netip.Addr) (Identity, bool)
}

// AuthenticatedConn is implemented by a ProviderConn whose network may authenticate the peer of
// each connection. The method does not block.
type AuthenticatedConn interface {
	// PeerIdentity returns the peer's identity, and false if the peer has not authenticated itself.
	PeerIdentity() (Identity, bool)
}

// Route is a route from a device to an address.
type Route struct {
	Transport verbs.Transport
	Src, Dst  netip.Addr
	PortNum   uint8     // of the device
	GIDIndex  int       // of Src
	MTU       verbs.MTU // the largest path MTU
	TOS       uint8     // IP type of service, as set on the ID
	SL        uint8     // service level that the peer's request asks for
}

// ListenAttr has the arguments of Provider.Listen. The zero Addr means all addresses of both
// families, 0.0.0.0 those of IPv4, and :: those of IPv6. Another listener may use the same port for
// the other family. A provider that cannot distinguish the families accepts one listener and the
// requests of both. This package then rejects the requests of the wrong family.
type ListenAttr struct {
	Transport verbs.Transport
	PortSpace PortSpace
	Addr      netip.AddrPort
	AFOnly    bool // excludes other processes from the port at addresses of Addr's family only
	Backlog   int
	// IP type of service of the packets that the provider sends for the listener, as set on the ID.
	TOS uint8
}

// ConnectAttr has the arguments of Provider.Connect.
type ConnectAttr struct {
	Route
	PortSpace  PortSpace
	LocalPort  uint16
	PeerPort   uint16
	QPType     verbs.QPType
	AckTimeout uint8 // requested local ACK timeout, 4.096 µs × 2^n; 0: the provider chooses
	Param      ConnParam
}

// Handler handles the events of connections. A provider calls it on a goroutine of its own, with no
// lock held, and with one event at a time for one connection. The handler does not block, and may
// call the connection's methods.
type Handler func(*ConnEvent)

// ConnEvent is an event of a connection.
type ConnEvent struct {
	// Type is ConnectRequest, ConnectResponse, Established, Rejected, Unreachable, ConnectError,
	// Disconnected, TimewaitExit, MulticastJoin or MulticastError. After ConnectResponse, the QP is
	// moved to RTS and Establish is called.
	Type EventType
	// Status is 0, a negative errno, or for Rejected the reason: see Event.Status.
	Status int
	// Conn is the connection; in a ConnectRequest it is new.
	Conn ProviderConn
	// Route, LocalPort and PeerPort are set in a ConnectRequest, from this side's view.
	Route
	LocalPort, PeerPort uint16
	// QPType is, in a ConnectRequest, the type of QP that the peer requests: RC if 0, or XRC_RECV.
	QPType verbs.QPType
	// Param has the peer's parameters. Its depths are swapped to this side's view, as in rdma_cm.
	// UD is set in port space UDP.
	Param ConnParam
	UD    UDParam
}

// ProviderConn is the provider's half of a connection. Any goroutine may call its methods, which do
// not block. A method that is not allowed in the connection's state returns an error and changes
// nothing.
type ProviderConn interface {
	// QPAttr returns the negotiated attributes for the QP's transition to a state
	// (rdma_init_qp_attr).
	QPAttr(to verbs.QPState) (verbs.QPAttr, verbs.QPAttrMask, error)
	// Accept accepts a ConnectRequest. The QP is ready to receive. In port space UDP, qkey is the
	// QP's Q_Key.
	Accept(param *ConnParam, qkey uint32) error
	// Establish confirms a ConnectResponse. The QP is in RTS.
	Establish() error
	// Reject rejects a ConnectRequest or a ConnectResponse.
	Reject(privateData []byte) error
	// Disconnect ends an established connection; Disconnected follows, and later TimewaitExit. If
	// the peer has disconnected, Disconnect sends the confirmation.
	Disconnect() error
	// Notify reports that the QP has received a message (IBV_EVENT_COMM_EST). It has the effect of
	// the last message of the peer's handshake. If that message has already arrived, the error may
	// be EISCONN.
	Notify() error
	// Close ends the connection, with the message to the peer that the state requires. No event
	// follows.
	Close()
}
