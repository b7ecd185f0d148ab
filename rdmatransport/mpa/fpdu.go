package mpa

// An FPDU carries one ULPDU, a DDP segment (RFC 5044 §4.1):
//
//	+----------+---------------------+-----------+----------+
//	| length 2 | ULPDU, length bytes | pad 0…3   | CRC32C 4 |
//	+----------+---------------------+-----------+----------+
//
// Its length is a multiple of 4 bytes. If the receiver requested markers, there is one at each
// multiple of 512 bytes of the stream, counted from the first FPDU, anywhere in an FPDU (§4.2,
// §4.3):
//
//	+------------+------------+
//	| reserved 2 | FPDUPTR 2  |    bytes of the stream from the FPDU's length to this marker; 0 between FPDUs
//	+------------+------------+
//
// A marker between two FPDUs belongs to the second. The CRC covers everything before it, including
// markers.
const (
	lengthLen = 2
	crcLen    = 4
	markerLen = 4
	interval  = 512
	between   = interval - markerLen // bytes of FPDUs from one marker to the next
)

// MaxMULPDU is the largest MULPDU in bytes, the longest ULPDU of a connection (RFC 5044 §3).
const MaxMULPDU = 64768

const minMULPDU = 128

// Config is the result of the negotiation for one direction of the stream.
type Config struct {
	Markers bool // the receiving side requested markers
	CRC     bool // either side requested CRCs
}

// MaxULPDU returns the largest ULPDU whose FPDU fits a TCP segment of emss bytes with markers at
// any position (RFC 5044 §4.5), and at least 128 and at most MaxMULPDU bytes.
func (c Config) MaxULPDU(emss int) int {
	n := emss - lengthLen - crcLen - emss%4
	if c.Markers {
		n -= markerLen * ((emss + interval - 1) / interval)
	}
	return min(max(n, minMULPDU), MaxMULPDU)
}

// layout has the positions of an FPDU's parts.
type layout struct {
	size  int // of the FPDU in the stream, markers included
	first int // offset of the first marker; beyond size if there is none
	start int // offset of the length: 4 after a marker, else 0
}

// position is a position in the stream, in bytes after the last marker's position.
type position uint16

// after returns the position after an FPDU.
func (p position) after(l layout) position { return position((int(p) + l.size) % interval) }

// layout returns the layout of the FPDU of an n-byte ULPDU at pos.
func (c Config) layout(pos position, n int) layout {
	size := (lengthLen+n+3)&^3 + crcLen
	if !c.Markers {
		return layout{size: size, first: size}
	}
	l := layout{first: (interval - int(pos)) % interval}
	l.size = size
	if size > l.first {
		l.size += markerLen * (1 + (size-1-l.first)/between)
	}
	if l.first == 0 {
		l.start = markerLen
	}
	return l
}

// nextMarker returns the offset of the first marker after the length.
func (l layout) nextMarker() int {
	if l.first == 0 {
		return interval
	}
	return l.first
}
