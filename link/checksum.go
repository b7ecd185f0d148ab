package link

import (
	"encoding/binary"
	"math/bits"
)

// sum16 adds b, as big-endian 16-bit words padded with a zero byte, to a one's complement sum (RFC
// 1071).
func sum16(b []byte, sum uint16) uint16 {
	var s, carry uint64
	for ; len(b) >= 8; b = b[8:] {
		s, carry = bits.Add64(s, binary.BigEndian.Uint64(b), carry)
	}
	var last [8]byte
	copy(last[:], b)
	s, carry = bits.Add64(s, binary.BigEndian.Uint64(last[:]), carry)
	s, carry = bits.Add64(s, uint64(sum), carry)
	s += carry // the sum has just overflowed, so it cannot overflow again
	s = s>>32 + s&0xffffffff
	s = s>>16&0xffff + s>>32 + s&0xffff
	s = s>>16 + s&0xffff
	return uint16(s>>16 + s)
}

// transportChecksum returns the checksum of a TCP or UDP segment whose checksum field is zero, sent
// between the addresses in addrs (RFC 9293 §3.1, RFC 768, RFC 8200 §8.1). It is never 0, which in
// UDP means no checksum.
func transportChecksum(addrs []byte, proto uint8, segment []byte) uint16 {
	sum := sum16(addrs, uint16(proto))
	var length [4]byte
	binary.BigEndian.PutUint32(length[:], uint32(len(segment)))
	sum = ^sum16(segment, sum16(length[:], sum))
	if sum == 0 {
		return 0xffff
	}
	return sum
}
