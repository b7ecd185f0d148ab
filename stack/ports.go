package stack

import (
	"context"
	"encoding/binary"
	"net"
	"net/netip"

	"gvisor.dev/gvisor/pkg/tcpip/header"

	"github.com/softrnic/softrnic/link"
)

// This file is all that a transport may know of a host: a datagram port for RoCEv2, streams for iWARP, and the
// addresses behind them. [Host] implements it over gVisor's netstack; another stack can take its place.

// RoCEv1Type is the EtherType of RoCE v1 (IBTA annex A16).
const RoCEv1Type = 0x8915

// RoCEPort is the UDP destination port of RoCEv2 (IBTA annex A17, IANA).
const RoCEPort = 4791

// Network is a host as transports see it.
type Network interface {
	// NICs are the host's interfaces in the order they were given; each is a port of the RDMA device.
	NICs() []NIC
	// DialStream opens a TCP connection. An invalid laddr lets the host choose; its port 0 likewise.
	DialStream(ctx context.Context, laddr, raddr netip.AddrPort) (Stream, error)
	// ListenStream listens for TCP connections; an unspecified address means all of the host's. What it accepts are
	// Streams.
	ListenStream(laddr netip.AddrPort) (net.Listener, error)
}

// Stream is a TCP connection as iWARP needs it: one that can be written to without waiting, in pieces that are filled
// in place, and read where the data lies.
type Stream interface {
	net.Conn
	// MSS is the payload, in bytes, of a full segment, as both sides and the path allow it.
	MSS() int
	// Offloaded tells whether pieces larger than MSS leave the host uncut, for the link to segment.
	Offloaded() bool
	// Send appends a piece of n bytes, at most MaxPiece, to the send buffer, which calls fill for it, once. It does not
	// wait: false means that the buffer has no room now and nothing was sent; the function given to OnRoom is called
	// when it has. A piece that fits a segment is not spread over two, unless it has to be sent again.
	Send(n int, fill Filler) (bool, error)
	// Crowded tells whether at least n pieces were sent since anything came from the peer. What is small does better to
	// wait then, and go with others: the function given to OnRoom is called when something comes.
	Crowded(n int) bool
	// OnRoom sets the function to call, on a goroutine of the stream, when Send may work again. At most once.
	OnRoom(f func())
	// Wait waits until Receive has something to say. Past the read deadline its error is a timeout.
	Wait() error
	// Receive passes what has arrived to take, in order and in the pieces that it lies in, until there is no more or take
	// returns false. It does not wait. The error is io.EOF at the end of the stream.
	Receive(take Taker) error
	// SetTOS makes tos the type of service (IPv4) or traffic class (IPv6) of what is sent from then on, but for its two
	// lowest bits, which are ECN's.
	SetTOS(tos uint8)
	// CloseWrite sends what is in the send buffer, then FIN.
	CloseWrite() error
	// Abort sends RST and drops what is buffered.
	Abort()
	// Near is the interface of this process where the connection ends, as Path.Near has it.
	Near() NIC
}

// Filler writes a piece of a stream: all of b.
type Filler interface{ Fill(b []byte) }

// Taker takes all of b out of a stream, and tells whether it wants more. b is the stream's, and good until Take returns;
// Take must not call the stream.
type Taker interface{ Take(b []byte) bool }

// MaxPiece is the largest piece that Stream.Send takes, in bytes: what goes into one frame of a link that segments.
const MaxPiece = link.MaxSuperframe - header.TCPTotalHeaderMaximumSize - 1

// NIC is one interface of a host.
type NIC interface {
	Name() string
	MAC() net.HardwareAddr
	// MTU is the largest IP packet in bytes.
	MTU() int
	// GIDs are the addresses that make the GID table, by index: the link-local address made from the MAC (EUI-64)
	// first, then the others, as Linux lists them: an address keeps its index, and one that is removed leaves a hole, the
	// zero Addr, which the next one added takes.
	GIDs() []netip.Addr
	// State is what the link says of its cable.
	State() LinkState
	// Watch has f called after each change, on the goroutine that made it or brings word of it; nil ends that.
	Watch(f func(Change))
	// Counters are what the datagram port has sent, received and dropped.
	Counters() Counters
	// Datagrams is the interface's datagram port.
	Datagrams() DatagramPort
	// Frames is the interface's way for whole Ethernet frames.
	Frames() FramePort
	// Source is the address that packets to dst leave the interface from. direct says that no gateway is on the way.
	// The error wraps ENETUNREACH if the interface has no way to dst, EINVAL if dst is no address of a host
	// or a group.
	Source(dst netip.Addr) (src netip.Addr, direct bool, err error)
	// Resolve waits until the next hop on the way from src to dst has told its MAC, or ctx ends.
	Resolve(ctx context.Context, src, dst netip.Addr) error
	// Poll receives what has arrived on the caller's goroutine, without waiting, where the link can be polled; false if
	// there was nothing. No lock may be held that a receiver takes.
	Poll() bool
	// EndPoll says that the caller polls no more; before, reception may wait a millisecond for the next Poll.
	EndPoll()
	// Join receives a multicast group's datagrams, and tells routers and switches so (IGMP, MLD). Leave undoes one Join.
	Join(group netip.Addr) error
	Leave(group netip.Addr) error
}

// LinkState is the state of an interface's link.
type LinkState = link.State

// The states of a link.
const (
	LinkUp        = link.Up
	LinkNoCarrier = link.NoCarrier
	LinkDisabled  = link.Disabled
)

// Change is what may change about an interface.
type Change uint8

// The changes that NIC.Watch tells of.
const (
	GIDsChanged Change = iota
	LinkWent           // State is no more LinkUp
	LinkCame           // and is again
)

// DatagramPort sends and receives what RoCE packets are in: UDP datagrams on port 4791, and the payloads of Ethernet
// frames of RoCE v1, with the header fields that the ICRC covers in view.
type DatagramPort interface {
	// Path prepares to send from one of the NIC's addresses to another host, to one of its own addresses, or to a group,
	// of which the NIC gets a copy itself if it has joined. It starts
	// to resolve the neighbour but does not wait: what is sent meanwhile is kept, up to a bound, and lost if nobody
	// answers. The error wraps ENETUNREACH if there is no route, EADDRNOTAVAIL if no such source address.
	Path(PathAttr) (Path, error)
	// Sender takes a sender from the port's pool.
	Sender() Sender
	// Receive installs the function that every valid datagram for one of the NIC's addresses, or for a group that it has
	// joined, goes to, on the link's
	// receive goroutine. It may send before it returns. Nil removes it, and waits until no call is running.
	// Datagrams of one flow (addresses and source port) come in order and one at a time, those of others at the same
	// time on several goroutines where the link has several queues. The function must not call Receive.
	Receive(func(*Datagram))
}

// FramePort sends and receives Ethernet frames beside the host.
type FramePort interface {
	// Steer lets s see what passes from now on; nil ends that. Calls for frames that came before may still be running.
	Steer(s *Steering)
	// Sender takes a sender from the port's pool.
	Sender() FrameSender
}

// Steering is who sees the frames of a port, each from the destination address on, without FCS, as it is on the wire:
// one packet, of at most the MTU, its checksums complete. A frame is valid during the call, and not to be changed. Those
// that come are shown on the link's receive goroutines, several at the same time where the link has several queues,
// those that go on a goroutine of the port. A function that is nil sees none.
type Steering struct {
	// Sniff sees all that comes and goes, but not what the host sends to itself. What goes is copied; copies that
	// nobody has time for are lost.
	Sniff func(frame []byte)
	// Take is offered what comes, whoever it is for, but RoCE for one of the host's addresses. It returns true to keep
	// it from the host. All packets of a superframe go the way of the first.
	Take func(frame []byte) bool
	// Rest sees what neither Take nor the host has a use for: what is for another MAC, or for a group that the host is not
	// in.
	Rest func(frame []byte)
}

// FrameSender gathers frames. It is for one goroutine at a time.
type FrameSender interface {
	// Frame adds a frame of n bytes, to be filled in until the next call, from the destination address on. It returns nil
	// if that is less than an Ethernet header, or more than the MTU beside one with two tags: the link refuses a frame whose
	// PacketLen is more than the MTU. A frame that is shorter than Ethernet's least length is padded.
	Frame(n int) []byte
	// Drop takes back the frame that Frame returned last.
	Drop()
	// Flush sends everything and gives the sender back to the pool: it must not be used afterwards.
	Flush()
}

// PacketLen is the number of bytes in a frame behind its Ethernet header and tags.
func PacketLen(frame []byte) int { return len(frame) - link.NetworkOffset(frame) }

// PathAttr says where a path leads and what its IP headers carry.
type PathAttr struct {
	Src, Dst     netip.Addr // one family; an IPv6 zone is not needed
	SrcPort      uint16     // UDP source port: 49152–65535 by a hash of the flow
	TrafficClass uint8      // DSCP and ECN
	Priority     uint8      // 0 to 7, of the tag that a link of a VLAN puts on (PCP)
	HopLimit     uint8      // 0 means 64
	FlowLabel    uint32     // 20 bits, IPv6 and RoCE v1 only
	// V1 makes it RoCE v1: a GRH (IBTA Vol 1 §8.3) stands for the IP and UDP headers, an IPv4 address in it is mapped into
	// IPv6, SrcPort means nothing, and routers are not passed.
	V1 bool
}

// Ends are the addresses that a path leads from and to, and whether that is by RoCE v1.
type Ends struct {
	Src, Dst netip.Addr
	V1       bool
}

// Path is a way to one peer. Any number of senders may use it at once.
type Path interface {
	// Ends are the path's addresses, which never change.
	Ends() *Ends
	// MTU is the largest payload, in bytes, of one datagram on this path.
	MTU() int
	// Batch is how many datagrams of n bytes the link takes in one frame; at least 1.
	Batch(n int) int
	// Near is the interface of this process that the path leads to through nothing but memory: one of the host's own, or
	// one on the same [link.Shared] medium. It is nil if there is none, and may change at any time: links are closed,
	// addresses move. What is carried there without packets nobody can tell from what is carried in packets.
	Near() NIC
	// Close frees what the path holds.
	Close()
}

// Sender gathers datagrams and sends them in as few frames as the link allows: neighbours of one path and one size
// share a superframe. It is for one goroutine at a time.
type Sender interface {
	// Datagram adds a datagram of n payload bytes on p. It returns the IP and UDP headers as the receiver will see
	// them (40+8 or 20+8 bytes, checksums not filled in), or the GRH, to compute the ICRC over, and the payload to fill
	// in; both until the next call. It returns nil if n is 0 or more than p.MTU().
	Datagram(p Path, n int) (header, payload []byte)
	// Drop takes back the datagram that Datagram returned last: its payload could not be filled in.
	Drop()
	// Flush sends everything and gives the sender back to the pool: it must not be used afterwards.
	Flush()
}

// Datagram is what arrived in one frame: one UDP datagram, or the equal segments of an uncut superframe; or one packet of
// RoCE v1.
type Datagram struct {
	Src, Dst     netip.Addr
	SrcPort      uint16
	TrafficClass uint8  // DSCP and ECN of the outer header
	TCI          uint16 // of the frame's tag: priority, 3 bits, and VLAN ID, the lower 12; 0 if it had none
	Polled       bool   // it comes on the goroutine of whoever called NIC.Poll
	HopLimit     uint8
	Looped       bool // one of the host's own, which did not pass a link
	V1           bool // of RoCE v1: SrcPort means nothing, and Header is the GRH
	// Header is the IP header (20 or 40 bytes; no options) and the UDP header of the segment that Next returned last;
	// before the first Next, those of the frame.
	Header []byte
	// Payload is the UDP payload of all segments together.
	Payload []byte
	// SegmentSize is the payload size of each segment but the last, which may be shorter.
	SegmentSize int

	next int // index of the segment that Next returns
}

// Next returns the next segment's payload, with Header made what it would be had the frame been cut where Linux cuts
// it: lengths of that segment, and the IPv4 ID counting up. ok is false after the last. The payload and Header are
// valid until the receive function returns; Header changes with each call.
func (d *Datagram) Next() (payload []byte, ok bool) {
	start := d.next * d.SegmentSize
	if start >= len(d.Payload) {
		return nil, false
	}
	n := min(d.SegmentSize, len(d.Payload)-start)
	payload = d.Payload[start : start+n]
	if d.SegmentSize < len(d.Payload) {
		putLengths(d.Header, n)
		if d.next > 0 && d.Header[0]>>4 == 4 {
			binary.BigEndian.PutUint16(d.Header[4:], binary.BigEndian.Uint16(d.Header[4:])+1)
		}
	}
	d.next++
	return payload, true
}

// putLengths writes the IP and UDP length fields of header for n bytes of UDP payload, or that of a GRH.
func putLengths(header []byte, n int) {
	switch len(header) {
	case ipv4Len + udpLen:
		binary.BigEndian.PutUint16(header[2:], uint16(ipv4Len+udpLen+n))
		binary.BigEndian.PutUint16(header[ipv4Len+4:], uint16(udpLen+n))
	case ipv6Len + udpLen:
		binary.BigEndian.PutUint16(header[4:], uint16(udpLen+n))
		binary.BigEndian.PutUint16(header[ipv6Len+4:], uint16(udpLen+n))
	default:
		binary.BigEndian.PutUint16(header[4:], uint16(n))
	}
}
