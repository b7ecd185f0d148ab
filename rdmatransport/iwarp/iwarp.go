// Package iwarp configures iWARP (RDMA over TCP) on a device of package rdmatransport, and
// documents the supported features. Work requests, queue pairs and completions are those of package
// verbs. For programs that parse packets, packages mpa, ddp and rdmap have iWARP's headers and
// framing.
//
// A device supports RDMAP (RFC 5040, RFC 7306) over DDP (RFC 5041) over MPA (RFC 5044, RFC 6581)
// over the TCP of its host's network stack. A program selects it for each connection, with rdma_cm:
//
//	conn, err := rdmacm.Dial(ctx, dev, "10.0.0.2:7471", &rdmacm.Config{Transport: verbs.IWARP})
//
// This package is only needed for a configuration other than the default, which is passed when the
// device is opened:
//
//	dev, err := rdmatransport.Open(host, &rdmatransport.Config{IWARP: iwarp.Config{NoCRC: true}})
//
// # Supported features
//
// QPs of type RC, with SEND, SEND with Invalidate, WRITE, WRITE with immediate data, READ, 64-bit
// atomics, and local bind and invalidate. They may use shared receive queues. Peers may be
// hardware, Linux's siw, or this package. Messages between two hosts of one process on a switch of
// package pipe are copied without TCP.
//
// The differences from RoCE that a verbs program notices:
//
//   - A QP moves from INIT directly to RTS, by rdma_cm: it gets a TCP connection, not a peer's QP
//     number.
//   - SEND and WRITE complete when TCP's send buffer has taken them. TCP then delivers them, or the
//     connection breaks. A completion does not mean that the data has arrived.
//   - SEND has no immediate data (RFC 7306 §6).
//   - The destination region of a READ needs no remote access right: the peer gets an STag that is
//     only valid for the READs of this connection.
//   - A peer's SEND with Invalidate can invalidate the STag of a region, if the region's PD has
//     only this connection, and no QP of RoCE.
//   - A SEND without a receive request ends the connection: there is no RNR NAK.
//
// # Limits
//
// A message has up to 1 GiB. IRD and ORD, the outstanding READs and atomics in each direction, are
// at most 128. Unless the client requests peer-to-peer mode (RFC 6581), the server cannot send
// before the client has: see [Config.SendFirst]. Each connected QP has a TCP connection of the
// host. It also has a goroutine while it is in use, or always if the host's streams are no
// stack.ReadNotifier.
//
// # Monitoring
//
// The documentation of package rdmatransport lists the counters. rdmatransport.Config.Trace is
// a function to be called for the set-up and the end of each stream.
package iwarp

// Config configures the set-up of a device's connections. The zero Config is the default.
type Config struct {
	// NoCRC means that this end needs no CRCs. FPDUs have none if the peer agrees. RFC 5044 §4.4
	// leaves this choice to an administrator.
	NoCRC bool
	// Markers asks the peer to send markers.
	Markers bool
	// Revision is the MPA revision of the requests that this end sends: 1 (RFC 5044) or 2 (RFC
	// 6581). The default, 0, sends revision 2 first. If the peer closes the connection without a
	// reply, as a peer that only supports revision 1 does (RFC 6581 §10), a second connection is
	// tried with revision 1. Revision 1 negotiates neither IRD, ORD nor peer-to-peer mode.
	Revision uint8
	// NoPeerToPeer disables the request for peer-to-peer mode. In this mode, the initiator sends a
	// ready-to-receive message, so that the responder may send data first.
	NoPeerToPeer bool
	// SendFirst lets the responder send before the initiator has, a tenth of a second after the
	// reply. RFC 5044 §7.1.2 forbids that. It is for servers that send first to clients on siw,
	// which does not request peer-to-peer mode.
	SendFirst bool
	// LongFPDUs allows FPDUs longer than a TCP segment, up to 64,768 bytes of ULPDU, if the links
	// of both hosts segment TCP and the peer is a device of this package with LongFPDUs too. Such
	// devices recognize each other by reserved bits of MPA's frames of revision 2, which must be
	// zero according to RFC 5044 §7.1.1. They are zero otherwise.
	LongFPDUs bool
}
