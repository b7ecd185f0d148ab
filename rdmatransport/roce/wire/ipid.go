package wire

import (
	"encoding/binary"
	"hash/crc32"
	"math/bits"
)

// ID is the identification in an IPv4 header.
func ID(header []byte) uint16 { return binary.BigEndian.Uint16(header[idAt:]) }

// SolveID finds the IPv4 identification under which pkt, all that is behind the UDP header, has its
// ICRC. header is the IPv4 header (20 bytes, no options) and the UDP header, with any
// identification; its other fields must be those that the packet was sent with. A socket does not
// show the identification of what it receives, and the ICRC covers it.
//
// ok is false if there is no such identification: then the packet was damaged, or another field of
// header is wrong. For a damaged packet one is found by chance once in 65,536 times, because 16 of
// the ICRC's 32 bits are spent on finding it.
//
// A CRC is linear. The ICRC of two packets that differ in the identification alone differ by what
// the difference of the two adds: that is those 16 bits as a polynomial, times x^32, times x^8 for
// each byte behind them, modulo the CRC's polynomial. Dividing by that power of x, except for x^16,
// leaves the difference in 16 of 32 bits, and zeros in the others.
func SolveID(header, pkt []byte) (id uint16, ok bool) {
	const (
		behind  = ipv4UDPLen - idAt - 2 // bytes of the header behind it
		longest = len(inverse.high)*len(inverse.low) - behind - 2
	)
	n := len(pkt) - ICRCLen
	if len(header) != ipv4UDPLen || n < BTHLen || n >= longest {
		return 0, false
	}
	guess := ID(header)
	difference := binary.LittleEndian.Uint32(pkt[n:]) ^ ICRC(header, pkt[:n])
	if difference == 0 {
		return guess, true
	}
	by := behind + n + 2
	difference = multiply(difference, inverse.low[by%len(inverse.low)])
	difference = multiply(difference, inverse.high[by/len(inverse.low)])
	if difference>>16 != 0 {
		return 0, false
	}
	return guess ^ bits.ReverseBytes16(uint16(difference)), true
}

const (
	ipv4UDPLen = 20 + 8
	idAt       = 4 // of the identification in the header
)

// Polynomials modulo that of the CRC have the coefficient of x^0 in bit 31, as crc32.IEEE has.

const one = 1 << 31

// inverse has the powers of x^-8: low[i] is x^(-8i), high[i] is low[1] to the power of 256i.
var inverse = struct{ low, high [256]uint32 }{}

func init() {
	byteBack := uint32(one)
	for range 8 { // divide by x: multiplying shifts to the right, and adds crc32.IEEE, the only summand with bit 31, for a bit lost
		if byteBack&one != 0 {
			byteBack = (byteBack^crc32.IEEE)<<1 | 1
		} else {
			byteBack <<= 1
		}
	}
	fill := func(t *[256]uint32, factor uint32) (next uint32) {
		next = one
		for i := range t {
			t[i] = next
			next = multiply(next, factor)
		}
		return next
	}
	fill(&inverse.high, fill(&inverse.low, byteBack))
}

// multiply is a·b modulo the CRC's polynomial.
func multiply(a, b uint32) (product uint32) {
	for range 32 {
		product ^= b & -(a >> 31)
		a <<= 1
		b = b>>1 ^ crc32.IEEE&-(b&1)
	}
	return product
}
