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
		{Data: make([]byte, 5000), Segmentation: link.UDP, SegmentSize: 1040, HeaderLen: 62, NeedsChecksum: true, ChecksumStart: 54, ChecksumOffset: 6},
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

// FuzzDecode: what is decoded lies within the frame.
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
			fr.NeedsChecksum && int(fr.ChecksumStart)+int(fr.ChecksumOffset)+2 > len(fr.Data) {
			t.Errorf("%x decoded as %+v", b, fr)
		}
	})
}
