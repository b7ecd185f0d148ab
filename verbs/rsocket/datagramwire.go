package rsocket

import (
	"encoding/binary"
	"net/netip"
)

// A datagram from QP to QP begins with the address of the socket that sends it: the IP version and the header's length, a byte
// each, the port, and the IPv4 address, or four bytes of flow information and the IPv6 address. Numbers are in network byte order.
const (
	source4Len = 8
	source6Len = 24
)

// sourceLen is the length of that header of sockets with such addresses.
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

// parseSource returns what the header says and what is behind it.
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

// An introduction is a UDP datagram between the addresses of two sockets, which tells the number of the sender's QP: four bytes of a tag, the
// IP version, an operation, the header's length, a byte that is reserved, the QPN in four bytes, and the sender's address. If the
// operation is opData, a datagram of the application's follows, and an introduction is wanted in return; otherwise it is opControl.
const (
	introductionTag  = 0x55555555
	introduction4Len = 16
	introduction6Len = 28
)

type introduction struct {
	op   operation
	qpn  uint32
	addr netip.Addr
}

// appendTo appends the introduction to b.
func (i *introduction) appendTo(b []byte) []byte {
	n := byte(introduction4Len)
	if !i.addr.Is4() {
		n = introduction6Len
	}
	b = binary.BigEndian.AppendUint32(b, introductionTag)
	b = append(b, ipVersion(i.addr), byte(i.op), n, 0)
	b = binary.BigEndian.AppendUint32(b, i.qpn)
	return append(b, i.addr.AsSlice()...)
}

// parseIntroduction returns what an introduction says and what is behind it.
func parseIntroduction(b []byte) (i introduction, data []byte, ok bool) {
	if len(b) < introduction4Len || len(b) < int(b[6]) || binary.BigEndian.Uint32(b) != introductionTag {
		return i, nil, false
	}
	switch [2]byte{b[4], b[6]} {
	case [2]byte{4, introduction4Len}:
		i.addr = netip.AddrFrom4([4]byte(b[12:]))
	case [2]byte{6, introduction6Len}:
		i.addr = netip.AddrFrom16([16]byte(b[12:]))
	default:
		return i, nil, false
	}
	i.op, i.qpn = operation(b[5]), binary.BigEndian.Uint32(b[8:])&(1<<24-1)
	return i, b[b[6]:], i.op == opData || i.op == opControl
}
