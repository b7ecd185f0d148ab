// Package iwarp configures iWARP (RDMA over TCP) on a device of package rdmatransport, and says
// what the device does over it. Work requests, queue pairs and completions are those of package
// verbs; packages mpa, ddp and rdmap have iWARP's headers and framing, for programs that read
// packets.
//
// A device speaks RDMAP (RFC 5040, RFC 7306) over DDP (RFC 5041) over MPA (RFC 5044, RFC 6581) over
// the TCP of its host's network stack. A program asks for it connection by connection, with
// rdma_cm:
//
//	conn, err := rdmacm.Dial(ctx, dev, "10.0.0.2:7471", &rdmacm.Config{Transport: verbs.IWARP})
//
// It needs this package only if it wants another configuration than the default, which it gives
// where it opens the device:
//
//	dev, err := rdmatransport.Open(host, rdmatransport.IWARP(iwarp.Config{NoCRC: true}))
//
// # What is supported
//
// QPs of type RC, with SEND, SEND with Invalidate, WRITE, WRITE with immediate data, READ, 64-bit
// atomics, and local bind and invalidate. They may use shared receive queues. Peers may be
// hardware, Linux's siw, or this package; messages between two hosts of one process, on one package
// pipe switch, are copied without TCP.
//
// A verbs program notices these differences from RoCE:
//
//   - A QP goes from INIT directly to RTS, by rdma_cm: it is given a TCP connection, not a peer's
//     QP number.
//   - SEND and WRITE complete when TCP's send buffer has taken them, and TCP then delivers them or
//     the connection breaks. A completion does not say that the data has arrived.
//   - SEND has no immediate data (RFC 7306 §6).
//   - The region that a READ places its data in needs no remote access right: the peer is given an
//     STag that is valid only for the READs of this connection.
//   - A peer's SEND with Invalidate can invalidate the STag of a region, if the region's PD has
//     only this connection, and no QP of RoCE.
//   - A SEND that finds no receive request ends the connection: there is no RNR NAK.
//
// # Limits
//
// A message has up to 1 GiB. IRD and ORD, the READs and atomics outstanding in each direction, are
// 128 at most. Unless the client asks for peer-to-peer mode (RFC 6581), the server cannot send
// before the client has: see [Config.SendFirst]. Each connected QP has a TCP connection of the
// host, and on hosts whose streams are no [stack.ReadNotifier], or while it is in use, a goroutine.
//
// # Seeing what happens
//
// The documentation of package rdmatransport lists the counters. rdmatransport.Trace has a function
// called with the set-up and the end of each stream.
package iwarp

// Config is how a device's connections are set up. The zero Config is the default.
type Config struct {
	// NoCRC says that this end does not need CRCs. FPDUs have none if the peer says the same. RFC
	// 5044 §4.4 leaves this choice to an administrator.
	NoCRC bool
	// Markers asks the peer to send markers.
	Markers bool
	// Revision is the MPA revision of the requests that this end sends: 1 (RFC 5044) or 2 (RFC
	// 6581). The default, 0, sends revision 2 first. If the peer closes the connection without a
	// reply, as a peer does that knows only revision 1 (RFC 6581 §10), a second connection is tried
	// with revision 1. Revision 1 negotiates neither IRD, ORD nor peer-to-peer mode.
	Revision uint8
	// NoPeerToPeer does not ask for peer-to-peer mode, in which the initiator sends a
	// ready-to-receive message, so that the accepting side may be the first to send data.
	NoPeerToPeer bool
	// SendFirst lets the accepting side send before the initiator has, a tenth of a second after
	// the reply. RFC 5044 §7.1.2 forbids that. It is for servers that send first to clients on siw,
	// which does not ask for peer-to-peer mode.
	SendFirst bool
	// LongFPDUs has FPDUs be longer than a TCP segment, up to 64,768 bytes of ULPDU, where the
	// links of both hosts segment TCP and the peer is a device of this package that has LongFPDUs
	// too. Such devices recognise each other by reserved bits of MPA's frames of revision 2, which
	// RFC 5044 §7.1.1 has be zero; they are zero otherwise.
	LongFPDUs bool
}
