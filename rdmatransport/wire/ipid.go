package wire

import (
	"encoding/binary"
	"hash/crc32"
	"math/bits"
)

// ID returns the identification in an IPv4 header of at least 6 bytes.
func ID(header []byte) uint16 { return binary.BigEndian.Uint16(header[idAt:]) }

// SolveID computes the IPv4 identification from the ICRC of pkt, which is everything after the UDP
// header. header is the IPv4 header (20 bytes, no options) and the UDP header, with any
// identification. Its other fields must be those of the sent packet. A socket does not show the
// identification of received packets, but the ICRC covers it.
//
// ok is false if no identification matches: the packet was damaged, or another field of header is
// wrong. A damaged packet has a match with a probability of 1 in 65,536, because 16 of the ICRC's
// 32 bits are used to find the identification.
//
// A CRC is linear. If two packets differ only in the identification, the difference of their ICRCs
// depends only on the difference of the identifications. It is those 16 bits as a polynomial, times
// x^32, times x^8 for each byte after them, modulo the CRC's polynomial. Division by that power of
// x, except for x^16, leaves the difference in 16 of 32 bits, and zeros in the others.
func SolveID(header, pkt []byte) (id uint16, ok bool) {
	n := len(pkt) - ICRCLen
	if len(header) != ipv4UDPLen || n < BTHLen || n >= longestSolved {
		return 0, false
	}
	return solveID(header, binary.LittleEndian.Uint32(pkt[n:])^ICRC(header, pkt[:n]), n)
}

// solveID computes the identification from the difference of a packet's ICRC and that for the
// header's identification. The CRC covers n bytes after the header, at most longestSolved.
func solveID(header []byte, difference uint32, n int) (id uint16, ok bool) {
	guess := ID(header)
	if difference == 0 {
		return guess, true
	}
	by := afterID + n + 2
	difference = multiply(difference, inverse.low[by%len(inverse.low)])
	difference = multiply(difference, inverse.high[by/len(inverse.low)])
	if difference>>16 != 0 {
		return 0, false
	}
	return guess ^ bits.ReverseBytes16(uint16(difference)), true
}

const (
	ipv4UDPLen = 20 + 8
	idAt       = 4 // offset of the identification in the header

	afterID       = ipv4UDPLen - idAt - 2 // bytes of the header after it
	longestSolved = len(inverse.high)*len(inverse.low) - afterID - 2
)

// Polynomials modulo that of the CRC have the coefficient of x^0 in bit 31, like crc32.IEEE.

const one = 1 << 31

// inverse has the powers of x^-8: low[i] is x^(-8i), and high[i] is low[1] to the power of 256i.
var inverse = struct{ low, high [256]uint32 }{}

func init() {
	byteBack := uint32(one)
	// Divide by x: multiplication shifts to the right, and adds crc32.IEEE, the only term with bit 31,
	// for a lost bit.
	for range 8 {
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

// multiply returns a·b modulo the CRC's polynomial.
func multiply(a, b uint32) (product uint32) {
	for range 32 {
		product ^= b & -(a >> 31)
		a <<= 1
		b = b>>1 ^ crc32.IEEE&-(b&1)
	}
	return product
}
