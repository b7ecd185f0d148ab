package raw

import (
	"bytes"
	"testing"

	"github.com/softrnic/softrnic/verbs"
)

// all returns a spec of each kind with a full mask.
func all() (specs []verbs.FlowSpec) {
	ones := func(n int) []byte { return bytes.Repeat([]byte{0xff}, n) }
	ports := verbs.FlowTCPUDPFilter{DstPort: 0xffff, SrcPort: 0xffff}
	ip4 := [4]byte(ones(4))
	return []verbs.FlowSpec{
		&verbs.FlowSpecEth{Mask: verbs.FlowEthFilter{DstMAC: [6]byte(ones(6)), SrcMAC: [6]byte(ones(6)),
			EtherType: 0xffff, VLANTag: 0xffff}},
		&verbs.FlowSpecIPv4{Mask: verbs.FlowIPv4Filter{SrcIP: ip4, DstIP: ip4}},
		&verbs.FlowSpecIPv4Ext{Mask: verbs.FlowIPv4ExtFilter{SrcIP: ip4, DstIP: ip4, Proto: 255, TOS: 255, TTL: 255, Flags: 7}},
		&verbs.FlowSpecIPv6{Mask: verbs.FlowIPv6Filter{SrcIP: [16]byte(ones(16)), DstIP: [16]byte(ones(16)), FlowLabel: 0xfffff,
			NextHdr: 255, TrafficClass: 255, HopLimit: 255}},
		&verbs.FlowSpecTCP{Mask: ports},
		&verbs.FlowSpecUDP{Mask: ports},
	}
}

// FuzzMatch checks that no frame makes a matcher read beyond its end, and that a match implies the
// spec's header.
func FuzzMatch(f *testing.F) {
	eth := []byte("\x02\x00\x00\x00\x00\x01\x02\x00\x00\x00\x00\x02")
	ip4 := append([]byte("\x45\x00\x00\x1c\x00\x00\x40\x00\x40\x11\x00\x00\x0a\x00\x00\x01\x0a\x00\x00\x02"), make([]byte, 8)...)
	ip6 := append([]byte("\x60\x00\x00\x00\x00\x08\x06\x40"), make([]byte, 40)...)
	for _, b := range [][]byte{append([]byte{8, 0}, ip4...), append([]byte{0x86, 0xdd}, ip6...),
		append([]byte{0x81, 0, 0, 5, 8, 0}, ip4...), {8, 6}, {8, 0, 0x4f}, {0x81, 0, 0}} {
		f.Add(append(bytes.Clone(eth), b...))
	}
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, frame []byte) {
		var h headers
		h.parse(frame[:len(frame):len(frame)])
		for _, s := range all() {
			m := newMatcher(s)
			got := m.match(&h)
			switch s.(type) {
			case *verbs.FlowSpecIPv4, *verbs.FlowSpecIPv4Ext:
				if got && h.etherType != typeIP4 {
					t.Errorf("%T matches EtherType %#x", s, h.etherType)
				}
			case *verbs.FlowSpecIPv6:
				if got && h.etherType != typeIP6 {
					t.Errorf("%T matches EtherType %#x", s, h.etherType)
				}
			}
		}
		for _, s := range []verbs.FlowSpec{&verbs.FlowSpecTCP{}, &verbs.FlowSpecUDP{}} {
			if m := newMatcher(s); m.match(&h) && len(frame) < ethLen+ip4Len+4 {
				t.Errorf("%T matches %d bytes", s, len(frame))
			}
		}
	})
}
