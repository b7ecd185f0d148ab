package wire

import (
	"encoding/binary"
	"hash/crc32"

	"github.com/softrnic/softrnic/rdmatransport/internal/crc"
)

// ICRC returns the invariant CRC of a packet. header is its IPv4 (20 bytes, no options) or IPv6 (40
// bytes) header and the 8 bytes of UDP header, or for RoCE v1 the 40 bytes of GRH, as on the wire.
// b is the rest without the last four bytes. Fields that routers may change count as ones, and
// eight bytes of ones stand for InfiniBand's LRH (IBTA A17.3.3, Vol 1 §7.8.1):
//
//	IPv4        TOS, TTL, header checksum
//	IPv6, GRH   traffic class, flow label, hop limit
//	UDP         checksum
//	BTH         byte 4 (FECN, BECN, reserved)
//
// header must have one of the three lengths and b at least BTHLen bytes.
func ICRC(header, b []byte) uint32 {
	var sum uint32
	switch len(header) {
	case len(overIPv4.rows):
		r, h := &overIPv4.rows, (*[20 + 8]byte)(header)
		sum = overIPv4.start ^ sum20(r[:20], h[:20]) ^ sum4(r[20:], h[20:]) ^ sum4(r[24:], h[24:])
	case len(overGRH.rows):
		r, h := &overGRH.rows, (*[GRHLen]byte)(header)
		sum = overGRH.start ^ sum20(r[:20], h[:20]) ^ sum20(r[20:], h[20:])
	default:
		r, h := &overIPv6.rows, (*[40 + 8]byte)(header)
		sum = overIPv6.start ^ sum20(r[:20], h[:20]) ^ sum20(r[20:], h[20:]) ^ sum4(r[40:], h[40:]) ^ sum4(r[44:], h[44:])
	}
	r, bth := &overBTH, (*[BTHLen]byte)(b)
	sum ^= sum4(r[:], bth[:]) ^ sum4(r[4:], bth[4:]) ^ sum4(r[8:], bth[8:])
	return Update(sum, b[BTHLen:])
}

// Run computes the ICRCs of packets of a superframe or of a path. Their headers differ only in the
// lengths and the IPv4 identification. The sum of all other header fields is cached while packets
// of one length follow each other whose BTHs differ only in the last four bytes (AckReq and PSN).
// The zero value is ready for use.
type Run struct {
	kept  uint32
	size  uint16 // length in the IP header; never 0, so that the zero value matches nothing
	front uint64 // bytes 0 to 7 of the BTH
}

// ICRC returns ICRC(header, b).
func (r *Run) ICRC(header, b []byte) uint32 {
	bth := (*[BTHLen]byte)(b)
	front := binary.BigEndian.Uint64(bth[:])
	var size uint16
	changes := overBTH[8][bth[8]] ^ overBTH[9][bth[9]] ^ overBTH[10][bth[10]] ^ overBTH[11][bth[11]]
	if len(header) == len(overIPv4.rows) {
		h := (*[20 + 8]byte)(header)
		size = binary.BigEndian.Uint16(h[2:])
		changes ^= overIPv4.rows[4][h[4]] ^ overIPv4.rows[5][h[5]]
	} else {
		size = binary.BigEndian.Uint16(header[4:])
	}
	if size != r.size || front != r.front || size == 0 {
		r.kept, r.size, r.front = ICRC(header, bth[:])^changes, size, front
	}
	if len(b) == BTHLen {
		return r.kept ^ changes
	}
	return Update(r.kept^changes, b[BTHLen:])
}

// Check returns CheckICRC(header, pkt).
func (r *Run) Check(header, pkt []byte) bool {
	n := len(pkt) - ICRCLen
	return checkable(header, n) && binary.LittleEndian.Uint32(pkt[n:]) == r.ICRC(header, pkt[:n])
}

// Update returns the ICRC of a packet from the sum of its first part and the rest, b. With [ICRC]
// of the headers as the sum, a payload can be added in pieces.
func Update(sum uint32, b []byte) uint32 {
	if len(b) < shortest {
		return updateShort(sum, b)
	}
	return crc.IEEE.Update(sum, b)
}

// shortest is the minimum length in bytes for which hash/crc32 uses the processor's instructions.
// For shorter data, its check for these instructions takes most of the time.
const shortest = 64

// updateShort is crc32.Update for eight and four bytes at a time: RoCE packets are multiples of
// four.
func updateShort(crc uint32, b []byte) uint32 {
	crc = ^crc
	for ; len(b) >= 8; b = b[8:] {
		x := binary.LittleEndian.Uint64(b) ^ uint64(crc)
		crc = distant[7][uint8(x)] ^ distant[6][uint8(x>>8)] ^ distant[5][uint8(x>>16)] ^ distant[4][uint8(x>>24)] ^
			distant[3][uint8(x>>32)] ^ distant[2][uint8(x>>40)] ^ distant[1][uint8(x>>48)] ^ distant[0][uint8(x>>56)]
	}
	for ; len(b) >= 4; b = b[4:] {
		x := binary.LittleEndian.Uint32(b) ^ crc
		crc = distant[3][uint8(x)] ^ distant[2][uint8(x>>8)] ^ distant[1][uint8(x>>16)] ^ distant[0][uint8(x>>24)]
	}
	for _, v := range b {
		crc = crc>>8 ^ distant[0][uint8(crc)^v]
	}
	return ^crc
}

// sum4 sums the table entries of the first four bytes of b, and sum20 of the first twenty. Without
// a loop, and with constant lengths, a byte takes two instructions.
func sum4(rows []row, b []byte) uint32 {
	r, x := (*[4]row)(rows), (*[4]byte)(b)
	return r[0][x[0]] ^ r[1][x[1]] ^ r[2][x[2]] ^ r[3][x[3]]
}

func sum20(rows []row, b []byte) uint32 {
	r, x := (*[20]row)(rows), (*[20]byte)(b)
	return sum4(r[:], x[:]) ^ sum4(r[4:], x[4:]) ^ sum4(r[8:], x[8:]) ^ sum4(r[12:], x[12:]) ^ sum4(r[16:], x[16:])
}

// row maps a byte's value to its share of a CRC, for one distance from the end. A CRC over a known
// number of bytes is the sum of these shares, and of the CRC of zeros. The headers, in which some
// bits always count as ones, therefore cost one table lookup per byte. That is much less than a
// copy with these bits set, and hash/crc32 over it.
type row [256]uint32

var (
	overIPv4 = struct { // by the position in header
		start uint32
		rows  [20 + 8]row
	}{start: startOf(maskIPv4[:])}
	overIPv6 = struct {
		start uint32
		rows  [40 + 8]row
	}{start: startOf(maskIPv6[:])}
	overGRH = struct {
		start uint32
		rows  [GRHLen]row
	}{start: startOf(maskIPv6[:GRHLen])}
	overBTH [BTHLen]row
	distant [8]row // by the distance from the end
)

// Bits that count as ones.
var (
	maskIPv4 = [20 + 8]byte{1: 0xff, 8: 0xff, 10: 0xff, 11: 0xff, 20 + 6: 0xff, 20 + 7: 0xff}
	maskIPv6 = [40 + 8]byte{0: 0x0f, 1: 0xff, 2: 0xff, 3: 0xff, 7: 0xff, 40 + 6: 0xff, 40 + 7: 0xff}
	maskBTH  = [BTHLen]byte{4: 0xff}
)

// startOf returns the CRC of the eight bytes of ones, a header and a BTH, with all bits zero except
// those that count as ones.
func startOf(mask []byte) uint32 {
	lrh := [8]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	crc := crc32.ChecksumIEEE(lrh[:])
	crc = crc32.Update(crc, crc32.IEEETable, mask)
	return crc32.Update(crc, crc32.IEEETable, maskBTH[:])
}

func init() {
	distant[0] = row(*crc32.IEEETable)
	for i, r := range distant[:7] {
		for v, crc := range r {
			distant[i+1][v] = crc>>8 ^ crc32.IEEETable[byte(crc)]
		}
	}
	last := distant[0] // of the last byte
	back := func(r *row, mask byte) {
		for v := range r {
			r[v] = last[byte(v)&^mask]
		}
		for v, crc := range last { // one byte further from the end, as with a zero after it
			last[v] = crc>>8 ^ crc32.IEEETable[byte(crc)]
		}
	}
	for i := BTHLen - 1; i >= 0; i-- {
		back(&overBTH[i], maskBTH[i])
	}
	before := last
	for i := len(maskIPv4) - 1; i >= 0; i-- {
		back(&overIPv4.rows[i], maskIPv4[i])
	}
	last = before
	for i := len(maskIPv6) - 1; i >= 0; i-- {
		back(&overIPv6.rows[i], maskIPv6[i])
	}
	last = before
	for i := GRHLen - 1; i >= 0; i-- {
		back(&overGRH.rows[i], maskIPv6[i])
	}
}

// GRHLen is the length of RoCE v1's GRH in bytes; it has the format of an IPv6 header.
const GRHLen = 40

// PutICRC computes the ICRC of pkt, which is everything after the header, and writes it to the
// last four bytes of pkt (little-endian). Without a header, the packet has no ICRC, and the bytes
// are zeros.
func PutICRC(header, pkt []byte) {
	n := len(pkt) - ICRCLen
	if len(header) == 0 {
		clear(pkt[n:])
		return
	}
	PutSum(pkt, ICRC(header, pkt[:n]))
}

// PutSum writes a known ICRC to the last four bytes of pkt.
func PutSum(pkt []byte, sum uint32) {
	binary.LittleEndian.PutUint32(pkt[len(pkt)-ICRCLen:], sum)
}

// CheckICRC reports whether the last four bytes of pkt, which is everything after the header, are
// its ICRC. It returns false if pkt is too short or the header has an unknown length.
func CheckICRC(header, pkt []byte) bool {
	n := len(pkt) - ICRCLen
	return checkable(header, n) && binary.LittleEndian.Uint32(pkt[n:]) == ICRC(header, pkt[:n])
}

// checkable reports whether an ICRC is defined for a header and n bytes.
func checkable(header []byte, n int) bool {
	return n >= BTHLen && (len(header) == 20+8 || len(header) == 40+8 || len(header) == GRHLen)
}
