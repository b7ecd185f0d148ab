package wire

import (
	"encoding/binary"
	"hash/crc32"
	"sync"
)

// ICRC is the invariant CRC of a packet: header is its IPv4 (20 bytes, no options) or IPv6 (40 bytes) header and the
// 8 bytes of UDP header, as on the wire; b is the UDP payload without its last four bytes. What routers may change
// counts as ones, and eight bytes of ones stand where InfiniBand has its LRH (IBTA A17.3.3, Vol 1 §7.8.1):
//
//	IPv4   TOS, TTL, header checksum
//	IPv6   traffic class, flow label, hop limit
//	UDP    checksum
//	BTH    byte 4 (FECN, BECN, reserved)
//
// header must have one of the two lengths and b at least BTHLen bytes.
func ICRC(header, b []byte) uint32 {
	scratch := prefixes.Get().(*prefix)
	s := append(scratch[:0], 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff)
	s = append(s, header...)
	ip := s[8:]
	if len(header) == 20+8 {
		ip[1], ip[8], ip[10], ip[11] = 0xff, 0xff, 0xff, 0xff
	} else {
		ip[0] |= 0x0f
		ip[1], ip[2], ip[3], ip[7] = 0xff, 0xff, 0xff, 0xff
	}
	udp := s[len(s)-8:]
	udp[6], udp[7] = 0xff, 0xff
	bth := len(s)
	n := min(len(b), prefixLen-bth)
	s = append(s, b[:n]...)
	s[bth+4] = 0xff
	crc := crc32.ChecksumIEEE(s)
	prefixes.Put(scratch)
	return crc32.Update(crc, crc32.IEEETable, b[n:])
}

// prefix is where the bytes that count differently from what they are stand, and as much of the packet behind them as
// makes hash/crc32 take its vector path. Not on the stack: hash/crc32 lets its argument escape.
type prefix [prefixLen]byte

// prefixLen holds the prefix of an IPv6 packet's BTH (68 bytes), is at least 64 and a multiple of 16.
const prefixLen = 80

var prefixes = sync.Pool{New: func() any { return new(prefix) }}

// PutICRC computes the ICRC of pkt, a whole UDP payload, and writes it to its last four bytes (little-endian).
func PutICRC(header, pkt []byte) {
	n := len(pkt) - ICRCLen
	binary.LittleEndian.PutUint32(pkt[n:], ICRC(header, pkt[:n]))
}

// CheckICRC tells whether the last four bytes of pkt, a whole UDP payload, are its ICRC. It is false for anything
// that is too short, or whose header is not of a known length.
func CheckICRC(header, pkt []byte) bool {
	n := len(pkt) - ICRCLen
	if n < BTHLen || (len(header) != 20+8 && len(header) != 40+8) {
		return false
	}
	return binary.LittleEndian.Uint32(pkt[n:]) == ICRC(header, pkt[:n])
}
