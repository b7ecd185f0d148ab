// Package stack defines the needs of a transport in a network stack: addresses and routes,
// datagrams for RoCE ([DatagramPort]), byte streams for iWARP ([Stream]), and whole Ethernet frames
// for raw packet queue pairs ([FramePort]).
//
// Each implementation is a package below this one. Package netstack is a host on gVisor over an
// Ethernet link. A program opens a [Network] there and passes it to rdmatransport.Open. For an
// unsupported feature, an implementation returns a nil port, or an error that wraps
// [errors.ErrUnsupported]. It has no stubs.
//
// # Optional interfaces
//
// The values that an implementation returns may implement further interfaces. Transports find them
// by a type assertion, and work without them.
//
//   - [FamilyListener]: a [Network] listens for connections of one IP version
//   - [PacketListener]: a [Network] opens UDP sockets, since package net cannot use its addresses
//   - [Clocked]: a [Network] has a time of its own
//   - [Departures]: a [NIC] reports hosts that have left the network
//   - [Shared]: a [DatagramPort] shares its addresses with other processes
//   - [Backlogged]: datagrams may wait on a [Path]
//   - [Queued]: datagrams of a [Path] wait in a queue of the adapter, which says when it has room
//   - [ReadNotifier]: a [Stream] can be waited for without a goroutine
//   - [Authenticated]: a [Stream] knows the identity of its peer
//
// ARCHITECTURE.md lists who implements each, who asks for it, and what is lost without it.
package stack

import (
	"context"
	"net"
	"net/netip"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/idle"
)

// PollingEndsAfter is the time after its last [NIC.Poll] for which an application counts as
// polling. Meanwhile nothing else may receive for it.
const PollingEndsAfter = idle.PollingEndsAfter

// Network is a host as transports see it.
type Network interface {
	// NICs returns the host's interfaces in the order in which they were given. Each is a port
	// of the RDMA device.
	NICs() []NIC
	// DialStream opens a TCP connection. If laddr is invalid or its port is 0, the host
	// chooses. The error wraps that of ctx, or one of ECONNREFUSED, ETIMEDOUT, EHOSTUNREACH,
	// ENETUNREACH, EADDRINUSE and EADDRNOTAVAIL.
	DialStream(ctx context.Context, laddr, raddr netip.AddrPort) (Stream, error)
	// ListenStream listens for TCP connections. An unspecified address means all of the host's
	// addresses. The error wraps EADDRINUSE or EADDRNOTAVAIL.
	ListenStream(laddr netip.AddrPort) (StreamListener, error)
}

// FamilyListener is a Network that can listen for connections of one IP version only.
type FamilyListener interface {
	// ListenFamily is like ListenStream, but an unspecified address means all of the host's addresses
	// of the same IP version. Another listener may use the same port with the other version.
	ListenFamily(laddr netip.AddrPort) (StreamListener, error)
}

// PacketListener is a Network with addresses of its own, which package net cannot use.
type PacketListener interface {
	// ListenPacket opens a UDP socket. An unspecified address means all of the host's addresses. The
	// error wraps EADDRINUSE or EADDRNOTAVAIL.
	ListenPacket(laddr netip.AddrPort) (net.PacketConn, error)
}

// NIC is one interface of a host. Its methods may be called from any goroutine.
type NIC interface {
	// Name is the link's name: an interface name, or "pipe0".
	Name() string
	// MAC is the Ethernet address, six bytes.
	MAC() net.HardwareAddr
	// MTU is the largest IP packet in bytes.
	MTU() int
	// GIDs returns the addresses of the GID table by index. The link-local address made from
	// the MAC (EUI-64) comes first, then the others in the order in which they were added, as
	// in Linux. An address keeps its index. A removed address leaves a hole, the zero Addr,
	// which the next new address fills. On the machine's own interfaces, whose addresses come and
	// go, one that comes back gets its former index if that is a hole, and the link-local address
	// stays listed while it is gone. A host without the link-local address may list another address
	// at index 0 as well.
	GIDs() []netip.Addr
	// State is the state of the link.
	State() LinkState
	// Watch sets the function to call after each change, on the goroutine that made or detected the
	// change. Nil ends the calls.
	Watch(f func(Change))
	// Counters returns the traffic counters of the datagram port.
	Counters() Counters
	// Datagrams returns the interface's port for RoCE packets, or nil if it carries none.
	Datagrams() DatagramPort
	// Frames returns the interface's port for whole Ethernet frames, or nil if it carries none.
	// Without it there is no RoCE v1.
	Frames() FramePort
	// Source returns the source address for packets to dst; direct is true if the route has no
	// gateway. The error wraps ENETUNREACH if the interface has no route to dst, and EINVAL if
	// dst is neither a host's nor a multicast address.
	Source(dst netip.Addr) (src netip.Addr, direct bool, err error)
	// Resolve waits until the MAC address of the next hop from src to dst is known, or ctx
	// ends.
	Resolve(ctx context.Context, src, dst netip.Addr) error
	// Poll receives pending frames on the caller's goroutine, without waiting, if the link is a
	// Poller. It returns false if there were none. The caller must not hold a lock that a
	// receiver takes.
	Poll() bool
	// EndPoll says that the caller will not call Poll again soon. Without it, a frame that arrives
	// after the last Poll may wait for up to two milliseconds until the interface's own goroutine
	// receives it.
	EndPoll()
	// Join starts to receive the datagrams of a multicast group, and reports the membership to
	// routers and switches (IGMP, MLD). Joins are counted.
	Join(group netip.Addr) error
	// Leave reverts one Join.
	Leave(group netip.Addr) error
}

// Departures is a NIC that reports hosts that have left the network for good, for example on a
// medium that detects a killed process.
type Departures interface {
	// WatchDepartures sets the function to call with each address of a departed host, after its last
	// packets have been received. TCP connections with the host then end within a second, as by a
	// timeout. Nil ends the calls.
	WatchDepartures(f func(addr netip.Addr))
}

// LinkState is the state of an interface's link.
type LinkState = link.State

// The states of a link.
const (
	LinkUp        = link.Up
	LinkNoCarrier = link.NoCarrier
	LinkDisabled  = link.Disabled
	LinkRemoved   = link.Removed
)

// Change is a kind of change of an interface.
type Change uint8

// The changes that NIC.Watch reports.
const (
	GIDsChanged  Change = iota // an address was added or removed
	LinkWentDown               // State is not LinkUp any more
	LinkCameUp                 // State is LinkUp again
	// State is LinkRemoved, for good. If the link was up, LinkWentDown precedes it, unless the host is
	// closing.
	LinkGone
)

// Counters count the traffic of an interface's datagram port since the port was created. Traffic of
// the frame port is not included, except in TxErrors.
type Counters struct {
	TxFrames    uint64 // written to the link; a superframe counts once
	TxDatagrams uint64 // in TxFrames
	TxErrors    uint64 // frames that the link refused, including a FrameSender's
	TxNoRoute   uint64 // frames lost because neighbour resolution failed
	RxFrames    uint64 // passed to the receiver; a superframe counts once
	RxMalformed uint64 // dropped for a wrong length, checksum or source address
	RxDropped   uint64 // dropped because no receiver was installed

	Sent, Received Traffic // over the link, without loopback inside the process
}

// Traffic counts RoCE packets as on the wire: each segment of a superframe counts.
type Traffic struct {
	Packets   uint64
	Multicast uint64 // multicast packets among Packets
	Bytes     uint64 // of Ethernet frames without FCS
}
