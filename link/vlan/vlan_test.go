package vlan_test

import (
	"bytes"
	"encoding/binary"
	"testing"
	"testing/synctest"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/link/vlan"
)

func newVLAN(t testing.TB, l link.Link, id int) *vlan.Link {
	t.Helper()
	v, err := vlan.New(l, id)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { v.Close() })
	return v
}

// collect keeps copies of received frames. Read them when the bubble is idle.
func collect(l link.Link) *[]link.Frame {
	var got []link.Frame
	l.Attach(func(frames []link.Frame) {
		for _, f := range frames {
			f.Data = bytes.Clone(f.Data)
			got = append(got, f)
		}
	})
	return &got
}

// superframe returns a UDP superframe with n bytes of payload in segments of size bytes.
func superframe(dst, src link.Link, n, size int) link.Frame {
	b := make([]byte, 42+n)
	copy(b, dst.MAC())
	copy(b[6:], src.MAC())
	b[12] = 8
	addrs := [2]tcpip.Address{tcpip.AddrFrom4([4]byte{10, 0, 0, 1}), tcpip.AddrFrom4([4]byte{10, 0, 0, 2})}
	ip := header.IPv4(b[14:])
	ip.Encode(&header.IPv4Fields{TotalLength: uint16(28 + n), TTL: 64, Protocol: 17, SrcAddr: addrs[0], DstAddr: addrs[1]})
	ip.SetChecksum(^ip.CalculateChecksum())
	udp := header.UDP(b[34:])
	udp.Encode(&header.UDPFields{SrcPort: 50000, DstPort: 4791, Length: uint16(8 + n)})
	udp.SetChecksum(header.PseudoHeaderChecksum(17, addrs[0], addrs[1], uint16(8+n)))
	for i := range n {
		b[42+i] = byte(i * 7)
	}
	return link.Frame{Data: b, Segmentation: link.UDP, SegmentSize: uint16(size), HeaderLen: 42,
		NeedsChecksum: true, ChecksumStart: 34, ChecksumOffset: 6}
}

// small returns a frame of n bytes with type 0x88b5, for experiments.
func small(dst, src link.Link, n int) link.Frame {
	b := append(append(bytes.Clone(dst.MAC()), src.MAC()...), 0x88, 0xb5)
	for len(b) < n {
		b = append(b, byte(len(b)))
	}
	return link.Frame{Data: b}
}

// TestTag checks that any frame has its tag on the medium, and arrives unmodified at the other end
// of the VLAN.
func TestTag(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sw := new(pipe.Switch)
		a, b, spy := newVLAN(t, sw.Port(), 5), newVLAN(t, sw.Port(), 5), sw.Port()
		defer spy.Close()
		got, seen := collect(b), collect(spy)
		everyone, err := new(pipe.Switch).PortWithMAC([]byte{2, 0, 0, 0, 0, 1})
		if err != nil {
			t.Fatal(err)
		}
		everyone.MAC()[0] = 3 // a group
		var sent []link.Frame
		for i, f := range []link.Frame{
			small(everyone, a, 14), small(everyone, a, 60), small(everyone, a, 252), small(everyone, a, 253), small(everyone, a, 4214),
			superframe(everyone, a, 5000, 1040), superframe(everyone, a, 65507, 4112), superframe(everyone, a, 100, 10),
		} {
			f.TCI = uint16(i%8) << link.PriorityShift
			sent = append(sent, f)
			if n := len(f.Data); n > 3000 { // in pieces, too
				f.Data, f.More = f.Data[:100], [][]byte{f.Data[100:2000], f.Data[2000:]}
				sent = append(sent, f)
			}
		}
		before := make([][]byte, len(sent))
		for i := range sent {
			before[i] = bytes.Clone(sent[i].Data)
		}
		if n, err := a.Write(sent); n != len(sent) || err != nil {
			t.Fatal(n, err)
		}
		synctest.Wait()
		if len(*got) != len(sent) || len(*seen) != len(sent) {
			t.Fatalf("%d frames arrive, %d pass, of %d", len(*got), len(*seen), len(sent))
		}
		for i, f := range sent {
			if !bytes.Equal(f.Data, before[i]) {
				t.Errorf("frame %d was changed", i)
			}
			whole := bytes.Join(append([][]byte{f.Data}, f.More...), nil)
			g, s := (*got)[i], (*seen)[i]
			tci := f.TCI | 5
			tagged := append(append(bytes.Clone(whole[:12]), 0x81, 0, byte(tci>>8), byte(tci)), whole[12:]...)
			if !bytes.Equal(s.Data, tagged) || s.TCI != 0 {
				t.Errorf("frame %d passes as % x…, want % x…", i, s.Data[:18], tagged[:18])
			}
			if !bytes.Equal(g.Data, whole) || g.TCI != tci {
				t.Errorf("frame %d arrives with %d bytes and tag %#x, want %d and %#x", i, len(g.Data), g.TCI, len(whole), tci)
			}
			g.Data, g.More, g.TCI, f.Data, f.More, f.TCI = nil, nil, 0, nil, nil, 0
			if g.Segmentation != f.Segmentation || g.HeaderLen != f.HeaderLen ||
				g.ChecksumStart != f.ChecksumStart || g.NeedsChecksum != f.NeedsChecksum {
				t.Errorf("frame %d arrives as %+v, want %+v", i, g, f)
			}
			if f.Segmentation != 0 && (s.HeaderLen != 46 || s.ChecksumStart != 38) {
				t.Errorf("frame %d passes as %+v", i, s)
			}
		}
		// On the wire each segment has the tag.
		var c link.Cutter
		n := 0
		for p := range c.Packets(&(*seen)[len(*seen)-1]) {
			ip := header.IPv4(p[18:])
			if binary.BigEndian.Uint32(p[12:])&0xffff0fff != 0x81000005 || len(p) != 46+10 ||
				int(ip.TotalLength()) != 38 || !ip.IsChecksumValid() {
				t.Errorf("segment % x", p)
			}
			n++
		}
		if n != 10 {
			t.Errorf("%d segments, want 10", n)
		}
	})
}

// TestForeign: a VLAN drops and counts frames of other VLANs, and those without a tag.
func TestForeign(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sw := new(pipe.Switch)
		b, plain := newVLAN(t, sw.Port(), 5), sw.Port()
		defer plain.Close()
		got := collect(b)
		send := func(tag ...byte) {
			f := small(b, plain, 60)
			f.Data = append(append(bytes.Clone(f.Data[:12]), tag...), f.Data[12:]...)
			if n, err := plain.Write([]link.Frame{f}); n != 1 || err != nil {
				t.Fatal(n, err)
			}
		}
		send()
		send(0x81, 0, 0xe0, 6)
		send(0x81, 0, 0, 0)
		send(0x81, 0, 0x10, 5)
		send(0x88, 0xa8, 0, 5)
		send(0x81, 0, 0xe0, 5)
		for n := range 20 { // of any length
			f := small(b, plain, 60)
			f.Data = append(f.Data[:12:12], 0x81, 0, 0, 5, 0, 0, 0, 0)[:max(14, n)]
			if _, err := plain.Write([]link.Frame{f}); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		if len(*got) != 4 || (*got)[0].TCI != 0x1005 || (*got)[1].TCI != 0xe005 || b.Foreign() != 22 {
			t.Errorf("%d frames arrive, %d are dropped", len(*got), b.Foreign())
		}
	})
}

// TestNew checks the bounds of the ID, and that name, MAC, MTU and offloads are the inner link's.
func TestNew(t *testing.T) {
	in := new(pipe.Switch).Port()
	for _, id := range []int{-1, 0, 4095, 4096, 1 << 16} {
		if _, err := vlan.New(in, id); err == nil {
			t.Errorf("a VLAN with ID %d", id)
		}
	}
	l := newVLAN(t, in, vlan.MaxID)
	if l.Name() != in.Name()+".4094" || l.MTU() != in.MTU() || l.MAC().String() != in.MAC().String() || l.Offloads() != in.Offloads() {
		t.Error("the link's properties differ from the inner link's")
	}
	l.Attach(func([]link.Frame) {})
	if l.Poll() {
		t.Error("a frame arrived")
	}
	l.EndPoll()
	if _, err := l.Write([]link.Frame{{Data: make([]byte, 13)}}); err == nil {
		t.Error("a frame without an Ethernet header was sent")
	}
	if err := l.Close(); err != nil || l.Medium() != nil {
		t.Error(err, l.Medium())
	}
}

// TestMedium checks that two links share a medium if they are the same VLAN of the same medium.
func TestMedium(t *testing.T) {
	sw := new(pipe.Switch)
	p, a, b := sw.Port(), newVLAN(t, sw.Port(), 5), newVLAN(t, sw.Port(), 5)
	c, d := newVLAN(t, sw.Port(), 6), newVLAN(t, new(pipe.Switch).Port(), 5)
	defer p.Close()
	if a.Medium() == nil || a.Medium() != b.Medium() || a.Medium() == c.Medium() || a.Medium() == d.Medium() || a.Medium() == p.Medium() {
		t.Error(a.Medium(), b.Medium(), c.Medium(), d.Medium())
	}
	nested := newVLAN(t, newVLAN(t, sw.Port(), 6), 5)
	if nested.Medium() == a.Medium() {
		t.Error("a VLAN in a VLAN shares the outer VLAN's medium")
	}
	if n := testing.AllocsPerRun(100, func() { a.Medium() }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// BenchmarkWrite measures the cost of a tag, for a superframe and a small frame.
func BenchmarkWrite(b *testing.B) {
	for _, tagged := range []bool{false, true} {
		for _, n := range []int{64, 62 * 1040} {
			name := map[bool]string{false: "plain", true: "tagged"}[tagged]
			b.Run(name+"/"+map[bool]string{true: "64", false: "superframe"}[n == 64], func(b *testing.B) {
				sw := new(pipe.Switch)
				var from, to link.Link = sw.Port(), sw.Port()
				if tagged {
					from, to = newVLAN(b, from, 5), newVLAN(b, to, 5)
				}
				defer from.Close()
				defer to.Close()
				to.Attach(func([]link.Frame) {})
				f := []link.Frame{superframe(to, from, n, 1040)}
				if n == 64 {
					f[0].Segmentation = link.NoSegmentation
				}
				b.ReportAllocs()
				for b.Loop() {
					if _, err := from.Write(f); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// TestMediumPluggedInLater checks VLANs whose cables were unplugged at first. Two share a medium if
// they are the same VLAN of the same switch.
func TestMediumPluggedInLater(t *testing.T) {
	a, b := new(pipe.Switch), new(pipe.Switch)
	on := func(s *pipe.Switch, id int, plugged bool) *vlan.Link {
		p := s.Port()
		p.SetCarrier(plugged)
		v := newVLAN(t, p, id)
		if !plugged && v.Medium() != nil {
			t.Error("a medium without carrier")
		}
		p.SetCarrier(true)
		return v
	}
	of := on(a, 5, true).Medium()
	for _, tc := range []struct {
		name string
		link *vlan.Link
		same bool
	}{
		{"same", on(a, 5, true), true},
		{"same, plugged in later", on(a, 5, false), true},
		{"other ID", on(a, 6, true), false},
		{"other switch", on(b, 5, true), false},
		{"other switch, plugged in later", on(b, 5, false), false},
	} {
		if m := tc.link.Medium(); m == nil || (m == of) != tc.same {
			t.Errorf("%s: medium %v, the other has %v", tc.name, m, of)
		}
	}
	if x, y := on(a, 5, false).Medium(), on(b, 5, false).Medium(); x == y {
		t.Errorf("two switches have medium %v", x)
	}
}
