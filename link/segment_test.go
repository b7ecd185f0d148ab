package link_test

import (
	"bytes"
	"encoding/binary"
	"slices"
	"testing"

	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/linktest"
)

func TestCutTCP(t *testing.T) {
	f := linktest.TCPSuperframe(2500, 1000)
	var c link.Cutter
	i := 0
	var payload []byte
	for p := range c.Packets(&f) {
		ip, h := header.IPv6(p[14:]), header.TCP(p[54:])
		sum := header.PseudoHeaderChecksum(6, ip.SourceAddress(), ip.DestinationAddress(), ip.PayloadLength())
		if checksum.Checksum(p[54:], sum) != 0xffff {
			t.Errorf("segment %d: bad checksum", i)
		}
		if int(ip.PayloadLength()) != len(p)-54 || h.SequenceNumber() != 0xffffff00+uint32(1000*i) {
			t.Errorf("segment %d: length %d of %d, sequence number %#x", i, ip.PayloadLength(), len(p)-54, h.SequenceNumber())
		}
		want := []header.TCPFlags{header.TCPFlagAck | 0x80, header.TCPFlagAck, header.TCPFlagAck | header.TCPFlagFin | header.TCPFlagPsh}[i]
		if h.Flags() != want {
			t.Errorf("segment %d: flags %#x, want %#x", i, uint8(h.Flags()), uint8(want))
		}
		payload = append(payload, h.Payload()...)
		i++
	}
	if i != 3 || !bytes.Equal(payload, f.Data[86:]) {
		t.Errorf("%d segments, payload right: %t", i, bytes.Equal(payload, f.Data[86:]))
	}
}

// TestCutUDPv4: each segment has its own length and ID, also when the ID wraps, and the checksum of
// its IPv4 header, with options or without.
func TestCutUDPv4(t *testing.T) {
	for _, options := range []int{0, 4, 40} {
		for id := range uint16(5) {
			f := linktest.Superframe(make([]byte, 6), make([]byte, 6), false, 3, 100)
			f.Data = slices.Insert(f.Data, 34, bytes.Repeat([]byte{1}, options)...) // no operation
			f.HeaderLen += uint16(options)
			f.Data[14] += byte(options / 4)
			first := id - 3
			binary.BigEndian.PutUint16(f.Data[18:], first)
			var c link.Cutter
			i := uint16(0)
			for p := range c.Packets(&f) {
				if ip := header.IPv4(p[14:]); !ip.IsChecksumValid() || ip.ID() != first+i || int(ip.TotalLength()) != len(ip) {
					t.Errorf("options of %d bytes, segment %d: %x", options, i, []byte(ip[:ip.HeaderLength()]))
				}
				i++
			}
			if i != 3 {
				t.Errorf("%d segments", i)
			}
		}
	}
}

// FuzzPackets checks that for any headers and description nothing panics, and that no payload is
// lost or added.
func FuzzPackets(f *testing.F) {
	tcp := linktest.TCPSuperframe(300, 100)
	f.Add(tcp.Data, uint8(link.TCPv6), uint16(100), uint16(86), true, uint16(54), uint16(16), 20)
	udp := append([]byte{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0x45, 0, 0, 0, 0, 0, 0, 0, 0, 17}, make([]byte, 100)...)
	f.Add(udp, uint8(link.UDP), uint16(10), uint16(42), true, uint16(34), uint16(6), 0)
	f.Fuzz(func(t *testing.T, data []byte, kind uint8, size, h uint16, partial bool, start, offset uint16, split int) {
		fr := link.Frame{Data: data, Segmentation: link.Segmentation(kind), SegmentSize: size, HeaderLen: h,
			NeedsChecksum: partial, ChecksumStart: start, ChecksumOffset: offset}
		if split > 0 && split < len(data) {
			fr.Data, fr.More = data[:split], [][]byte{data[split:]}
		}
		_ = fr.Validate(1500, link.Offloads{USO: true, TSO: true, Checksum: true})
		var c link.Cutter
		n, payload, total := 0, 0, 0
		whole := fr
		whole.Data, whole.More = bytes.Clone(data), nil
		var s link.Segmenter
		s.Cut(&whole)
		buf := make([]byte, len(data))
		for p := range c.Packets(&fr) {
			if n, ok := s.Next(buf); !ok || !bytes.Equal(buf[:n], p) {
				t.Errorf("Segmenter: %x, Cutter: %x", buf[:n], p)
			}
			n++
			total += len(p)
			payload += max(0, len(p)-int(h))
		}
		if _, ok := s.Next(buf); ok {
			t.Error("Segmenter returns more packets than Cutter")
		}
		if n == 1 && total == len(data) {
			return
		}
		if payload != len(data)-int(h) || n != (payload+int(size)-1)/int(size) {
			t.Errorf("%d packets with %d bytes of payload, from %d bytes with %d of headers in segments of %d",
				n, payload, len(data), h, size)
		}
	})
}
