// Package stack says what a transport needs of a network stack, and nothing more: addresses and routes, datagrams for
// RoCE ([DatagramPort]), byte streams for iWARP ([Stream]), and whole Ethernet frames for raw packet queue pairs
// ([FramePort]).
//
// An implementation is one package below this one; package netstack is a host on gVisor over an Ethernet link. A program
// hands what it opened there, a [Network], to rdmatransport.Open. For what it cannot do, an implementation returns a nil
// port or an error that wraps [errors.ErrUnsupported]; it has no stubs.
package stack

import (
	"context"
	"net"
	"net/netip"

	"github.com/softrnic/softrnic/link"
)

// Network is a host as transports see it.
type Network interface {
	// NICs are the host's interfaces in the order they were given; each is a port of the RDMA device.
	NICs() []NIC
	// DialStream opens a TCP connection. An invalid laddr, or port 0 in it, lets the host choose. The error wraps that of
	// ctx, or one of ECONNREFUSED, ETIMEDOUT, EHOSTUNREACH, ENETUNREACH, EADDRINUSE and EADDRNOTAVAIL.
	DialStream(ctx context.Context, laddr, raddr netip.AddrPort) (Stream, error)
	// ListenStream listens for TCP connections; an unspecified address means all of the host's. The error wraps EADDRINUSE
	// or EADDRNOTAVAIL.
	ListenStream(laddr netip.AddrPort) (StreamListener, error)
}

// FamilyListener is a Network that can listen for connections of one IP version only.
type FamilyListener interface {
	// ListenFamily is ListenStream, but an unspecified address means all of the host's of its own family. Another listener may
	// have the port at those of the other.
	ListenFamily(laddr netip.AddrPort) (StreamListener, error)
}

// NIC is one interface of a host. Its methods may be called from any goroutine.
type NIC interface {
	// Name is the link's: an interface name, or "pipe0".
	Name() string
	// MAC is the Ethernet address, six bytes.
	MAC() net.HardwareAddr
	// MTU is the largest IP packet in bytes.
	MTU() int
	// GIDs are the addresses that make the GID table, by index: the link-local address made from the MAC (EUI-64) first,
	// then the others in the order they were added, as Linux lists them. An address keeps its index. One that is removed
	// leaves a hole, the zero Addr, which the next one added takes. A host without the link-local address may have another
	// at index 0 as well.
	GIDs() []netip.Addr
	// State is the state of the link.
	State() LinkState
	// Watch has f called after each change, on the goroutine that made the change or learned of it. A nil f ends that.
	Watch(f func(Change))
	// Counters count what the datagram port has sent, received and dropped.
	Counters() Counters
	// Datagrams is the interface's port for RoCE packets; nil if it carries none.
	Datagrams() DatagramPort
	// Frames is the interface's port for whole Ethernet frames; nil if it carries none, and so no RoCE v1 either.
	Frames() FramePort
	// Source is the address that packets to dst leave the interface from; direct is true if no gateway is on the way. The
	// error wraps ENETUNREACH if the interface has no route to dst, EINVAL if dst is the address of neither a host nor a
	// multicast group.
	Source(dst netip.Addr) (src netip.Addr, direct bool, err error)
	// Resolve waits until the MAC address of the next hop from src to dst is known, or ctx ends.
	Resolve(ctx context.Context, src, dst netip.Addr) error
	// Poll receives what has arrived, on the caller's goroutine and without waiting, if the link can be polled. It returns
	// false if nothing had arrived. The caller must not hold a lock that a receiver takes.
	Poll() bool
	// EndPoll says that the caller will not call Poll again soon. Without it, what arrives after the last Poll may wait for a
	// millisecond or two before the interface receives it by itself.
	EndPoll()
	// Join receives the datagrams of a multicast group, and announces that to routers and switches (IGMP, MLD). Joins are
	// counted.
	Join(group netip.Addr) error
	// Leave undoes one Join.
	Leave(group netip.Addr) error
}

// Departures is a NIC that learns of hosts that have left the network for good, as that of a process that was killed does on a
// medium that ends with its process.
type Departures interface {
	// WatchDepartures has f called with each address of such a host, after what it sent was received. Its TCP connections end
	// within a second, as by a timeout. A nil f ends that.
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
	GIDsChanged Change = iota // an address was added or removed
	LinkWent                  // State is LinkUp no longer
	LinkCame                  // State is LinkUp again
	LinkLost                  // State is LinkRemoved, for good. LinkWent precedes it if the link was up, unless the host is closing
)

// Counters count the traffic of an interface's datagram port since it was made. That of its frame port is not counted,
// except in TxErrors.
type Counters struct {
	TxFrames    uint64 // written to the link; a superframe is one
	TxDatagrams uint64 // in those
	TxErrors    uint64 // frames that the link refused, those of a FrameSender among them
	TxNoRoute   uint64 // frames lost because the neighbour's address was not found
	RxFrames    uint64 // handed to the receiver; a superframe is one
	RxMalformed uint64 // dropped for a wrong length, checksum or source address
	RxDropped   uint64 // dropped because no receiver was installed

	Sent, Received Traffic // over the link, without what loops back inside the process
}

// Traffic counts RoCE packets as they are on the wire: each segment of a superframe is one.
type Traffic struct {
	Packets   uint64
	Multicast uint64 // how many of Packets were multicast
	Bytes     uint64 // Ethernet frames without FCS
}
