package stack

import (
	"encoding/binary"
	"net/netip"

	"github.com/softrnic/softrnic/link/checksum"
)

// RoCEPort is the UDP destination port of RoCEv2 (IBTA annex A17, IANA).
const RoCEPort = 4791

// RoCEv1Type is the EtherType of RoCE v1 (IBTA annex A16).
const RoCEv1Type = 0x8915

// DatagramPort sends and receives RoCE packets: UDP datagrams to port 4791, and the payloads of
// RoCE v1's Ethernet frames. It gives access to the header fields that the ICRC covers.
type DatagramPort interface {
	// Path prepares to send from one of the NIC's addresses to another host, to one of the host's own
	// addresses, or to a multicast group. A NIC that has joined the group receives a copy of its own
	// datagrams. Path starts to resolve the neighbour but does not wait. Datagrams sent meanwhile are
	// queued, up to a limit, and lost if resolution fails. The error wraps ENETUNREACH if there is no
	// route, and EADDRNOTAVAIL if the NIC does not have the source address.
	Path(PathAttr) (Path, error)
	// Sender takes a sender from the port's pool.
	Sender() Sender
	// Receive installs the function that receives every valid datagram to one of the NIC's
	// addresses, or to a group that it has joined. It runs on the link's receive goroutine. It
	// may send, but must not call Receive. Datagrams of one flow (addresses and source port)
	// arrive in order and one at a time. Other flows may arrive concurrently on other
	// goroutines, if the link has several queues. Nil removes the function and waits for
	// running calls.
	Receive(func(*Datagram))
}

// PathAttr describes a path and the headers of its datagrams.
type PathAttr struct {
	Src, Dst     netip.Addr // of one IP version; an IPv6 zone is not needed
	SrcPort      uint16     // UDP source port, 49152–65535, from a hash of the flow
	TrafficClass uint8      // DSCP and ECN
	Priority     uint8      // PCP, 0 to 7, of the tag that a VLAN link adds
	HopLimit     uint8      // 0 means 64
	FlowLabel    uint32     // 20 bits, IPv6 and RoCE v1 only
	// QPN is the destination of all datagrams on the path, or 0 if there are several. The stack may
	// have a faster route to the process with that QP (see Shared), and uses it once it is available.
	// At the switch to that route, later datagrams may overtake earlier ones.
	QPN uint32
	// Via is the destination MAC address, as in Datagram.Via; neighbour resolution is skipped.
	// It is used to answer a datagram from a sender whose address is not validated. The zero
	// Via leaves the address to the stack. Stacks without frames ignore Via.
	Via [6]byte
	// OneSender says that only one Sender at a time uses the path. The path then costs less.
	OneSender bool
	// V1 makes it a path of RoCE v1. A GRH (IBTA Vol 1 §8.3) replaces the IP and UDP headers,
	// and IPv4 addresses in it are mapped into IPv6. SrcPort is ignored, and the path cannot
	// cross a router.
	V1 bool
}

// Ends has the addresses at the two ends of a path, and says whether the path uses RoCE v1.
type Ends struct {
	Src, Dst netip.Addr
	V1       bool
}

// Path is a route to one peer. Any number of senders may use it at once.
type Path interface {
	// Ends returns the path's addresses, which never change.
	Ends() *Ends
	// MTU is the largest payload of one datagram on this path, in bytes.
	MTU() int
	// Batch returns the number of datagrams of n bytes that the link takes in one frame, at
	// least 1.
	Batch(n int) int
	// LocalNIC returns the interface in this process to which the path leads through memory alone: one
	// of the host's own, or one on the same [link.Shared] medium. It returns nil if there is none. The
	// result may change at any time, because links are closed and addresses move. A transport may copy
	// data for that interface directly instead of sending packets.
	LocalNIC() NIC
	// Close releases the path's resources.
	Close()
}

// Backlogged is a path on which datagrams may wait in this process for room in the peer's process.
// The backlog is limited. A transport that slows down early loses no datagrams.
type Backlogged interface {
	// Backlog returns the number of waiting bytes. ok is false if datagrams never wait.
	Backlog() (bytes int, ok bool)
}

// Queued is a path whose datagrams may have a queue of their own in the adapter, which sends from
// all queues in turn (see [link.Queues]). A transport that stops while the queue is full keeps few
// datagrams there while its timers run.
type Queued interface {
	// Queue opens the queue, which Close of the path closes. It returns false if the path has none:
	// Full must not be called then. ready is called once after Full has returned true, and not
	// false since, when the queue is empty. The caller of ready holds no locks, and ready may send.
	Queue(ready func()) bool
	// Full reports whether enough datagrams wait in the queue. Those that a Sender has collected do
	// not count.
	Full() bool
}

// Sender collects datagrams and sends them in as few frames as the link allows: consecutive
// datagrams of one path and one size share a superframe. Only one goroutine at a time may use it.
type Sender interface {
	// Datagram adds a datagram of n payload bytes on p. It returns the IP and UDP headers as
	// the receiver will see them (40+8 or 20+8 bytes, without checksums), or the GRH, for
	// computing the ICRC. It also returns the payload, which the caller fills in. Both are
	// valid until the next call. The payload is nil if n is 0 or more than p.MTU(). If only
	// header is nil, the packet needs no ICRC: payload is memory that the receiver can access,
	// and the caller must not rely on its contents.
	Datagram(p Path, n int) (header, payload []byte)
	// Drop removes the last datagram, because its payload could not be filled in.
	Drop()
	// Cut ends the frame after the last datagram. Without Cut, a frame ends when it is full, or
	// after a datagram that is shorter than its first.
	Cut()
	// Flush sends all datagrams and returns the sender to the pool. The caller must not use it
	// afterwards.
	Flush()
}

// Datagram is the content of one received frame: one UDP datagram, the equal segments of an uncut
// superframe, or one packet of RoCE v1.
type Datagram struct {
	Src, Dst     netip.Addr
	SrcPort      uint16
	TrafficClass uint8  // DSCP and ECN of the outer header
	TCI          uint16 // of the frame's tag: 3 bits of priority and 12 bits of VLAN ID; 0 if untagged
	Polled       bool   // received by a call of NIC.Poll, whose caller will soon call Poll or EndPoll
	HopLimit     uint8
	// Source MAC address of the frame: the sender's or a router's; zero if the stack does not see it.
	Via    [6]byte
	Looped bool // sent by the host itself, without passing a link
	V1     bool // RoCE v1: SrcPort is unused, and Header is the GRH
	// IDGuessed says that the stack does not see IP headers. The IPv4 identification in Header
	// is then the one that most senders use, and may be wrong. The ICRC covers it. IDGuessed is
	// never set for IPv6.
	IDGuessed bool
	// The packets have no ICRC, as the medium is memory; four unused bytes take its place.
	NoICRC  bool
	InPlace bool // the sender can still change Payload: read each byte only once
	// Truncated says that the frame ends before the datagram does, by the lengths in Header: a switch
	// may have trimmed it. Payload is what is left.
	Truncated bool
	// SrcQPNs are the QPNs of the sending process, if it is another process of the same hub (see
	// [Shared]). A packet with a source QPN outside of SrcQPNs is forged. So is a packet of a
	// connection whose peer QPN is outside of them, and any MAD. SrcQPNs is the zero Range if the
	// stack does not know the sender.
	SrcQPNs Range
	// Header is the IP header (20 or 40 bytes, no options) and the UDP header of the segment
	// that Next returned last. Before the first Next they are those of the frame.
	Header []byte
	// Payload is the UDP payload of all segments.
	Payload []byte
	// SegmentSize is the payload size of each segment but the last, which may be shorter.
	SegmentSize int

	next int // index of the segment that Next returns
}

// Next returns the next segment's payload, and sets Header as if Linux had cut the frame: with the
// segment's lengths, and the IPv4 ID incremented. ok is false after the last segment. Payload and
// Header are valid until the receive function returns; each call modifies Header.
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

// Rest returns the payloads of the segments that Next has not returned.
func (d *Datagram) Rest() []byte { return d.Payload[min(d.next*d.SegmentSize, len(d.Payload)):] }

// Skip skips n segments after a first call of Next. The next call of Next sets Header.
func (d *Datagram) Skip(n int) {
	if d.Header[0]>>4 == 4 {
		binary.BigEndian.PutUint16(d.Header[4:], binary.BigEndian.Uint16(d.Header[4:])+uint16(n))
	}
	d.next += n
}

// PutGRH writes what a UD QP places before the message (IBTA A17.4.5.3): the GRH of RoCE v1, the
// IPv6 header, or 20 zero bytes and the IPv4 header. The IPv4 header's checksum is right, although
// Header may have that of a whole superframe, or none.
func (d *Datagram) PutGRH(grh *[ipv6Len]byte) {
	ip := d.Header
	if !d.V1 {
		ip = ip[:len(ip)-udpLen]
	}
	at := len(grh) - len(ip)
	clear(grh[:at])
	copy(grh[at:], ip)
	if len(ip) == ipv4Len && (d.SegmentSize < len(d.Payload) || ip[10]|ip[11] == 0) {
		checksum.PutIPv4(grh[at:])
	}
}

const (
	ipv4Len = 20
	ipv6Len = 40
	udpLen  = 8
)

// PutLengths writes n bytes of payload into the length fields of a header: an IP and UDP header, or
// a GRH (payload length). The length of header distinguishes them.
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
