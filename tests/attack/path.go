// Package attack is an attacker on the network between two hosts, and the attacks that the
// literature describes: ReDMArk (USENIX Security 2021), NeVerMore (2022) and those that motivate
// sRDMA (USENIX ATC 2020). It is for tests, over IPv4.
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

// Path is a link with an attacker on it, who sees all frames, and can change, drop and add frames.
// The frames of the host behind the link are single packets, and those of the other host must be
// too. It completes checksums.
type Path struct {
	link.Link

	mu     sync.Mutex
	recv   link.Receiver
	seen   []Seen
	change func(*Seen) bool
}

// Seen is a frame that has passed the attacker. Out: it is from the host behind the link.
type Seen struct {
	Out  bool
	Data []byte
}

// NewPath puts an attacker on a link.
func NewPath(l link.Link) *Path { return &Path{Link: l} }

// Offloads implements link.Link.
func (p *Path) Offloads() link.Offloads { return link.Offloads{Checksum: true} }

// Attach implements link.Link.
func (p *Path) Attach(recv link.Receiver) {
	p.mu.Lock()
	p.recv = recv
	p.mu.Unlock()
	p.Link.Attach(func(frames []link.Frame) { recv(p.pass(frames, false)) })
}

// Write implements link.Link.
func (p *Path) Write(frames []link.Frame) (int, error) {
	if _, err := p.Link.Write(p.pass(frames, true)); err != nil {
		return 0, err
	}
	return len(frames), nil
}

// pass returns those frames that the attacker lets pass.
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
		if p.change != nil {
			s.Data = bytes.Clone(s.Data)
			if !p.change(&s) {
				continue
			}
		}
		f.Data, f.More = s.Data, nil
		passed = append(passed, f)
	}
	return passed
}

// Change calls f for each later frame: f may change it, and reports whether it passes. Nil lets all
// frames pass.
func (p *Path) Change(f func(*Seen) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.change = f
}

// Forget forgets what has been seen, and lets all frames pass.
func (p *Path) Forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.seen, p.change = nil, nil
}

// Inject sends a frame to the network if it is outgoing, otherwise to the host behind the link.
func (p *Path) Inject(s Seen) error {
	f := []link.Frame{{Data: bytes.Clone(s.Data)}}
	if s.Out {
		_, err := p.Link.Write(f)
		return err
	}
	p.mu.Lock()
	recv := p.recv
	p.mu.Unlock()
	recv(f)
	return nil
}

// Contains reports whether bytes have passed in clear.
func (p *Path) Contains(b []byte) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.ContainsFunc(p.seen, func(s Seen) bool { return bytes.Contains(s.Data, b) })
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

// Last returns the last RoCEv2 packet in a direction that matches, and its frame.
func (p *Path) Last(out bool, matches func(*wire.Packet) bool) (s Seen, pkt wire.Packet, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range slices.Backward(p.seen) {
		if pkt, ok := s.packet(); ok && s.Out == out && matches(&pkt) {
			return s, pkt, true
		}
	}
	return s, pkt, false
}

// forge returns a frame with the addresses and ports of another and a packet of the attacker's.
func (s *Seen) forge(p *wire.Packet) Seen {
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
