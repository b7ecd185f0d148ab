package mpa

import (
	"encoding/binary"

	"github.com/softrnic/softrnic/rdmatransport/internal/crc"
	"github.com/softrnic/softrnic/rdmatransport/internal/prefetch"
)

// Sender builds FPDUs of ULPDUs, in the order of the stream. It is not safe for concurrent use.
type Sender struct {
	Config
	pos position // of the next FPDU
	sum uint32
	dst []byte // of the current FPDU
	n   uint16 // bytes of its ULPDU
	at  int32  // number of bytes written to dst
	in  int32  // number of these bytes in sum
}

// shortest is the number of bytes from which on the CRC is computed while they are copied.
const shortest = 256

// ahead is how many bytes ahead of the copy user memory is prefetched. It is seldom in the caches.
// These are the next bytes of a message that continues.
const ahead = 4 << 10

// NewSender returns a Sender for a stream after the exchange of request and reply.
func NewSender(c Config) Sender { return Sender{Config: c} }

// Size returns the number of stream bytes of the next FPDU if its ULPDU has n bytes, 0 to
// [MaxMULPDU].
func (s *Sender) Size(n int) int { return s.layout(s.pos, n).size }

// Begin begins the FPDU of an n-byte ULPDU in dst, which must have Size(n) bytes. [Sender.Add] with
// the whole ULPDU and [Sender.End] must follow.
func (s *Sender) Begin(dst []byte, n int) {
	at := s.layout(s.pos, n).start
	binary.BigEndian.PutUint16(dst[at:], uint16(n))
	s.dst, s.n, s.at, s.in, s.sum = dst, uint16(n), int32(at+lengthLen), 0, 0
}

// Add copies the next bytes of the ULPDU. They are user memory, except for headers.
func (s *Sender) Add(b []byte) {
	if !s.CRC || s.Markers || len(b) < shortest { // markers move the written bytes
		prefetch.Read(b, ahead)
		s.at += int32(copy(s.dst[s.at:], b))
		return
	}
	s.cover(s.at)
	s.sum = crc.Castagnoli.Copy(s.dst[s.at:], b, s.sum, ahead)
	s.at += int32(len(b))
	s.in = s.at
}

// cover adds the bytes before end to the CRC.
func (s *Sender) cover(end int32) {
	s.sum = crc.Castagnoli.Update(s.sum, s.dst[s.in:end])
	s.in = end
}

// End completes the FPDU since Begin: pad, markers, CRC. dst is then the next part of the stream.
// Without negotiated CRCs the field is zero.
func (s *Sender) End() {
	l := s.layout(s.pos, int(s.n))
	l.spread(s.dst[:l.size], int(s.at))
	if s.CRC {
		s.cover(int32(l.size) - crcLen)
		binary.LittleEndian.PutUint32(s.dst[s.in:], s.sum)
	}
	s.pos = s.pos.after(l)
	s.dst = nil
}

// spread inserts the markers and the pad into dst, in which written bytes are in place. It starts
// at the end, so that nothing is overwritten before it is moved.
func (l layout) spread(dst []byte, written int) {
	markers := 0 // within the FPDU: those that move later bytes
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
