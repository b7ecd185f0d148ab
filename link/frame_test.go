package link_test

import (
	"testing"

	"github.com/softrnic/softrnic/link"
)

func TestValidate(t *testing.T) {
	all := link.Offloads{USO: true, TSO: true, Checksum: true}
	super := func(n, size int) link.Frame {
		return link.Frame{Data: make([]byte, 42+n), Segmentation: link.UDP, SegmentSize: uint16(size), HeaderLen: 42,
			NeedsChecksum: true, ChecksumStart: 34, ChecksumOffset: 6}
	}
	with := func(f link.Frame, change func(*link.Frame)) link.Frame { change(&f); return f }
	tag := append(make([]byte, 12), 0x81, 0, 0, 5)
	for _, c := range []struct {
		name string
		f    link.Frame
		o    link.Offloads
		ok   bool
	}{
		{"MTU", link.Frame{Data: make([]byte, 1514)}, link.Offloads{}, true},
		{"tag in addition to the MTU", link.Frame{Data: append(tag, make([]byte, 1502)...)}, link.Offloads{}, true},
		{"tag over MTU", link.Frame{Data: append(tag, make([]byte, 1503)...)}, link.Offloads{}, false},
		{"tagged superframe of 64 KiB", with(super(65535-28, 1472), func(f *link.Frame) {
			f.SetTagged(f.AppendTagged(nil, len(f.Data), 5))
		}), all, true},
		{"tagged segments over MTU", with(super(4000, 1473), func(f *link.Frame) {
			f.SetTagged(f.AppendTagged(nil, len(f.Data), 5))
		}), all, false},
		{"over MTU in pieces", link.Frame{Data: make([]byte, 14), More: [][]byte{make([]byte, 1501)}}, all, false},
		{"short", link.Frame{Data: make([]byte, 13), More: [][]byte{make([]byte, 100)}}, all, false},
		{"superframe", super(62*1040, 1040), all, true},
		{"one segment", super(100, 1040), all, true},
		{"no USO", super(4000, 1000), link.Offloads{TSO: true, Checksum: true}, false},
		{"no TSO", with(super(4000, 1000), func(f *link.Frame) { f.Segmentation = link.TCPv6 }),
			link.Offloads{USO: true, Checksum: true}, false},
		{"unknown kind", with(super(4000, 1000), func(f *link.Frame) { f.Segmentation = 9 }), all, false},
		{"129 segments", super(129*100, 100), all, false},
		{"128 segments", super(128*100, 100), all, true},
		{"129 TCP segments", with(super(129*100, 100), func(f *link.Frame) { f.Segmentation = link.TCPv4 }), all, true},
		{"64 KiB", super(65535-28, 1000), all, true},
		{"over 64 KiB", super(65536-28, 1000), all, false},
		{"segments over MTU", super(4000, 1473), all, false},
		{"segments of 0 bytes", super(4000, 0), all, false},
		{"header beyond data", with(super(4000, 1000), func(f *link.Frame) { f.HeaderLen = 5000 }), all, false},
		{"no checksum", with(super(4000, 1000), func(f *link.Frame) { f.NeedsChecksum = false }), all, false},
		{"partial checksum", with(super(100, 0), func(f *link.Frame) { f.Segmentation = 0 }), all, true},
		{"partial checksum without offload", with(super(100, 0), func(f *link.Frame) { f.Segmentation = 0 }),
			link.Offloads{}, false},
		{"checksum beyond data", with(super(100, 0), func(f *link.Frame) { f.Segmentation = 0; f.ChecksumOffset = 0xffff }),
			all, false},
	} {
		if err := c.f.Validate(1500, c.o); (err == nil) != c.ok {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}
