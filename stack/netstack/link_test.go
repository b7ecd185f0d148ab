package netstack_test

import (
	"encoding/binary"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"

	"github.com/softrnic/softrnic/link"
)

// wire is a link without a medium: the test injects frames, and sent frames are counted.
type wire struct {
	mac  net.HardwareAddr
	recv link.Receiver
	sent atomic.Int64
}

func newWire() *wire {
	return &wire{mac: net.HardwareAddr{2, 0, 0, 0, 0, 1}}
}

func (w *wire) Name() string                { return "wire" }
func (w *wire) MAC() net.HardwareAddr       { return w.mac }
func (w *wire) MTU() int                    { return 4200 }
func (w *wire) Offloads() link.Offloads     { return link.Offloads{USO: true, TSO: true, Checksum: true} }
func (w *wire) Attach(recv link.Receiver)   { w.recv = recv }
func (w *wire) Close() error                { return nil }
func (w *wire) arrive(frames ...link.Frame) { w.recv(frames) }

func (w *wire) Write(frames []link.Frame) (int, error) {
	w.sent.Add(int64(len(frames)))
	return len(frames), nil
}

// spy keeps the frames written to the wrapped link, and can hide its offloads.
type spy struct {
	link.Link
	plain bool

	mu   sync.Mutex
	sent []link.Frame
	skew []int // offset of each superframe's data from a cache line boundary
}

func (s *spy) Offloads() link.Offloads {
	if s.plain {
		return link.Offloads{}
	}
	return s.Link.Offloads()
}

func (s *spy) Write(frames []link.Frame) (int, error) {
	s.mu.Lock()
	for _, f := range frames {
		if f.Segmentation == link.UDP {
			s.skew = append(s.skew, int(uintptr(unsafe.Pointer(&f.Data[f.HeaderLen]))%64))
		}
		if f.More == nil { // gVisor's own frames are in pieces
			f.Data = slices.Clone(f.Data)
			s.sent = append(s.sent, f)
		}
	}
	s.mu.Unlock()
	return s.Link.Write(frames)
}

// roce returns the frames sent to UDP port 4791.
func (s *spy) roce() (frames []link.Frame) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.sent {
		b := f.Data
		ip4 := len(b) >= 42 && b[12] == 0x08 && b[13] == 0 && b[23] == 17 && binary.BigEndian.Uint16(b[36:]) == 4791
		ip6 := len(b) >= 62 && b[12] == 0x86 && b[20] == 17 && binary.BigEndian.Uint16(b[56:]) == 4791
		if ip4 || ip6 {
			frames = append(frames, f)
		}
	}
	return frames
}

// frame4 and frame6 return a valid datagram to port 4791, for the test to corrupt.

func frame4(src, dst netip.Addr, mac net.HardwareAddr, payload int) []byte {
	b := make([]byte, 42+payload)
	ethernet(b, mac, header.IPv4ProtocolNumber)
	header.IPv4(b[14:]).Encode(&header.IPv4Fields{
		TotalLength: uint16(len(b) - 14), ID: 7, Flags: header.IPv4FlagDontFragment, TTL: 64, Protocol: 17,
		SrcAddr: tcpip.AddrFromSlice(src.AsSlice()), DstAddr: tcpip.AddrFromSlice(dst.AsSlice()),
	})
	fixChecksum(b)
	udp(b[34:])
	return b
}

func frame6(src, dst netip.Addr, mac net.HardwareAddr, payload int) []byte {
	b := make([]byte, 62+payload)
	ethernet(b, mac, header.IPv6ProtocolNumber)
	header.IPv6(b[14:]).Encode(&header.IPv6Fields{
		PayloadLength: uint16(8 + payload), HopLimit: 64, TransportProtocol: 17,
		SrcAddr: tcpip.AddrFromSlice(src.AsSlice()), DstAddr: tcpip.AddrFromSlice(dst.AsSlice()),
	})
	udp(b[54:])
	return b
}

// frameV1 returns a frame of RoCE v1, written from IBTA Vol 1 §8.3.
func frameV1(src, dst netip.Addr, mac net.HardwareAddr, payload int) []byte {
	b := make([]byte, 54+payload)
	ethernet(b, mac, 0x8915)
	b[14], b[20], b[21] = 0x60, 0x1b, 64
	binary.BigEndian.PutUint16(b[18:], uint16(payload))
	s, d := src.As16(), dst.As16()
	copy(b[22:], s[:])
	copy(b[38:], d[:])
	for i := range b[54:] {
		b[54+i] = byte(i)
	}
	return b
}

func ethernet(b []byte, mac net.HardwareAddr, proto tcpip.NetworkProtocolNumber) {
	header.Ethernet(b).Encode(&header.EthernetFields{
		SrcAddr: "\x02\x00\x00\x00\x00\x99", DstAddr: tcpip.LinkAddress(mac), Type: proto,
	})
}

func udp(b []byte) {
	header.UDP(b).Encode(&header.UDPFields{SrcPort: 50000, DstPort: 4791, Length: uint16(len(b))})
	for i := range b[8:] {
		b[8+i] = byte(i)
	}
}

func fixChecksum(frame []byte) {
	h := header.IPv4(frame[14:34])
	h.SetChecksum(0)
	h.SetChecksum(^h.CalculateChecksum())
}
