// Package ddp encodes and parses the headers of direct data placement, RFC 5041: of tagged
// segments, which say where their payload goes, and of untagged ones, which are numbered in queues.
// It also cuts messages into segments, and checks whether a segment is the next one of its queue,
// because every user needs both. It is a layer of iWARP, for programs that write or read its
// streams, such as readers of captures, fuzzers and test benches of hardware.
//
// Fields are big-endian on the wire, and values in host order in this package. What parses accepts
// any bytes. A segment is a ULPDU of package mpa, and package rdmap has the messages.
//
// The package places nothing: it knows no memory, no access rights and no buffers. The peer's
// errors that it finds are an [*Error], with the number for a Terminate message.
package ddp

import "encoding/binary"

// Lengths of the headers, in bytes.
const (
	TaggedLen   = 14
	UntaggedLen = 18
	MaxLen      = UntaggedLen
)

const version = 1

// The first byte of either header (RFC 5041 §4.1):
//
//	  7        6       5…2       1…0
//	tagged | last | reserved | version
const (
	flagTagged   = 0x80
	flagLast     = 0x40
	maskReserved = 0x3c
	maskVersion  = 0x03
)

// IsTagged reports whether the segment b starts with a tagged header; false if b is empty.
func IsTagged(b []byte) bool { return len(b) > 0 && b[0]&flagTagged != 0 }

// HeaderLen returns the length of the header of the segment b, which must not be empty.
func HeaderLen(b []byte) int {
	if IsTagged(b) {
		return TaggedLen
	}
	return UntaggedLen
}

// Tagged is the header of a segment for a buffer that the sink advertised (RFC 5041 §4.2).
//
//	byte 0   control     byte 1   RsvdULP
//	bytes 2…5   STag
//	bytes 6…13  TO
type Tagged struct {
	Last     bool
	Reserved uint8  // 4 bits, zero when sent, not checked when received
	RsvdULP  uint8  // the ULP's: RDMAP's control byte
	STag     uint32 // of the buffer
	TO       uint64 // tagged offset: where in the buffer the payload goes
}

// Encode writes h into the first TaggedLen bytes of b.
func (h *Tagged) Encode(b []byte) {
	_ = b[TaggedLen-1]
	b[0] = flagTagged | control(h.Last, h.Reserved)
	b[1] = h.RsvdULP
	binary.BigEndian.PutUint32(b[2:], h.STag)
	binary.BigEndian.PutUint64(b[6:], h.TO)
}

// ParseTagged parses the header of the tagged segment b, and returns the payload, a part of b. The
// error is ErrShort or ErrTaggedVersion.
func ParseTagged(b []byte) (h Tagged, payload []byte, err error) {
	if len(b) < TaggedLen {
		return h, nil, ErrShort
	}
	if b[0]&maskVersion != version {
		return h, nil, ErrTaggedVersion
	}
	h = Tagged{
		Last:     b[0]&flagLast != 0,
		Reserved: b[0] & maskReserved >> 2,
		RsvdULP:  b[1],
		STag:     binary.BigEndian.Uint32(b[2:]),
		TO:       binary.BigEndian.Uint64(b[6:]),
	}
	return h, b[TaggedLen:], nil
}

// Untagged is the header of a segment for a buffer of a queue (RFC 5041 §4.3).
//
//	byte 0   control     byte 1   RsvdULP
//	bytes 2…5    RsvdULP, the rest
//	bytes 6…9    QN
//	bytes 10…13  MSN
//	bytes 14…17  MO
type Untagged struct {
	Last       bool
	Reserved   uint8  // 4 bits, zero when sent, not checked when received
	RsvdULP    uint8  // the ULP's: RDMAP's control byte
	Invalidate uint32 // of the ULP too: the STag that RDMAP must invalidate
	QN         uint32 // queue number
	MSN        uint32 // message sequence number, from 1
	MO         uint32 // message offset of the payload, bytes
}

// Encode writes h into the first UntaggedLen bytes of b.
func (h *Untagged) Encode(b []byte) {
	_ = b[UntaggedLen-1]
	b[0] = control(h.Last, h.Reserved)
	b[1] = h.RsvdULP
	binary.BigEndian.PutUint32(b[2:], h.Invalidate)
	binary.BigEndian.PutUint32(b[6:], h.QN)
	binary.BigEndian.PutUint32(b[10:], h.MSN)
	binary.BigEndian.PutUint32(b[14:], h.MO)
}

// ParseUntagged parses the header of the untagged segment b, and returns the payload, a part of b.
// The error is ErrShort or ErrUntaggedVersion.
func ParseUntagged(b []byte) (h Untagged, payload []byte, err error) {
	if len(b) < UntaggedLen {
		return h, nil, ErrShort
	}
	if b[0]&maskVersion != version {
		return h, nil, ErrUntaggedVersion
	}
	h = Untagged{
		Last:       b[0]&flagLast != 0,
		Reserved:   b[0] & maskReserved >> 2,
		RsvdULP:    b[1],
		Invalidate: binary.BigEndian.Uint32(b[2:]),
		QN:         binary.BigEndian.Uint32(b[6:]),
		MSN:        binary.BigEndian.Uint32(b[10:]),
		MO:         binary.BigEndian.Uint32(b[14:]),
	}
	return h, b[UntaggedLen:], nil
}

func control(last bool, reserved uint8) byte {
	c := version | reserved<<2&maskReserved
	if last {
		c |= flagLast
	}
	return c
}

// CheckTO returns ErrTOWrap if n bytes at to end beyond 2^64 (RFC 5041 §7.1).
func CheckTO(to uint64, n int) error {
	if to+uint64(n) < to {
		return ErrTOWrap
	}
	return nil
}
