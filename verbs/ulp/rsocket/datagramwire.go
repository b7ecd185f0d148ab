package rsocket

import (
	"encoding/binary"
	"net/netip"
)

// A datagram from QP to QP begins with a header that has the address of the sending socket. Its
// fields are the IP version and the header's length, a byte each, and the port. The IPv4 address
// follows, or four bytes of flow information and the IPv6 address. Numbers are in network byte
// order.
const (
	source4Len = 8
	source6Len = 24
)

// sourceLen returns the length of this header for an address.
func sourceLen(a netip.Addr) int {
	if a.Is4() {
		return source4Len
	}
	return source6Len
}

// appendSource appends the header to b.
func appendSource(b []byte, from netip.AddrPort) []byte {
	n := sourceLen(from.Addr())
	b = append(b, ipVersion(from.Addr()), byte(n))
	b = binary.BigEndian.AppendUint16(b, from.Port())
	if n == source6Len {
		b = append(b, 0, 0, 0, 0)
	}
	return append(b, from.Addr().AsSlice()...)
}

// parseSource returns the address in the header and the data after it.
func parseSource(b []byte) (from netip.AddrPort, data []byte, ok bool) {
	if len(b) < source4Len || len(b) < int(b[1]) {
		return from, nil, false
	}
	var addr netip.Addr
	switch [2]byte(b) {
	case [2]byte{4, source4Len}:
		addr = netip.AddrFrom4([4]byte(b[4:]))
	case [2]byte{6, source6Len}:
		addr = netip.AddrFrom16([16]byte(b[8:]))
	default:
		return from, nil, false
	}
	return netip.AddrPortFrom(addr, binary.BigEndian.Uint16(b[2:])), b[b[1]:], true
}

func ipVersion(a netip.Addr) byte {
	if a.Is4() {
		return 4
	}
	return 6
}

// A UDP datagram between two sockets begins with a header that announces the sender's QPN. It has a
// tag of four bytes, then the IP version, an operation, the header's length and a reserved byte.
// The QPN in four bytes and the sender's address follow. With opData, a datagram of the application
// follows, and the receiver answers with a header of its own. The other operation is opControl.
const (
	udpHeaderTag  = 0x55555555
	udpHeader4Len = 16
	udpHeader6Len = 28
)

type udpHeader struct {
	op   operation
	qpn  uint32
	addr netip.Addr
}

// appendTo appends the header to b.
func (h *udpHeader) appendTo(b []byte) []byte {
	n := byte(udpHeader4Len)
	if !h.addr.Is4() {
		n = udpHeader6Len
	}
	b = binary.BigEndian.AppendUint32(b, udpHeaderTag)
	b = append(b, ipVersion(h.addr), byte(h.op), n, 0)
	b = binary.BigEndian.AppendUint32(b, h.qpn)
	return append(b, h.addr.AsSlice()...)
}

// parseUDPHeader returns the header of a UDP datagram and the data after it.
func parseUDPHeader(b []byte) (h udpHeader, data []byte, ok bool) {
	if len(b) < udpHeader4Len || len(b) < int(b[6]) || binary.BigEndian.Uint32(b) != udpHeaderTag {
		return h, nil, false
	}
	switch [2]byte{b[4], b[6]} {
	case [2]byte{4, udpHeader4Len}:
		h.addr = netip.AddrFrom4([4]byte(b[12:]))
	case [2]byte{6, udpHeader6Len}:
		h.addr = netip.AddrFrom16([16]byte(b[12:]))
	default:
		return h, nil, false
	}
	h.op, h.qpn = operation(b[5]), binary.BigEndian.Uint32(b[8:])&(1<<24-1)
	return h, b[b[6]:], h.op == opData || h.op == opControl
}
