package ring

import (
	"encoding/binary"

	"github.com/softrnic/softrnic/link"
)

const (
	headerLen   = 32
	recordAlign = headerLen
)

// Bits of a record's flags. Other bits are ignored.
const (
	partialChecksum = 1 << iota
	validChecksum
	noICRC
)

// recordLen returns the length of the record of a frame of n bytes.
func recordLen(n int) uint64 {
	return (uint64(n) + headerLen + recordAlign - 1) &^ (recordAlign - 1)
}

// header is a record's header, decoded.
type header struct {
	length int
	size   uint64
	frame  link.Frame // without data
}

// encode returns the header of a record of size bytes with a frame of length bytes.
func encode(f *link.Frame, length int, size uint64) (h [headerLen]byte) {
	e := binary.NativeEndian
	e.PutUint32(h[0:], uint32(length))
	e.PutUint32(h[16:], uint32(size))
	h[4] = byte(f.Segmentation)
	if f.NeedsChecksum {
		h[5] |= partialChecksum
	}
	if f.ChecksumValid {
		h[5] |= validChecksum
	}
	if f.NoICRC {
		h[5] |= noICRC
	}
	e.PutUint16(h[6:], f.SegmentSize)
	e.PutUint16(h[8:], f.HeaderLen)
	e.PutUint16(h[10:], f.ChecksumStart)
	e.PutUint16(h[12:], f.ChecksumOffset)
	return h
}

// decode decodes a header. It accepts any bytes.
func decode(h *[headerLen]byte) header {
	e := binary.NativeEndian
	return header{
		length: int(min(e.Uint32(h[0:]), MaxFrame+1)), // limited: every longer length is equally invalid
		size:   uint64(e.Uint32(h[16:])),
		frame: link.Frame{
			Segmentation:   link.Segmentation(h[4]),
			NeedsChecksum:  h[5]&partialChecksum != 0,
			ChecksumValid:  h[5]&validChecksum != 0,
			NoICRC:         h[5]&noICRC != 0,
			SegmentSize:    e.Uint16(h[6:]),
			HeaderLen:      e.Uint16(h[8:]),
			ChecksumStart:  e.Uint16(h[10:]),
			ChecksumOffset: e.Uint16(h[12:]),
		},
	}
}
