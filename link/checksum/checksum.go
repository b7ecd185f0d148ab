// Package checksum computes the checksum of IP, TCP and UDP (RFC 1071).
//
// This package is for SoftRNIC's own packages, and its API may change in any version.
package checksum

import (
	"encoding/binary"
	"math/bits"
)

// Sum adds b, as big-endian 16-bit words padded with a zero byte, to a one's complement sum. The
// sum of a header or segment with its checksum is 0xffff if the checksum is right.
func Sum(b []byte, sum uint16) uint16 {
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

// PutIPv4 sets the checksum of an IPv4 header.
func PutIPv4(header []byte) {
	clear(header[10:12])
	binary.BigEndian.PutUint16(header[10:], ^Sum(header, 0))
}
