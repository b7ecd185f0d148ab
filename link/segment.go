package link

import (
	"encoding/binary"
	"iter"

	"github.com/softrnic/softrnic/link/checksum"
)

// A Cutter cuts a frame into packets as they would be on the wire. It reuses its buffers, so only
// one goroutine at a time may use it.
type Cutter struct {
	whole, packet []byte
}

// Packets yields f itself, or the segments of a superframe. As in Linux, each segment has its own
// lengths, an incremented IPv4 ID, its TCP sequence number and flags, and complete checksums. A UDP
// checksum of 0 over IPv4 stays 0. A superframe whose headers contradict its description is yielded
// uncut. The caller may modify the bytes, which are valid until the next packet.
func (c *Cutter) Packets(f *Frame) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		c.whole = append(c.whole[:0], f.Data...)
		for _, m := range f.More {
			c.whole = append(c.whole, m...)
		}
		g := *f
		g.Data, g.More = c.whole, nil
		if s, ok := newSegmenter(&g); ok {
			for s.next(&c.packet) {
				if !yield(c.packet) {
					return
				}
			}
			return
		}
		g.FinishChecksum()
		yield(g.Data)
	}
}

// A Segmenter cuts one frame after the other into packets, as a [Cutter] does, and writes each into
// a buffer of the caller's. It thus copies the payload once. Only one goroutine at a time may use
// it.
type Segmenter struct {
	// NoUDPChecksum gives the packets of a UDP superframe the checksum 0, which means none (RFC 768,
	// RFC 6935), because another one protects them.
	NoUDPChecksum bool

	cut  segmenter
	one  Frame // a frame that is not cut
	left state
}

type state uint8

const (
	nothing state = iota
	onePacket
	segments
)

// Cut begins with a frame, whose More must be empty. The frame's bytes are in use until Next
// returns false; they do not change.
func (s *Segmenter) Cut(f *Frame) {
	var ok bool
	if s.cut, ok = newSegmenter(f); ok {
		s.left = segments
		s.cut.checksum = s.cut.checksum && !(s.cut.udp && s.NoUDPChecksum)
	} else {
		s.one, s.left = *f, onePacket
	}
}

// Next writes the next packet of the frame to the beginning of dst, and returns its length. It
// returns false after the last packet, and if dst has no room for the packet.
func (s *Segmenter) Next(dst []byte) (n int, ok bool) {
	switch s.left {
	case segments:
		if len(dst) < len(s.cut.header)+min(s.cut.size, len(s.cut.payload)-s.cut.offset) {
			break
		}
		packet := dst[:0]
		if s.cut.next(&packet) {
			return len(packet), true
		}
	case onePacket:
		s.left = nothing
		if len(dst) < len(s.one.Data) {
			break
		}
		n := copy(dst, s.one.Data)
		s.one.Data = dst[:n]
		s.one.FinishChecksum()
		return n, true
	}
	*s = Segmenter{NoUDPChecksum: s.NoUDPChecksum}
	return 0, false
}

// Done reports whether Next would return no further packet of the frame.
func (s *Segmenter) Done() bool { return s.left == nothing || s.left == segments && s.cut.done() }

// Segments returns the number of packets that a frame is cut into.
func (f *Frame) Segments() int {
	payload, size := f.Len()-int(f.HeaderLen), int(f.SegmentSize)
	if f.Segmentation == NoSegmentation || size == 0 || payload <= size {
		return 1
	}
	return (payload + size - 1) / size
}

// segmenter iterates over the segments of a superframe.
type segmenter struct {
	header, payload []byte
	size            int
	udp, checksum   bool
	network         int // offset of the IP header
	transport       int // offset of the transport header
	v4              bool
	ipv4Sum         uint16 // of the IPv4 header without length, ID and checksum
	count, offset   int    // segments and payload bytes that next has returned
}

// Sizes, numbers and offsets in the headers (RFC 791, 8200, 9293, 768).
const (
	etherTypeIPv4, etherTypeIPv6   = 0x0800, 0x86dd
	ipv4Len, ipv6Len               = 20, 40
	protoTCP, protoUDP             = 6, 17
	tcpLen, udpLen                 = 20, 8
	tcpSeq, tcpDataOffset          = 4, 12
	tcpFlags, tcpFIN, tcpPSH       = 13, 0x01, 0x08
	tcpCWR                         = 0x80
	tcpChecksumAt, udpChecksumAt   = 16, 6
	udpLengthAt                    = 4
	ipv4LengthAt, ipv4IDAt         = 2, 4
	ipv4ProtoAt, ipv4ChecksumAt    = 9, 10
	ipv4AddrsAt, ipv6AddrsAt       = 12, 8
	ipv6PayloadLengthAt, nextHdrAt = 4, 6
)

// newSegmenter returns ok only for a superframe whose IPv4 or IPv6 header is directly followed by
// UDP or TCP.
func newSegmenter(f *Frame) (s segmenter, ok bool) {
	h, network := int(f.HeaderLen), NetworkOffset(f.Data)
	if f.Segmentation == NoSegmentation || f.SegmentSize == 0 || h > len(f.Data) || h < network+ipv4Len {
		return s, false
	}
	s = segmenter{header: f.Data[:h], payload: f.Data[h:], size: int(f.SegmentSize), udp: f.Segmentation == UDP, network: network}
	ip := s.header[network:]
	var proto uint8
	switch binary.BigEndian.Uint16(s.header[network-2:]) {
	case etherTypeIPv4:
		s.v4, proto = true, ip[ipv4ProtoAt]
		s.transport = network + int(ip[0]&0xf)*4
		if s.transport < network+ipv4Len {
			return s, false
		}
	case etherTypeIPv6:
		proto = ip[nextHdrAt]
		s.transport = network + ipv6Len
	default:
		return s, false
	}
	if s.udp {
		if proto != protoUDP || h != s.transport+udpLen {
			return s, false
		}
		s.checksum = !s.v4 || f.NeedsChecksum || binary.BigEndian.Uint16(s.header[s.transport+udpChecksumAt:]) != 0
	} else {
		s.checksum = true
		if proto != protoTCP || h < s.transport+tcpLen || h != s.transport+int(s.header[s.transport+tcpDataOffset]>>4)*4 {
			return s, false
		}
	}
	if s.v4 {
		ip := s.header[network:s.transport]
		s.ipv4Sum = checksum.Sum(ip[:ipv4LengthAt], 0)
		s.ipv4Sum = checksum.Sum(ip[ipv4IDAt+2:ipv4ChecksumAt], s.ipv4Sum)
		s.ipv4Sum = checksum.Sum(ip[ipv4ChecksumAt+2:], s.ipv4Sum)
	}
	return s, true
}

// done reports whether next has returned the last segment.
func (s *segmenter) done() bool { return s.offset >= len(s.payload) && s.count > 0 }

// next builds the next segment in *packet. It returns false after the last one.
func (s *segmenter) next(packet *[]byte) bool {
	if s.done() {
		return false
	}
	n := min(s.size, len(s.payload)-s.offset)
	p := append((*packet)[:0], s.header...)
	p = append(p, s.payload[s.offset:s.offset+n]...)
	*packet = p
	last := s.offset+n == len(s.payload)

	ip, segment := p[s.network:], p[s.transport:]
	var addrs []byte
	if s.v4 {
		length, id := uint16(len(ip)), binary.BigEndian.Uint16(s.header[s.network+ipv4IDAt:])+uint16(s.count)
		binary.BigEndian.PutUint16(ip[ipv4LengthAt:], length)
		binary.BigEndian.PutUint16(ip[ipv4IDAt:], id)
		// Only these two differ, so that the header that was just written is not read.
		sum := uint32(s.ipv4Sum) + uint32(length) + uint32(id)
		sum = sum>>16 + sum&0xffff
		binary.BigEndian.PutUint16(ip[ipv4ChecksumAt:], ^uint16(sum>>16+sum))
		addrs = ip[ipv4AddrsAt:][:2*4]
	} else {
		binary.BigEndian.PutUint16(ip[ipv6PayloadLengthAt:], uint16(len(segment)))
		addrs = ip[ipv6AddrsAt:][:2*16]
	}
	proto, at := uint8(protoTCP), tcpChecksumAt
	if s.udp {
		proto, at = protoUDP, udpChecksumAt
		binary.BigEndian.PutUint16(segment[udpLengthAt:], uint16(len(segment)))
	} else {
		s.setTCP(segment, last)
	}
	clear(segment[at:][:2])
	if s.checksum {
		binary.BigEndian.PutUint16(segment[at:], transportChecksum(addrs, proto, segment))
	}
	s.count++
	s.offset += n
	return true
}

// setTCP advances the sequence number. It leaves FIN and PSH to the last segment, and CWR to the
// first (RFC 3168 §6.1.2).
func (s *segmenter) setTCP(h []byte, last bool) {
	binary.BigEndian.PutUint32(h[tcpSeq:], binary.BigEndian.Uint32(h[tcpSeq:])+uint32(s.offset))
	if !last {
		h[tcpFlags] &^= tcpFIN | tcpPSH
	}
	if s.count > 0 {
		h[tcpFlags] &^= tcpCWR
	}
}
