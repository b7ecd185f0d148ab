package trace

import (
	"encoding/binary"
	"math/bits"
	"net/netip"
)

// A verdict is the result of checking a TCP or UDP checksum.
type verdict uint8

const (
	absent    verdict = iota // UDP: the field is zero
	right                    // it matches the packet
	offloaded                // it covers only the pseudo header: checksum offload (CHECKSUM_PARTIAL)
	damaged
)

// add adds b in 16-bit words to the unfolded ones' complement sum s. Only the last piece may have
// an odd length.
func add(s uint64, b []byte) uint64 {
	var c uint64
	for len(b) >= 32 {
		s, c = bits.Add64(s, binary.BigEndian.Uint64(b), c)
		s, c = bits.Add64(s, binary.BigEndian.Uint64(b[8:]), c)
		s, c = bits.Add64(s, binary.BigEndian.Uint64(b[16:]), c)
		s, c = bits.Add64(s, binary.BigEndian.Uint64(b[24:]), c)
		b = b[32:]
	}
	for len(b) >= 8 {
		s, c = bits.Add64(s, binary.BigEndian.Uint64(b), c)
		b = b[8:]
	}
	if len(b) > 0 {
		var last [8]byte
		copy(last[:], b)
		s, c = bits.Add64(s, binary.BigEndian.Uint64(last[:]), c)
	}
	s, c = bits.Add64(s, 0, c)
	return s + c
}

// fold folds a sum to 16 bits.
func fold(s uint64) uint16 {
	s = s>>32 + s&0xffffffff
	s = s>>32 + s&0xffffffff
	s = s>>16 + s&0xffff
	s = s>>16 + s&0xffff
	return uint16(s)
}

// transportChecksum checks the checksum of a TCP segment or UDP datagram. Its field is at offset at
// (RFC 9293 §3.1, RFC 768, RFC 8200 §8.1).
func transportChecksum(src, dst netip.Addr, proto uint8, b []byte, at int) verdict {
	field := binary.BigEndian.Uint16(b[at:])
	if field == 0 && proto == protoUDP {
		return absent
	}
	pseudo := uint64(len(b)) + uint64(proto)
	if src.Is4() {
		s, d := src.As4(), dst.As4()
		pseudo = add(add(pseudo, s[:]), d[:])
	} else {
		s, d := src.As16(), dst.As16()
		pseudo = add(add(pseudo, s[:]), d[:])
	}
	switch {
	case fold(add(pseudo, b)) == 0xffff:
		return right
	case field == fold(pseudo):
		return offloaded
	}
	return damaged
}
