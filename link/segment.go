package link

import (
	"encoding/binary"
	"iter"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"
)

// A Cutter makes of a frame the packets that it is on the wire. It keeps its buffers: one goroutine at a time.
type Cutter struct {
	whole, packet []byte
}

// Packets yields f itself, or the segments of a superframe, each with its own lengths, IPv4 ID counting up, TCP
// sequence number and flags, and all checksums complete, as Linux cuts it. A UDP checksum of 0 over IPv4 stays 0. A
// superframe whose headers do not say what its description says comes whole. The bytes are the receiver's to change
// and valid until the next.
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

// segmenter walks a superframe.
type segmenter struct {
	header, payload []byte
	size            int
	udp, checksum   bool
	network         int // offset of the IP header
	transport       int // and of the transport's
	v4              bool
	count, offset   int // segments and payload bytes done
}

// newSegmenter is not ok if f is no superframe or not one of IPv4 or IPv6 with UDP or TCP right behind.
func newSegmenter(f *Frame) (s segmenter, ok bool) {
	h, network := int(f.HeaderLen), NetworkOffset(f.Data)
	if f.Segmentation == NoSegmentation || f.SegmentSize == 0 || h > len(f.Data) || h < network+header.IPv4MinimumSize {
		return s, false
	}
	s = segmenter{header: f.Data[:h], payload: f.Data[h:], size: int(f.SegmentSize), udp: f.Segmentation == UDP, network: network}
	ip := s.header[network:]
	var proto uint8
	switch tcpip.NetworkProtocolNumber(binary.BigEndian.Uint16(s.header[network-2:])) {
	case header.IPv4ProtocolNumber:
		s.v4, proto = true, ip[9]
		s.transport = network + int(header.IPv4(ip).HeaderLength())
		if s.transport < network+header.IPv4MinimumSize {
			return s, false
		}
	case header.IPv6ProtocolNumber:
		proto = ip[6]
		s.transport = network + header.IPv6MinimumSize
	default:
		return s, false
	}
	if s.udp {
		if proto != uint8(header.UDPProtocolNumber) || h != s.transport+header.UDPMinimumSize {
			return s, false
		}
		s.checksum = !s.v4 || f.NeedsChecksum || binary.BigEndian.Uint16(s.header[s.transport+6:]) != 0
		return s, true
	}
	s.checksum = true
	return s, proto == uint8(header.TCPProtocolNumber) && h >= s.transport+header.TCPMinimumSize &&
		h == s.transport+int(header.TCP(s.header[s.transport:]).DataOffset())
}

// next makes the next segment in *packet; false after the last.
func (s *segmenter) next(packet *[]byte) bool {
	if s.offset >= len(s.payload) && s.count > 0 {
		return false
	}
	n := min(s.size, len(s.payload)-s.offset)
	p := append((*packet)[:0], s.header...)
	p = append(p, s.payload[s.offset:s.offset+n]...)
	*packet = p
	last := s.offset+n == len(s.payload)

	ip, segment := p[s.network:], p[s.transport:]
	var src, dst tcpip.Address
	if s.v4 {
		h := header.IPv4(ip)
		h.SetTotalLength(uint16(len(ip)))
		h.SetID(h.ID() + uint16(s.count))
		h.SetChecksum(0)
		h.SetChecksum(^h.CalculateChecksum())
		src, dst = h.SourceAddress(), h.DestinationAddress()
	} else {
		h := header.IPv6(ip)
		h.SetPayloadLength(uint16(len(segment)))
		src, dst = h.SourceAddress(), h.DestinationAddress()
	}
	proto, at := header.TCPProtocolNumber, header.TCPChecksumOffset
	if s.udp {
		proto, at = header.UDPProtocolNumber, 6
		header.UDP(segment).SetLength(uint16(len(segment)))
	} else {
		s.setTCP(header.TCP(segment), last)
	}
	clear(segment[at : at+2])
	if s.checksum {
		sum := ^checksum.Checksum(segment, header.PseudoHeaderChecksum(proto, src, dst, uint16(len(segment))))
		if sum == 0 {
			sum = 0xffff
		}
		binary.BigEndian.PutUint16(segment[at:], sum)
	}
	s.count++
	s.offset += n
	return true
}

// setTCP counts the sequence number up, leaves FIN and PSH to the last segment and CWR to the first (RFC 3168 §6.1.2).
func (s *segmenter) setTCP(h header.TCP, last bool) {
	const cwr = 0x80
	h.SetSequenceNumber(h.SequenceNumber() + uint32(s.offset))
	flags := h.Flags()
	if !last {
		flags &^= header.TCPFlagFin | header.TCPFlagPsh
	}
	if s.count > 0 {
		flags &^= cwr
	}
	h.SetFlags(uint8(flags))
}
