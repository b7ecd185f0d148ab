package mpa

import (
	"encoding/binary"

	"github.com/softrnic/softrnic/rdmatransport/crc"
	"github.com/softrnic/softrnic/rdmatransport/internal/prefetch"
)

// Sender makes FPDUs of ULPDUs, in the order of the stream. Only one goroutine may use it at a
// time.
type Sender struct {
	Config
	pos position // of the next FPDU
	sum uint32
	dst []byte // of the FPDU that was begun
	n   uint16 // bytes of its ULPDU
	at  int32  // how many bytes of dst are written
	in  int32  // how many of those are in sum
}

// shortest is from how many bytes on the CRC is taken while they are copied.
const shortest = 256

// ahead is how many bytes ahead of the copy user memory is prefetched, which the caches seldom
// hold: what is copied next, where the message goes on.
const ahead = 4 << 10

// NewSender returns a Sender for a stream on which the request and the reply have been exchanged.
func NewSender(c Config) Sender { return Sender{Config: c} }

// Size is how many bytes of the stream the next FPDU takes if its ULPDU has n bytes, 0 to
// [MaxMULPDU].
func (s *Sender) Size(n int) int { return s.layout(s.pos, n).size }

// Begin begins the FPDU of an n-byte ULPDU in dst, which is Size(n) bytes long. [Sender.Add] with
// all of the ULPDU and [Sender.End] follow.
func (s *Sender) Begin(dst []byte, n int) {
	at := s.layout(s.pos, n).start
	binary.BigEndian.PutUint16(dst[at:], uint16(n))
	s.dst, s.n, s.at, s.in, s.sum = dst, uint16(n), int32(at+lengthLen), 0, 0
}

// Add copies the next bytes of the ULPDU, user memory but for headers.
func (s *Sender) Add(b []byte) {
	if !s.CRC || s.Markers || len(b) < shortest { // markers move what is written
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

// End makes an FPDU of the ULPDU that was added since Begin: pad, markers, CRC. dst is then what
// the stream must carry next. Without agreed CRCs the field is zero.
func (s *Sender) End() {
	l := s.layout(s.pos, int(s.n))
	l.spread(s.dst[:l.size], int(s.at))
	if s.CRC {
		s.cover(int32(l.size) - crcLen)
		binary.LittleEndian.PutUint32(s.dst[s.in:], s.sum)
	}
	s.pos = s.pos.behind(l)
	s.dst = nil
}

// spread makes room for the markers in dst, of which written bytes are in place, and puts them
// there with the pad. It begins at the end, so that nothing is overwritten before it was moved.
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
