package mpa

import (
	"encoding/binary"
	"hash/crc32"
)

// Sender makes FPDUs of ULPDUs, in the order of the stream. It is used by one goroutine at a time.
type Sender struct {
	Config
	pos int // of the next FPDU, behind the last marker's place
	dst []byte
	n   int
}

// NewSender returns a Sender at the start of full operation.
func NewSender(c Config) Sender { return Sender{Config: c} }

// Size is how many bytes of the stream the next FPDU takes if its ULPDU has n bytes, 0 to [MaxMULPDU].
func (s *Sender) Size(n int) int { return s.lay(s.pos, n).size }

// Begin returns the place in dst to write the n-byte ULPDU to. dst is Size(n) bytes long. [Sender.End] follows.
func (s *Sender) Begin(dst []byte, n int) (ulpdu []byte) {
	at := s.lay(s.pos, n).start + lengthLen
	s.dst, s.n = dst, n
	return dst[at : at+n : at+n]
}

// End makes an FPDU of the ULPDU that was written since Begin: length, pad, markers, CRC. dst is then what the stream
// must carry next. Without agreed CRCs the field is zero.
func (s *Sender) End() {
	l, dst := s.lay(s.pos, s.n), s.dst
	dst = dst[:l.size]
	binary.BigEndian.PutUint16(dst[l.start:], uint16(s.n))
	l.spread(dst, l.start+lengthLen+s.n)
	if s.CRC {
		sum := dst[l.size-crcLen:]
		binary.LittleEndian.PutUint32(sum, crc32.Checksum(dst[:l.size-crcLen], castagnoli))
	}
	s.pos = (s.pos + l.size) % interval
	s.dst = nil
}

// spread makes room for the markers in dst, of which written bytes are in place, and puts them there with the pad.
// Last things first, so that nothing is overwritten before it has moved.
func (l layout) spread(dst []byte, written int) {
	markers := 0 // within the FPDU: those that move what follows
	if next := l.nextMarker(); next < l.size {
		markers = 1 + (l.size-1-next)/interval
	}
	clear(dst[written : l.size-markers*markerLen])
	for i := markers; i > 0; i-- {
		at := l.nextMarker() + (i-1)*interval
		end := min(at+interval, l.size)
		copy(dst[at+markerLen:end], dst[at-(i-1)*markerLen:])
		binary.BigEndian.PutUint32(dst[at:], uint32(at-l.start))
	}
	if l.start != 0 {
		clear(dst[:markerLen])
	}
}
