package stack

import (
	"encoding/binary"
	"net/netip"
)

// RoCEPort is the UDP destination port of RoCEv2 (IBTA annex A17, IANA).
const RoCEPort = 4791

// RoCEv1Type is the EtherType of RoCE v1 (IBTA annex A16).
const RoCEv1Type = 0x8915

// DatagramPort sends and receives what carries RoCE packets, UDP datagrams to port 4791 and the payloads of RoCE v1's
// Ethernet frames, together with the header fields that the ICRC covers.
type DatagramPort interface {
	// Path prepares to send from one of the NIC's addresses to another host, to one of its own addresses, or to a multicast
	// group; a NIC that has joined the group receives a copy of its own. Path starts to resolve the neighbour but does not
	// wait: what is sent meanwhile is kept, up to a bound, and lost if nobody answers. The error wraps ENETUNREACH if there
	// is no route, EADDRNOTAVAIL if the NIC does not have the source address.
	Path(PathAttr) (Path, error)
	// Sender takes a sender from the port's pool.
	Sender() Sender
	// Receive installs the function that gets every valid datagram for one of the NIC's addresses, or for a group that it
	// has joined, on the link's receive goroutine. The function may send, but must not call Receive. Datagrams of one flow
	// (addresses and source port) come in order and one at a time; those of others may come at the same time, on other
	// goroutines, where the link has several queues. Nil removes the function and waits for running calls.
	Receive(func(*Datagram))
}

// PathAttr says where a path leads and what its headers carry.
type PathAttr struct {
	Src, Dst     netip.Addr // of one family; an IPv6 zone is not needed
	SrcPort      uint16     // UDP source port, 49152–65535 by a hash of the flow
	TrafficClass uint8      // DSCP and ECN
	Priority     uint8      // PCP, 0 to 7, of the tag that a link of a VLAN adds
	HopLimit     uint8      // 0 means 64
	FlowLabel    uint32     // 20 bits, IPv6 and RoCE v1 only
	// QPN is that which all datagrams on the path are for, and 0 if they are for several. Where the stack has a shorter way to
	// the process that has it than to others (see Shared), they take it as soon as it is there; what was sent before may then
	// arrive later than what was sent after.
	QPN uint32
	// Via is where frames are to go, as in Datagram.Via: no neighbour is asked for. It is for an answer to a datagram, to who may be
	// anybody. The zero Via leaves it to the stack, and stacks without frames take no notice of it.
	Via [6]byte
	// OneSender says that only one Sender at a time has datagrams on the path, which is then cheaper.
	OneSender bool
	// V1 makes it a path of RoCE v1: a GRH (IBTA Vol 1 §8.3) takes the place of the IP and UDP headers, an IPv4 address in
	// it is mapped into IPv6, SrcPort means nothing, and no router is passed.
	V1 bool
}

// Ends are the addresses that a path leads from and to, and whether it is one of RoCE v1.
type Ends struct {
	Src, Dst netip.Addr
	V1       bool
}

// Path is a way to one peer. Any number of senders may use it at once.
type Path interface {
	// Ends are the path's addresses, which never change.
	Ends() *Ends
	// MTU is the largest payload of one datagram on this path, in bytes.
	MTU() int
	// Batch is how many datagrams of n bytes the link takes in one frame; at least 1.
	Batch(n int) int
	// Near is the interface in this process that the path leads to through memory alone: one of the host's own, or one on
	// the same [link.Shared] medium. It is nil if there is none. It may change at any time, as links are closed and
	// addresses move. Data for that interface may be copied there directly in place of sending packets.
	Near() NIC
	// Close frees what the path holds.
	Close()
}

// Backlogged is a path on which datagrams may wait in this process, because the peer's process has no room for more. They are
// kept up to a bound. A transport that slows down before loses nothing.
type Backlogged interface {
	// Backlog is how many bytes wait; ok is false if none ever do.
	Backlog() (bytes int, ok bool)
}

// Sender gathers datagrams and sends them in as few frames as the link allows: consecutive datagrams of one path and one
// size share a superframe. It is for one goroutine at a time.
type Sender interface {
	// Datagram adds a datagram of n payload bytes on p. It returns the IP and UDP headers as the receiver will see them
	// (40+8 or 20+8 bytes, without checksums), or the GRH, to compute the ICRC over, and the payload for the caller to fill
	// in; both are valid until the next call. It returns nil if n is 0 or more than p.MTU(). If only header is nil, the
	// packet needs no ICRC: payload is memory that the receiver can read and write, and nothing in it is to be relied on.
	Datagram(p Path, n int) (header, payload []byte)
	// Drop takes back the datagram that Datagram returned last, whose payload could not be filled in.
	Drop()
	// Cut has the datagram that Datagram returned last end its frame. Without it, a frame ends when it is full, or behind a datagram that is
	// shorter than its first.
	Cut()
	// Flush sends everything and gives the sender back to the pool: it must not be used afterwards.
	Flush()
}

// Datagram is what arrived in one frame: one UDP datagram, the equal segments of a superframe that was not cut, or one
// packet of RoCE v1.
type Datagram struct {
	Src, Dst     netip.Addr
	SrcPort      uint16
	TrafficClass uint8  // DSCP and ECN of the outer header
	TCI          uint16 // of the frame's tag: priority, 3 bits, and VLAN ID, the lower 12; 0 if it had none
	Polled       bool   // a call of NIC.Poll received it, and whoever made that call will soon call Poll again, or EndPoll
	HopLimit     uint8
	Via          [6]byte // the MAC address that the frame came from: the sender's, or a router's; zero if the stack does not see it
	Looped       bool    // one of the host's own, which did not pass a link
	V1           bool    // of RoCE v1: SrcPort means nothing, and Header is the GRH
	// IDGuessed says that the stack does not see IP headers: the IPv4 identification in Header is what most senders would
	// have given, and may be wrong. The ICRC covers it. Never set for IPv6.
	IDGuessed bool
	NoICRC    bool // the packets have none, as the medium is memory; four bytes are where it would be
	InPlace   bool // Payload is memory that the sender can still change: each byte is to be read once
	// SrcQPNs has the QPNs of the process that sent it, if that is another one with the same hub (see [Shared]): whatever
	// names another QP, or is for a connection with another one, is not from there, and nor is a MAD. It is the zero Range
	// if the stack does not know.
	SrcQPNs Range
	// Header is the IP header (20 or 40 bytes, no options) and the UDP header of the segment that Next returned last;
	// before the first Next, those of the frame.
	Header []byte
	// Payload is the UDP payload of all segments together.
	Payload []byte
	// SegmentSize is the payload size of each segment but the last, which may be shorter.
	SegmentSize int

	next int // index of the segment that Next returns
}

// Next returns the next segment's payload, and sets Header to what it would be if Linux had cut the frame:
// with the lengths of that segment, and the IPv4 ID counting up. ok is false after the last segment. Payload and Header
// are valid until the receive function returns; each call changes Header.
func (d *Datagram) Next() (payload []byte, ok bool) {
	start := d.next * d.SegmentSize
	if start >= len(d.Payload) {
		return nil, false
	}
	n := min(d.SegmentSize, len(d.Payload)-start)
	payload = d.Payload[start : start+n]
	if d.SegmentSize < len(d.Payload) {
		PutLengths(d.Header, n)
		if d.next > 0 && d.Header[0]>>4 == 4 {
			binary.BigEndian.PutUint16(d.Header[4:], binary.BigEndian.Uint16(d.Header[4:])+1)
		}
	}
	d.next++
	return payload, true
}

// Rest is the payloads of the segments that Next has not returned, all together.
func (d *Datagram) Rest() []byte { return d.Payload[min(d.next*d.SegmentSize, len(d.Payload)):] }

// Skip passes over n of them, after a first call of Next. Header is set by the next one.
func (d *Datagram) Skip(n int) {
	if d.Header[0]>>4 == 4 {
		binary.BigEndian.PutUint16(d.Header[4:], binary.BigEndian.Uint16(d.Header[4:])+uint16(n))
	}
	d.next += n
}

const (
	ipv4Len = 20
	ipv6Len = 40
	udpLen  = 8
)

// PutLengths writes n bytes of payload into the length fields of header: of IP and UDP, or of a GRH (payload length). The
// length of header tells which of them it is.
func PutLengths(header []byte, n int) {
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
