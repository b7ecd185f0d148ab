// Package attack sends a SoftRNIC the packets that its guards have to drop: old ones, and those
// with a wrong CRC, address, number or key. It is for tests, over IPv4.
package attack

import (
	"bytes"
	"encoding/binary"
	"slices"
	"sync"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/checksum"
	"github.com/softrnic/softrnic/rdmatransport/wire"
)

// Path is a link on which all frames are seen, and frames can be added. The frames of the host
// behind the link are single packets, and those of the other host must be too. It completes
// checksums.
type Path struct {
	link.Link

	mu   sync.Mutex
	seen []Seen
}

// Seen is a frame that has passed. Out: it is from the host behind the link.
type Seen struct {
	Out  bool
	Data []byte
}

// NewPath returns a path on a link.
func NewPath(l link.Link) *Path { return &Path{Link: l} }

// Offloads implements link.Link.
func (p *Path) Offloads() link.Offloads { return link.Offloads{Checksum: true} }

// Attach implements link.Link.
func (p *Path) Attach(recv link.Receiver) {
	p.Link.Attach(func(frames []link.Frame) { recv(p.pass(frames, false)) })
}

// Write implements link.Link.
func (p *Path) Write(frames []link.Frame) (int, error) {
	if _, err := p.Link.Write(p.pass(frames, true)); err != nil {
		return 0, err
	}
	return len(frames), nil
}

// pass keeps frames that pass.
func (p *Path) pass(frames []link.Frame, out bool) (passed []link.Frame) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, f := range frames {
		s := Seen{out, slices.Concat(append([][]byte{f.Data}, f.More...)...)}
		if f.NeedsChecksum {
			of := s.Data[f.ChecksumStart:]
			binary.BigEndian.PutUint16(of[f.ChecksumOffset:], ^checksum.Sum(of, 0))
			f.NeedsChecksum = false
		}
		p.seen = append(p.seen, s)
		f.Data, f.More = s.Data, nil
		passed = append(passed, f)
	}
	return passed
}

// Inject sends a frame to the network.
func (p *Path) Inject(s Seen) error {
	_, err := p.Link.Write([]link.Frame{{Data: bytes.Clone(s.Data)}})
	return err
}

// Lengths of headers, and where they are in a frame.
const (
	ipAt     = 14
	ipLen    = 20
	udpAt    = ipAt + ipLen
	udpLen   = 8
	roceAt   = udpAt + udpLen
	rocePort = 4791

	protocolTCP = 6
	protocolUDP = 17
)

// carries reports whether a frame has an IPv4 header without options, and at least n bytes of the
// protocol.
func carries(b []byte, protocol byte, n int) bool {
	return len(b) >= udpAt+n && b[12] == 8 && b[13] == 0 && b[ipAt] == 0x45 && b[ipAt+9] == protocol
}

// packet parses a frame as a RoCEv2 packet over IPv4.
func (s *Seen) packet() (p wire.Packet, ok bool) {
	b := s.Data
	if !carries(b, protocolUDP, udpLen) || binary.BigEndian.Uint16(b[udpAt+2:]) != rocePort {
		return p, false
	}
	end := ipAt + int(binary.BigEndian.Uint16(b[ipAt+2:]))
	return p, end <= len(b) && p.Parse(b[roceAt:end]) == nil
}

// Last returns the last RoCEv2 packet of the host behind the link that matches, and its frame.
func (p *Path) Last(matches func(*wire.Packet) bool) (s Seen, pkt wire.Packet, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range slices.Backward(p.seen) {
		if pkt, ok := s.packet(); ok && s.Out && matches(&pkt) {
			return s, pkt, true
		}
	}
	return s, pkt, false
}

// with returns a frame with the addresses and ports of another and another packet.
func (s *Seen) with(p *wire.Packet) Seen {
	p.Pad = wire.PadLen(len(p.Payload))
	b := make([]byte, roceAt+p.Size())
	copy(b, s.Data[:roceAt])
	binary.BigEndian.PutUint16(b[ipAt+2:], uint16(len(b)-ipAt))
	binary.BigEndian.PutUint16(b[udpAt+4:], uint16(len(b)-udpAt))
	binary.BigEndian.PutUint16(b[udpAt+6:], 0) // no UDP checksum
	checksum.PutIPv4(b[ipAt:udpAt])
	p.Encode(b[ipAt:roceAt], b[roceAt:])
	return Seen{s.Out, b}
}
