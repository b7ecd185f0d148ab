//go:build linux

package vnet

import (
	"bytes"
	"testing"

	"github.com/softrnic/softrnic/link"
)

func TestEncodeDecode(t *testing.T) {
	tcp := make([]byte, 14+20+32+4000)
	tcp[34+12] = 32 / 4 << 4
	for _, f := range []link.Frame{
		{Data: make([]byte, 60)},
		{Data: make([]byte, 60), NeedsChecksum: true, ChecksumStart: 34, ChecksumOffset: 6},
		{Data: make([]byte, 5000), Segmentation: link.UDP, SegmentSize: 1040, HeaderLen: 62,
			NeedsChecksum: true, ChecksumStart: 54, ChecksumOffset: 6},
		{Data: tcp, Segmentation: link.TCPv4, SegmentSize: 1448, HeaderLen: 66, NeedsChecksum: true, ChecksumStart: 34, ChecksumOffset: 16},
		{Data: tcp, Segmentation: link.TCPv6, SegmentSize: 1448, HeaderLen: 66, NeedsChecksum: true, ChecksumStart: 34, ChecksumOffset: 16},
	} {
		var h [HeaderLen]byte
		encode(&h, &f)
		var got link.Frame
		if !decode(append(h[:], f.Data...), &got) {
			t.Fatalf("%x not decoded", h)
		}
		if !bytes.Equal(got.Data, f.Data) {
			t.Error("data changed")
		}
		got.Data, f.Data = nil, nil
		if got.Segmentation != f.Segmentation || got.SegmentSize != f.SegmentSize || got.HeaderLen != f.HeaderLen ||
			got.NeedsChecksum != f.NeedsChecksum || got.ChecksumStart != f.ChecksumStart || got.ChecksumOffset != f.ChecksumOffset {
			t.Errorf("decoded %+v, encoded %+v", got, f)
		}
	}
}

// TestDecodeChecksumBounds checks that a partial checksum is accepted only after the Ethernet
// header and within the frame.
func TestDecodeChecksumBounds(t *testing.T) {
	const length = 60
	for _, tc := range []struct {
		start, offset uint16
		ok            bool
	}{
		// The checksum may be the last two bytes.
		{14, 0, true}, {34, 6, true}, {34, 24, true}, {58, 0, true}, {14, 44, true},
		{13, 6, false}, {0, 0, false}, // in the Ethernet header
		// One byte beyond the frame, and more.
		{34, 25, false}, {59, 0, false}, {14, 45, false}, {60, 0, false},
		// Sums that overflow 16 bits.
		{0xffff, 0xffff, false}, {0xffff, 15, false}, {14, 0xffff, false},
	} {
		var h [HeaderLen]byte
		encode(&h, &link.Frame{NeedsChecksum: true, ChecksumStart: tc.start, ChecksumOffset: tc.offset})
		var f link.Frame
		if got := decode(append(h[:], make([]byte, length)...), &f); got != tc.ok {
			t.Errorf("checksum at %d+%d in a frame of %d bytes: decoded %t, want %t", tc.start, tc.offset, length, got, tc.ok)
		}
	}
}

// TestDecodeHeaderBounds checks that a frame with an incomplete transport header is not decoded as
// a superframe.
func TestDecodeHeaderBounds(t *testing.T) {
	for _, tc := range []struct {
		segmentation link.Segmentation
		start        uint16
		offset       uint16 // of the checksum, within the frame
		length       int
		dataOffset   byte // TCP's data offset, in words
		ok           bool
	}{
		{link.UDP, 34, 6, 42, 0, true},
		{link.UDP, 34, 4, 41, 0, false},
		{link.TCPv4, 34, 16, 54, 5, true},
		{link.TCPv4, 34, 16, 53, 5, false},
		{link.TCPv4, 34, 16, 54, 6, false},
		{link.TCPv4, 34, 16, 100, 4, false},
		{link.TCPv4, 34, 10, 46, 5, false}, // the data offset itself is missing
	} {
		var h [HeaderLen]byte
		encode(&h, &link.Frame{Segmentation: tc.segmentation, SegmentSize: 10,
			NeedsChecksum: true, ChecksumStart: tc.start, ChecksumOffset: tc.offset})
		data := make([]byte, tc.length)
		if at := int(tc.start) + 12; at < len(data) {
			data[at] = tc.dataOffset << 4
		}
		var f link.Frame
		if !decode(append(h[:], data...), &f) || (f.Segmentation != link.NoSegmentation) != tc.ok {
			t.Errorf("%+v: decoded %v", tc, f.Segmentation)
		}
	}
}

// FuzzDecode checks that decoded offsets lie within the frame.
func FuzzDecode(f *testing.F) {
	f.Add(make([]byte, 100))
	f.Add(append([]byte{1, 5, 0, 0, 16, 4, 34, 0, 6, 0}, make([]byte, 3000)...))
	f.Add(append([]byte{1, 1, 0, 0, 16, 4, 34, 0, 16, 0}, bytes.Repeat([]byte{0x50}, 3000)...))
	f.Fuzz(func(t *testing.T, b []byte) {
		var fr link.Frame
		if !decode(b, &fr) {
			return
		}
		if int(fr.HeaderLen) > len(fr.Data) || fr.Segmentation != 0 && (fr.SegmentSize == 0 || fr.HeaderLen <= fr.ChecksumStart) ||
			fr.NeedsChecksum && (fr.ChecksumStart < link.EthernetHeaderLen ||
				int(fr.ChecksumStart)+int(fr.ChecksumOffset)+2 > len(fr.Data)) {
			t.Errorf("%x decoded as %+v", b, fr)
		}
	})
}
