package trace

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"github.com/gopacket/gopacket/layers"
)

// port is RoCEv2's UDP port (IBTA annex A17).
const port = 4791

const (
	protoTCP = 6
	protoUDP = 17
)

const (
	etherIPv4   = 0x0800
	etherIPv6   = 0x86dd
	etherRoCEv1 = 0x8915
	etherBridge = 0x6558 // in GRE and Geneve: an Ethernet frame
	// leastEtherType is the lowest EtherType. A lower number is the length of an LLC frame.
	leastEtherType = 0x600
)

// kind is the kind of a packet by its headers below RoCE or iWARP.
type kind uint8

const (
	foreign  kind = iota // not RDMA; see rule
	opaque               // may be RDMA, and cannot be told; see rule
	broken               // inconsistent headers; see wrong
	roce                 // a RoCE packet in header and payload
	datagram             // UDP to another port
	segment              // TCP
)

// A frame is one packet of a capture. Its slices are parts of the captured bytes.
type frame struct {
	number int   // from 1
	time   int64 // nanoseconds since the first packet
	cut    bool  // truncated by the capture

	kind     kind
	rule     string // of foreign and opaque: what it is
	point    point  // where it was captured
	v1       bool   // RoCE v1: Ethernet and a GRH instead of IP and UDP
	src, dst netip.Addr
	counts   bool // it has an IPv4 identification other than 0
	id       uint16
	srcPort  uint16
	dstPort  uint16
	// IP and UDP headers; nil with IP options or extensions, for which the ICRC is not defined.
	header   []byte
	payload  []byte // after the UDP or TCP header
	length   int    // bytes of the payload on the wire
	cuts     int    // bytes of UDP payload per packet in segmentation offload; 0: not known
	checksum verdict
	tcp      tcpHeader
	wrong    []string // errors of the headers and checksums
	// Set if the packet cannot be checked completely: it is truncated, or has IP options.
	unchecked bool
}

// tcpHeader has the relevant fields of a TCP header.
type tcpHeader struct {
	seq, ack             uint32
	flags                uint8
	syn, fin, rst, acked bool
	window               uint16
	stamped              bool // has a timestamp option
	stamp                uint32
	sack                 bool // has a SACK option with blocks
}

func (f *frame) bad(what string) {
	f.kind = broken
	f.wrong = append(f.wrong, what)
}

// short reports a header that ends too early: because the capture ends there, or the packet.
func (f *frame) short(of string) {
	if f.cut {
		f.opaque("cut by the capture within its headers")
	} else {
		f.bad("shorter than " + of)
	}
}

// opaque marks a packet that may be RDMA, and cannot be told.
func (f *frame) opaque(what string) { f.kind, f.rule = opaque, what }

// foreign marks a packet that is not RDMA.
func (f *frame) foreign(what string) { f.kind, f.rule = foreign, what }

// decode reads the headers of a packet.
func (f *frame) decode(link layers.LinkType, b []byte) {
	*f = frame{number: f.number, time: f.time, cut: f.cut, wrong: f.wrong[:0], point: f.point}
	switch link {
	case layers.LinkTypeEthernet:
		f.ethernet(b)
	case layers.LinkTypeRaw, 12, layers.LinkTypeIPv4, layers.LinkTypeIPv6:
		f.ip(b)
	case layers.LinkTypeNull, layers.LinkTypeLoop:
		f.loopback(b)
	case layers.LinkTypeLinuxSLL:
		if len(b) < 16 {
			f.short("a cooked header")
			return
		}
		f.point.direction, f.point.nowhere = b[1], true
		f.cooked(binary.BigEndian.Uint16(b[2:]), binary.BigEndian.Uint16(b[14:]), b[16:])
	case layers.LinkTypeLinuxSLL2:
		if len(b) < 20 {
			f.short("a cooked header")
			return
		}
		f.point.index, f.point.direction = binary.BigEndian.Uint32(b[4:]), b[10]
		f.cooked(binary.BigEndian.Uint16(b[8:]), binary.BigEndian.Uint16(b), b[20:])
	default:
		f.opaque("link type " + link.String())
	}
	f.unchecked = f.unchecked || f.cut && (f.kind == roce || f.kind == segment)
}

// loopback reads a packet of BSD's loopback interface: an address family of the capturing machine,
// in its byte order or, for LinkTypeLoop, in network byte order.
func (f *frame) loopback(b []byte) {
	if len(b) < 4 {
		f.short("a loopback header")
		return
	}
	switch family := binary.LittleEndian.Uint32(b) | binary.BigEndian.Uint32(b); family & 0xff {
	case 2, 10, 24, 28, 30: // AF_INET; AF_INET6 of Linux, NetBSD, FreeBSD and macOS
		f.ip(b[4:])
	default:
		f.foreign("neither IPv4 nor IPv6, on a loopback interface")
	}
}

// netlinkHardware is the hardware type of Linux's netlink monitors, whose protocol is not an
// EtherType.
const netlinkHardware = 824

// cooked reads a packet of Linux's cooked captures. libpcap leaves VLAN tags behind the header.
func (f *frame) cooked(hardware, protocol uint16, b []byte) {
	if hardware == netlinkHardware {
		f.foreign("netlink")
		return
	}
	f.etherType(protocol, b)
}

func (f *frame) ethernet(b []byte) {
	if len(b) < 14 {
		f.short("an Ethernet header")
		return
	}
	f.etherType(binary.BigEndian.Uint16(b[12:]), b[14:])
}

// foreignTypes are EtherTypes of protocols that carry neither IP nor RoCE.
var foreignTypes = map[uint16]string{0x0806: "ARP", 0x8035: "RARP", 0x8808: "Ethernet flow control",
	0x8809: "LACP and other slow protocols",
	0x0842: "Wake on LAN", 0x8863: "PPPoE discovery", 0x886c: "Broadcom's", 0x8892: "PROFINET", 0x88a4: "EtherCAT", 0x88cc: "LLDP",
	0x888e: "EAPOL", 0x88b8: "GOOSE", 0x88ca: "TIPC", 0x88e1: "HomePlug", 0x88f5: "MVRP", 0x88f6: "MMRP", 0x88f7: "PTP", 0x8902: "CFM",
	0x8906: "FCoE", 0x8914: "FIP", 0x9000: "Ethernet loopback test"}

// opaqueTypes are EtherTypes of protocols that may carry IP or RoCE.
var opaqueTypes = map[uint16]string{0x88e5: "MACsec, which may be encrypted", 0x88e7: "provider backbone bridging (802.1ah)",
	0x894f: "NSH", 0x22f3: "TRILL", 0x8847: "MPLS", 0x8848: "MPLS"}

// tagTypes are the EtherTypes of VLAN tags. 0x9100 to 0x9300 are outer ones, older than 802.1ad.
var tagTypes = []uint16{0x8100, 0x88a8, 0x9100, 0x9200, 0x9300}

// etherType reads what follows an EtherType. RoCE may be behind any number of VLAN tags.
func (f *frame) etherType(t uint16, b []byte) {
	for slices.Contains(tagTypes, t) {
		if len(b) < 4 {
			f.short("a VLAN tag")
			return
		}
		t, b = binary.BigEndian.Uint16(b[2:]), b[4:]
		f.point.depth++
	}
	switch {
	case t == etherIPv4:
		f.ipv4(b)
	case t == etherIPv6:
		f.ipv6(b)
	case t == etherRoCEv1:
		f.grh(b)
	case f.misnamed(t, b): // reported
	case t < leastEtherType:
		f.llc(b)
	case t == 0x8847 || t == 0x8848:
		f.mpls(b)
	case t == 0x8864:
		f.ppp(b)
	case foreignTypes[t] != "":
		f.foreign(foreignTypes[t])
	case opaqueTypes[t] != "":
		f.opaque(opaqueTypes[t])
	default:
		f.opaque(fmt.Sprintf("EtherType %#04x", t))
	}
}

// llc reads a frame of 802.3. SNAP may contain an EtherType.
func (f *frame) llc(b []byte) {
	addressed := len(b) >= 8 && b[0] == 0xaa && b[1] == 0xaa // to SNAP
	if addressed && [3]byte(b[3:6]) == [3]byte{} {
		f.enter(func() { f.etherType(binary.BigEndian.Uint16(b[6:]), b[8:]) })
		return
	}
	f.foreign("LLC frames, such as STP")
}

func (f *frame) ip(b []byte) {
	switch {
	case len(b) > 0 && b[0]>>4 == 6:
		f.ipv6(b)
	case len(b) == 0 || b[0]>>4 == 4:
		f.ipv4(b)
	default:
		f.opaque("neither IPv4 nor IPv6")
	}
}

// misnamed reports whether an unknown type differs in one bit from that of IP, and an IP packet
// with a right or offloaded checksum follows.
func (f *frame) misnamed(t uint16, b []byte) bool {
	for _, is := range []uint16{etherIPv4, etherIPv6} {
		if d := t ^ is; d&(d-1) == 0 {
			g := frame{number: f.number, time: f.time, cut: f.cut, point: f.point}
			g.etherType(is, b)
			// An IPv4 header has a checksum of its own.
			if len(g.wrong) == 0 && g.src.IsValid() && (is == etherIPv4 || g.checksum == right || g.checksum == offloaded) {
				f.src, f.dst = g.src, g.dst
				f.bad("the EtherType is not IP's, but what follows is an IP packet")
				return true
			}
		}
	}
	return false
}
