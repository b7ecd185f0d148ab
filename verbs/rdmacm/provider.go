package rdmacm

import (
	"context"
	"io"
	"net/netip"

	"github.com/softrnic/softrnic/verbs"
)

// This file has the interfaces that a provider implements, and their arguments. An application needs only Route of it.
//
// Division of labour: this package owns IDs, event channels and port numbers, and moves QPs through their states. A provider
// exchanges the messages that establish and end connections, which are IB CM datagrams for RoCEv2 and MPA frames over TCP
// for iWARP, with their retransmissions and timeouts, and reports events.

// Provider has the methods that a verbs.Provider needs in addition to support rdma_cm.
type Provider interface {
	// Route returns the route from this device to dst, from src if that is valid. It does not block. It fails if the device
	// has no route to dst, or does not have the address src.
	Route(transport verbs.Transport, src, dst netip.Addr) (Route, error)
	// Resolve resolves the MAC address of the neighbour on the route (ARP, neighbour discovery). It waits until that
	// answers, or ctx ends.
	Resolve(ctx context.Context, r Route) error

	// Listen listens for connection requests to an address, or to all addresses of the device if it is unspecified. For
	// each request it calls h with a ConnectRequest and a new ProviderConn, and later with that connection's events. At most
	// attr.Backlog requests wait to be accepted or rejected; further requests are rejected, or lost so that the peer asks again.
	// Where anybody can forge a request, as with datagrams, so many of peers that have shown that they are there wait
	// beside them, so that others do not take their places.
	Listen(attr *ListenAttr, h Handler) (io.Closer, error)
	// Connect sends a connection request, or in port space UDP a service ID resolution request. The outcome is passed to h.
	Connect(attr *ConnectAttr, h Handler) (ProviderConn, error)

	// JoinMulticast makes the route's port join a group. h is called with MulticastJoin or MulticastError.
	JoinMulticast(r Route, group netip.Addr, h Handler) (io.Closer, error)
}

// PortHolder is a Provider whose addresses other processes have as well.
type PortHolder interface {
	Provider
	// HoldPort reserves a port of an address, or of all addresses of the device if it is unspecified, for this process until
	// the closer is closed, and may wait for the others. The error wraps EADDRINUSE if another process has the port.
	HoldPort(space PortSpace, addr netip.AddrPort) (io.Closer, error)
}

// Route is a route from a device to an address.
type Route struct {
	Transport verbs.Transport
	Src, Dst  netip.Addr
	Port      uint8     // of the device
	GIDIndex  int       // of Src
	MTU       verbs.MTU // the largest path MTU
	TOS       uint8     // IP type of service, as set on the ID
	SL        uint8     // service level that the peer's request asks for
}

// ListenAttr has the arguments of Provider.Listen. An unspecified address of either family stands for all addresses of both,
// and with AFOnly for those of its own family: another listener may have the same port for the other. A provider that cannot tell
// the families apart takes requests of both, which this package then rejects, and one listener.
type ListenAttr struct {
	Transport verbs.Transport
	Space     PortSpace
	Addr      netip.AddrPort
	AFOnly    bool // SetAFOnly was called
	Backlog   int
	TOS       uint8 // IP type of service of the packets that the provider sends for the listener, as set on the ID
}

// ConnectAttr has the arguments of Provider.Connect.
type ConnectAttr struct {
	Route
	Space      PortSpace
	LocalPort  uint16
	RemotePort uint16
	QPType     verbs.QPType
	AckTimeout uint8 // local ACK timeout to ask for, 4.096 µs × 2^n; 0: the provider chooses
	Param      ConnParam
}

// Handler handles the events of connections. A provider calls it on a goroutine of its own, with no lock held, and with one
// event at a time for one connection. The handler does not block, and may call the connection's methods.
type Handler func(*ConnEvent)

// ConnEvent is an event of a connection.
type ConnEvent struct {
	// Type is ConnectRequest, ConnectResponse, Established, Rejected, Unreachable, ConnectError, Disconnected, TimewaitExit,
	// MulticastJoin or MulticastError. After ConnectResponse, the QP is moved to RTS and Establish is called.
	Type EventType
	// Status is 0, a negative errno, or for Rejected the reason: see Event.Status.
	Status int
	// Conn is the connection; in a ConnectRequest it is new.
	Conn ProviderConn
	// Route, LocalPort and RemotePort are set in a ConnectRequest, from this side's view.
	Route
	LocalPort, RemotePort uint16
	// QPType is, in a ConnectRequest, the type of QP that the peer asks for: RC if 0, or XRC_RECV.
	QPType verbs.QPType
	// Param has the peer's parameters. Its depths are swapped to this side's view, as in rdma_cm. UD is set in port space
	// UDP.
	Param ConnParam
	UD    UDParam
}

// ProviderConn is the provider's half of a connection. Any goroutine may call its methods, which do not block. A method that
// is not allowed in the connection's state returns an error and changes nothing.
type ProviderConn interface {
	// QPAttr returns the attributes for the QP's transition to a state, as both sides have agreed on (rdma_init_qp_attr).
	QPAttr(to verbs.QPState) (verbs.QPAttr, verbs.QPAttrMask, error)
	// Accept accepts a ConnectRequest. The QP is ready to receive. In port space UDP, qkey is the QP's Q_Key.
	Accept(param *ConnParam, qkey uint32) error
	// Establish confirms a ConnectResponse. The QP is in RTS.
	Establish() error
	// Reject rejects a ConnectRequest or a ConnectResponse.
	Reject(privateData []byte) error
	// Disconnect ends an established connection; Disconnected follows, and later TimewaitExit. After a Disconnected that the
	// peer has caused, it confirms that.
	Disconnect() error
	// Notify reports that the QP has received a message (IBV_EVENT_COMM_EST). It has the effect of the last message of the
	// peer's handshake. The error may be EISCONN if that has come already.
	Notify() error
	// Close ends the connection, with the message to the peer that the state requires. No event follows.
	Close()
}
