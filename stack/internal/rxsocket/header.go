package rxsocket

import (
	"encoding/binary"
	"net/netip"
	"syscall"

	"github.com/softrnic/softrnic/stack"
)

const (
	ipv4Len = 20
	ipv6Len = 40
	udpLen  = 8
)

// MaxHeader is the length of the longest header that PutHeader writes.
const MaxHeader = ipv6Len + udpLen

// PutHeader writes an IP and a UDP header, to port 4791, into b, and returns their length. Lengths
// and checksums are 0. Don't Fragment is set, and the identification is 0.
func PutHeader(b []byte, src, dst netip.Addr, srcPort uint16, trafficClass, ttl uint8) int {
	n := ipv4Len
	if src.Is4() {
		clear(b[:n])
		b[0], b[1], b[6], b[8], b[9] = 4<<4|ipv4Len/4, trafficClass, 0x40, ttl, syscall.IPPROTO_UDP
		s, d := src.As4(), dst.As4()
		copy(b[12:], s[:])
		copy(b[16:], d[:])
	} else {
		n = ipv6Len
		clear(b[:n])
		binary.BigEndian.PutUint16(b, 6<<12|uint16(trafficClass)<<4)
		b[6], b[7] = syscall.IPPROTO_UDP, ttl
		s, d := src.As16(), dst.As16()
		copy(b[8:], s[:])
		copy(b[24:], d[:])
	}
	udp := b[n : n+udpLen]
	clear(udp)
	binary.BigEndian.PutUint16(udp, srcPort)
	binary.BigEndian.PutUint16(udp[2:], stack.RoCEPort)
	return n + udpLen
}
