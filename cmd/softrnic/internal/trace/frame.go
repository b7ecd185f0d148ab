package trace

import (
	"encoding/binary"
	"net/netip"

	"github.com/gopacket/gopacket/layers"

	"github.com/softrnic/softrnic/link/checksum"
	"github.com/softrnic/softrnic/rdmatransport/wire"
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
	etherVLAN   = 0x8100
	etherQinQ   = 0x88a8
	etherRoCEv1 = 0x8915
)

// kind is the kind of a packet by its headers below RoCE or iWARP.
type kind uint8

const (
	other    kind = iota // none of those below
	broken               // inconsistent headers; see wrong
	fragment             // an IP fragment
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
	v1       bool // RoCE v1: Ethernet and a GRH instead of IP and UDP
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
	// Set if the packet cannot be checked completely: it is truncated, a fragment, or has IP options.
	unchecked bool
}

// tcpHeader has the relevant fields of a TCP header.
type tcpHeader struct {
	seq, ack             uint32
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

// decode reads the headers of a packet. Unknown packets have kind other.
func (f *frame) decode(link layers.LinkType, b []byte) {
	*f = frame{number: f.number, time: f.time, cut: f.cut, wrong: f.wrong[:0]}
	switch link {
	case layers.LinkTypeEthernet:
		f.ethernet(b)
	case layers.LinkTypeRaw, 12, layers.LinkTypeIPv4, layers.LinkTypeIPv6:
		f.ip(b)
	case layers.LinkTypeNull, layers.LinkTypeLoop:
		if len(b) > 4 {
			f.ip(b[4:])
		}
	case layers.LinkTypeLinuxSLL:
		if len(b) >= 16 {
			f.etherType(binary.BigEndian.Uint16(b[14:]), b[16:])
		}
	case layers.LinkTypeLinuxSLL2:
		if len(b) >= 20 {
			f.etherType(binary.BigEndian.Uint16(b), b[20:])
		}
	}
	f.unchecked = f.unchecked || f.cut && (f.kind == roce || f.kind == segment)
}

// readable reports whether decode supports a link type.
func readable(link layers.LinkType) bool {
	switch link {
	case layers.LinkTypeEthernet, layers.LinkTypeRaw, 12, layers.LinkTypeIPv4, layers.LinkTypeIPv6, layers.LinkTypeNull,
		layers.LinkTypeLoop, layers.LinkTypeLinuxSLL, layers.LinkTypeLinuxSLL2:
		return true
	}
	return false
}

func (f *frame) ethernet(b []byte) {
	if len(b) < 14 {
		return
	}
	t := binary.BigEndian.Uint16(b[12:])
	b = b[14:]
	for t == etherVLAN || t == etherQinQ {
		if len(b) < 4 {
			return
		}
		t, b = binary.BigEndian.Uint16(b[2:]), b[4:]
	}
	f.etherType(t, b)
}

func (f *frame) etherType(t uint16, b []byte) {
	switch t {
	case etherIPv4:
		f.ipv4(b)
	case etherIPv6:
		f.ipv6(b)
	case etherRoCEv1:
		f.grh(b)
	default:
		f.notEtherType(t, b)
	}
}

func (f *frame) ip(b []byte) {
	if len(b) > 0 && b[0]>>4 == 6 {
		f.ipv6(b)
	} else {
		f.ipv4(b)
	}
}

// notEtherType checks whether an unknown type differs in one bit from that of IP, and an IP packet
// with a right or offloaded checksum follows.
func (f *frame) notEtherType(t uint16, b []byte) {
	for _, is := range []uint16{etherIPv4, etherIPv6} {
		if d := t ^ is; d&(d-1) == 0 {
			g := frame{number: f.number, time: f.time, cut: f.cut}
			g.etherType(is, b)
			// An IPv4 header has a checksum of its own.
			if len(g.wrong) == 0 && g.kind != other && (is == etherIPv4 || g.checksum == right || g.checksum == offloaded) {
				f.src, f.dst = g.src, g.dst
				f.bad("the EtherType is not IP's, but what follows is an IP packet")
			}
		}
	}
}

func (f *frame) ipv4(b []byte) {
	if len(b) < 20 {
		f.bad("shorter than an IPv4 header")
		return
	}
	n := int(b[0]&0xf) * 4
	total := int(binary.BigEndian.Uint16(b[2:]))
	f.src, f.dst = netip.AddrFrom4([4]byte(b[12:])), netip.AddrFrom4([4]byte(b[16:]))
	f.id = binary.BigEndian.Uint16(b[4:])
	f.counts = f.id != 0
	switch {
	case b[0]>>4 != 4:
		f.bad("IP version is not 4")
	case n < 20 || n > len(b):
		f.bad("the IPv4 header length is impossible")
	case binary.BigEndian.Uint16(b[10:]) != 0 && checksum.Sum(b[:n], 0) != 0xffff: // 0: offloaded
		f.bad("the IPv4 header checksum is wrong")
	case total < n || total > len(b) && !f.cut:
		f.bad("the IPv4 total length is beyond the packet, or less than the header")
	case binary.BigEndian.Uint16(b[6:])&0x3fff != 0:
		f.kind = fragment
		f.unchecked = true
	default:
		f.transport(b[9], b[:n], b[n:min(total, len(b))], total-n)
	}
}

func (f *frame) ipv6(b []byte) {
	if len(b) < 40 {
		f.bad("shorter than an IPv6 header")
		return
	}
	n := int(binary.BigEndian.Uint16(b[4:]))
	f.src, f.dst = netip.AddrFrom16([16]byte(b[8:])), netip.AddrFrom16([16]byte(b[24:]))
	header, proto := b[:40], b[6]
	b = b[40:]
	if header[0]>>4 != 6 {
		f.bad("IP version is not 6")
		return
	}
	if n > len(b) && !f.cut {
		f.bad("the IPv6 payload length is beyond the packet")
		return
	}
	b = b[:min(n, len(b))]
	for proto == 0 || proto == 43 || proto == 60 { // hop-by-hop, routing, destination options
		if len(b) < 8 || len(b) < 8+int(b[1])*8 {
			f.bad("an IPv6 extension header is cut")
			return
		}
		proto, n, b, header = b[0], n-8-int(b[1])*8, b[8+int(b[1])*8:], nil
	}
	if proto == 44 {
		f.kind = fragment
		f.unchecked = true
		return
	}
	if f.transport(proto, header, b, n); f.kind == other && !f.cut {
		// No checksum covers this IPv6 field, which determines how the rest is decoded.
		if d := proto ^ protoTCP; d&(d-1) == 0 && len(b) >= 20 && transportChecksum(f.src, f.dst, protoTCP, b, 16) != damaged {
			f.bad("the IPv6 next header is not TCP's, but what follows is a TCP segment")
		}
	}
}

// transport reads the TCP or UDP header at the beginning of b. n is the length of b on the wire.
func (f *frame) transport(proto uint8, ip, b []byte, n int) {
	switch proto {
	case protoUDP:
		f.udp(ip, b, n)
	case protoTCP:
		f.segment(b, n)
	}
}

func (f *frame) udp(ip, b []byte, n int) {
	if len(b) < 8 {
		f.bad("shorter than a UDP header")
		return
	}
	f.kind = datagram
	f.srcPort, f.dstPort = binary.BigEndian.Uint16(b), binary.BigEndian.Uint16(b[2:])
	if l := int(binary.BigEndian.Uint16(b[4:])); l != n {
		f.bad("UDP and IP lengths contradict each other")
		return
	}
	if !f.cut {
		if f.checksum = transportChecksum(f.src, f.dst, protoUDP, b, 6); f.checksum == damaged {
			f.wrong = append(f.wrong, "the UDP checksum is wrong")
		}
	}
	f.payload, f.length = b[8:], n-8
	// The headers are adjacent unless there are options or extensions between them.
	if len(ip) == 20 || len(ip) == 40 {
		f.header = ip[:len(ip)+8]
	} else if ip != nil || !f.src.Is4() {
		f.unchecked = f.dstPort == port
	}
	if f.dstPort == port {
		f.kind = roce
	} else if d := f.dstPort ^ port; d&(d-1) == 0 && f.header != nil && len(f.payload) >= wire.BTHLen+wire.ICRCLen && !f.cut {
		var h [48]byte
		header := h[:copy(h[:], f.header)]
		binary.BigEndian.PutUint16(header[len(header)-6:], port)
		if wire.CheckICRC(header, f.payload) {
			f.bad("the UDP destination port is not RoCEv2's, but the ICRC is right for it")
		}
	}
}

func (f *frame) segment(b []byte, n int) {
	if len(b) < 20 {
		f.bad("shorter than a TCP header")
		return
	}
	h := int(b[12]>>4) * 4
	if h < 20 || h > n || h > len(b) && !f.cut {
		f.bad("the TCP header length is impossible")
		return
	}
	if !f.cut {
		if f.checksum = transportChecksum(f.src, f.dst, protoTCP, b, 16); f.checksum == damaged {
			f.bad("the TCP checksum is wrong")
			return
		}
	}
	f.kind = segment
	f.srcPort, f.dstPort = binary.BigEndian.Uint16(b), binary.BigEndian.Uint16(b[2:])
	f.tcp = tcpHeader{seq: binary.BigEndian.Uint32(b[4:]), ack: binary.BigEndian.Uint32(b[8:]), window: binary.BigEndian.Uint16(b[14:]),
		fin: b[13]&1 != 0, syn: b[13]&2 != 0, rst: b[13]&4 != 0, acked: b[13]&16 != 0}
	h = min(h, len(b))
	f.tcp.options(b[20:h])
	f.payload, f.length = b[h:], n-h
}

// options reads the timestamp, and whether there are SACK blocks.
func (t *tcpHeader) options(o []byte) {
	for len(o) > 0 {
		switch {
		case o[0] == 0:
			return
		case o[0] == 1:
			o = o[1:]
			continue
		case len(o) < 2 || o[1] < 2 || int(o[1]) > len(o):
			return
		case o[0] == 8 && o[1] == 10:
			t.stamped, t.stamp = true, binary.BigEndian.Uint32(o[2:])
		case o[0] == 5:
			t.sack = true
		}
		o = o[o[1]:]
	}
}

// grh reads the GRH of RoCE v1, which has the layout of an IPv6 header.
func (f *frame) grh(b []byte) {
	if len(b) < wire.GRHLen {
		f.bad("shorter than a GRH")
		return
	}
	n := int(binary.BigEndian.Uint16(b[4:]))
	f.src, f.dst = netip.AddrFrom16([16]byte(b[8:])), netip.AddrFrom16([16]byte(b[24:]))
	if b[0]>>4 != 6 || b[6] != 0x1b {
		f.bad("GRH: IP version is not 6, or next header not 0x1b")
		return
	}
	if n > len(b)-wire.GRHLen && !f.cut {
		f.bad("the GRH payload length is beyond the packet")
		return
	}
	f.kind, f.v1 = roce, true
	f.header, f.payload, f.length = b[:wire.GRHLen], b[wire.GRHLen:min(wire.GRHLen+n, len(b))], n
}
