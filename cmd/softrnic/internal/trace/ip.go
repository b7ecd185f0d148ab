package trace

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/softrnic/softrnic/link/checksum"
	"github.com/softrnic/softrnic/rdmatransport/wire"
)

func (f *frame) ipv4(b []byte) {
	if len(b) < 20 {
		f.short("an IPv4 header")
		return
	}
	n := int(b[0]&0xf) * 4
	total := int(binary.BigEndian.Uint16(b[2:]))
	if total == 0 && !f.cut { // a superframe of more than 64 KiB
		total = len(b)
	}
	f.src, f.dst = netip.AddrFrom4([4]byte(b[12:])), netip.AddrFrom4([4]byte(b[16:]))
	f.id = binary.BigEndian.Uint16(b[4:])
	f.counts = f.id != 0
	switch {
	case b[0]>>4 != 4:
		f.bad("IP version is not 4")
	case n > len(b) && f.cut:
		f.short("an IPv4 header")
	case n < 20 || n > len(b):
		f.bad("the IPv4 header length is impossible")
	case binary.BigEndian.Uint16(b[10:]) != 0 && checksum.Sum(b[:n], 0) != 0xffff: // 0: offloaded
		f.bad("the IPv4 header checksum is wrong")
	case total > len(b) && !f.cut && b[9] == protoUDP && isTrimmed(b[1], b[n:], total-n):
		f.opaque(trimmedRoCE)
	case total < n || total > len(b) && !f.cut:
		f.bad("the IPv4 total length is beyond the packet, or less than the header")
	case binary.BigEndian.Uint16(b[6:])&0x3fff != 0:
		f.fragment(b[9])
	default:
		f.transport(b[9], b[:n], b[n:min(total, len(b))], total-n)
	}
}

func (f *frame) ipv6(b []byte) {
	if len(b) < 40 {
		f.short("an IPv6 header")
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
	if n == 0 && proto == 0 && !f.cut { // a superframe of more than 64 KiB (RFC 2675)
		n = len(b)
	}
	if n > len(b) && !f.cut && proto == protoUDP && isTrimmed(header[0]<<4|header[1]>>4, b, n) {
		f.opaque(trimmedRoCE)
		return
	}
	if n > len(b) && !f.cut {
		f.bad("the IPv6 payload length is beyond the packet")
		return
	}
	b = b[:min(n, len(b))]
	for proto == 0 || proto == 43 || proto == 60 { // hop-by-hop, routing, destination options
		if len(b) < 8 || len(b) < 8+int(b[1])*8 {
			f.short("its IPv6 extension header")
			return
		}
		proto, n, b, header = b[0], n-8-int(b[1])*8, b[8+int(b[1])*8:], nil
	}
	switch {
	case proto == 44 && len(b) >= 8 && binary.BigEndian.Uint16(b[2:])&^6 != 0:
		f.fragment(b[0])
	case proto == 44 && len(b) >= 8: // an atomic fragment (RFC 6946)
		f.transport(b[0], nil, b[8:], n-8)
	case proto == 44:
		f.short("an IPv6 fragment header")
	case proto != protoTCP && !f.cut && len(b) >= 20 && oneBit(proto^protoTCP) &&
		transportChecksum(f.src, f.dst, protoTCP, b, 16) != damaged:
		// No checksum covers this IPv6 field, which determines how the rest is decoded.
		f.bad("the IPv6 next header is not TCP's, but what follows is a TCP segment")
	default:
		f.transport(proto, header, b, n)
	}
}

const trimmedRoCE = "RoCEv2, trimmed by a switch: the lengths are those of the whole packet"

// isTrimmed reports whether what follows an IP header is the beginning of a packet of RoCEv2 with a
// BTH, whose UDP length agrees with n, that of the IP header. A switch says by the DSCP that it has
// trimmed a packet, so that the DSCP in the traffic class tc is not 0.
func isTrimmed(tc byte, b []byte, n int) bool {
	return tc>>2 != 0 && len(b) >= 8+wire.BTHLen && binary.BigEndian.Uint16(b[2:]) == port && int(binary.BigEndian.Uint16(b[4:])) == n
}

func oneBit(d uint8) bool { return d&(d-1) == 0 }

func (f *frame) fragment(proto uint8) {
	if what := foreignProtocols[proto]; what != "" {
		f.foreign(what)
		return
	}
	f.opaque("IP fragments")
}

// foreignProtocols are IP protocols that are not RDMA and carry none.
var foreignProtocols = map[uint8]string{1: "ICMP", 2: "IGMP", 33: "DCCP", 46: "RSVP", 58: "ICMPv6", 59: "IPv6 without a next header",
	88: "EIGRP", 89: "OSPF", 103: "PIM", 112: "VRRP", 132: "SCTP", 139: "HIP"}

// transport reads what follows an IP header. n is its length on the wire.
func (f *frame) transport(proto uint8, ip, b []byte, n int) {
	switch proto {
	case protoUDP:
		f.udp(ip, b, n)
	case protoTCP:
		f.segment(b, n)
	case 4, 41:
		f.enter(func() { f.ip(b) })
	case 47:
		f.gre(b)
	case 51:
		f.authenticated(b, n)
	case 50:
		f.opaque("IPsec ESP, encrypted")
	case 97:
		if len(b) < 2 {
			f.short("an EtherIP header")
			return
		}
		f.enter(func() { f.ethernet(b[2:]) })
	case 137:
		f.mpls(b)
	default:
		if what := foreignProtocols[proto]; what != "" {
			f.foreign(what)
		} else {
			f.opaque(fmt.Sprintf("IP protocol %d", proto))
		}
	}
}

func (f *frame) udp(ip, b []byte, n int) {
	if len(b) < 8 {
		f.short("a UDP header")
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
		return
	}
	if d := f.dstPort ^ port; d&(d-1) == 0 && f.header != nil && len(f.payload) >= wire.BTHLen+wire.ICRCLen && !f.cut {
		var h [48]byte
		header := h[:copy(h[:], f.header)]
		binary.BigEndian.PutUint16(header[len(header)-6:], port)
		if wire.CheckICRC(header, f.payload) {
			f.bad("the UDP destination port is not RoCEv2's, but the ICRC is right for it")
			return
		}
	}
	f.tunnel()
}

func (f *frame) segment(b []byte, n int) {
	if len(b) < 20 {
		f.short("a TCP header")
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
		flags: b[13],
		fin:   b[13]&1 != 0, syn: b[13]&2 != 0, rst: b[13]&4 != 0, acked: b[13]&16 != 0}
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
		f.short("a GRH")
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
