package mad_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"net/netip"
	"path/filepath"
	"reflect"
	"slices"
	"testing"

	"github.com/gopacket/gopacket/layers"

	"github.com/softrnic/softrnic/rdmatransport/mad"
	"github.com/softrnic/softrnic/rdmatransport/wire"
	"github.com/softrnic/softrnic/tests/captures"
)

const firstAttr, lastAttr = mad.AttrREQ, mad.AttrAPR

// captured calls f with each MAD in testdata, captured between two Linux kernels.
func captured(t testing.TB, f func(file string, src, dst netip.Addr, b []byte)) {
	t.Helper()
	files, err := filepath.Glob("testdata/*.pcap.gz")
	if err != nil || len(files) == 0 {
		t.Fatalf("no captures: %v", err)
	}
	for _, file := range files {
		for p := range captures.Packets(t, file) {
			udp, ok := p.TransportLayer().(*layers.UDP)
			if !ok || udp.DstPort != 4791 {
				continue
			}
			var pkt wire.Packet
			if err := pkt.Parse(udp.Payload); err != nil {
				t.Fatal(err)
			}
			if pkt.DestQP != mad.QPN {
				continue
			}
			if pkt.DETH.QKey != mad.QKey || pkt.DETH.SrcQP != mad.QPN {
				t.Fatalf("%s: to QP 1 with %+v", file, pkt.DETH)
			}
			if !wire.CheckICRC(append(bytes.Clone(p.NetworkLayer().LayerContents()), udp.Contents...), udp.Payload) {
				t.Fatalf("%s: ICRC is wrong", file)
			}
			ip := p.NetworkLayer().NetworkFlow()
			src, _ := netip.AddrFromSlice(ip.Src().Raw())
			dst, _ := netip.AddrFromSlice(ip.Dst().Raw())
			f(file, src, dst, pkt.Payload)
		}
	}
}

func TestCapturesEncodeToSameBytes(t *testing.T) {
	seen := map[mad.Attr]int{}
	captured(t, func(file string, src, dst netip.Addr, b []byte) {
		h, data, err := mad.Parse(b)
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		m := mad.New(h.Attr)
		if m == nil {
			t.Fatalf("%s: %v", file, h.Attr)
		}
		mad.Decode(data, m)
		seen[h.Attr]++
		var again [mad.Size]byte
		mad.Encode(&again, h.TID, m)
		if !bytes.Equal(again[:], b) {
			t.Errorf("%s: %v\n% x became\n% x", file, h.Attr, b, again)
		}
		if req, ok := m.(*mad.REQ); ok {
			checkREQ(t, req, src, dst)
		}
	})
	for _, a := range []mad.Attr{mad.AttrREQ, mad.AttrREP, mad.AttrRTU, mad.AttrDREQ, mad.AttrDREP, mad.AttrREJ,
		mad.AttrSIDRREQ, mad.AttrSIDRREP} {
		if seen[a] == 0 {
			t.Errorf("no %v in the captures", a)
		}
	}
}

// checkREQ checks the fields of a kernel's REQ that rdma_cm fills in.
func checkREQ(t *testing.T, m *mad.REQ, src, dst netip.Addr) {
	t.Helper()
	if m.RemoteResponseTimeout != 20 || m.LocalResponseTimeout != 20 || m.MaxCMRetries != 15 {
		t.Errorf("REQ from %v to %v: %+v", src, dst, m)
	}
	if m.PKey != 0xffff || m.MTU != 3 || m.ServiceType != mad.ServiceRC || m.ServiceID>>16 != 0x106 {
		t.Errorf("REQ from %v to %v: %+v", src, dst, m)
	}
	p := m.Primary
	if p.AckTimeout != 19 || p.HopLimit != 64 || p.SubnetLocal || m.Alternate != (mad.Path{}) {
		t.Errorf("REQ from %v to %v: %+v", src, dst, m)
	}
	if netip.AddrFrom16(p.LocalGID).Unmap() != src || netip.AddrFrom16(p.RemoteGID).Unmap() != dst {
		t.Errorf("REQ from %v to %v: %+v", src, dst, m)
	}
	ip, err := mad.ParseIPCM(m.PrivateData)
	if err != nil || ip.Src != src || ip.Dst != dst || ip.SrcPort == 0 {
		t.Errorf("IP CM header %+v, %v", ip, err)
	}
	if !bytes.Equal(ip.Append(nil), m.PrivateData[:mad.IPCMLen]) {
		t.Error("the IP CM header encodes to other bytes")
	}
}

// TestFieldsDoNotOverlap sets every field of every message to random values of its width, and reads
// them back.
func TestFieldsDoNotOverlap(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for a := firstAttr; a <= lastAttr; a++ {
		for range 200 {
			// All bits of the datagram are random, so that Decode returns random values within each
			// field's width.
			var b, again [mad.Size]byte
			for i := range b {
				b[i] = byte(rng.Uint32())
			}
			m, n := mad.New(a), mad.New(a)
			mad.Decode(b[mad.HeaderLen:], m)
			mad.Encode(&again, 7, m)
			h, data, err := mad.Parse(again[:])
			if err != nil || h.Attr != a || h.TID != 7 {
				t.Fatalf("%v: %+v, %v", a, h, err)
			}
			mad.Decode(data, n)
			if !reflect.DeepEqual(m, n) {
				t.Fatalf("%v: %+v became %+v", a, m, n)
			}
		}
	}
}

func TestParseErrors(t *testing.T) {
	var b [mad.Size]byte
	mad.Encode(&b, 1, &mad.RTU{})
	for _, n := range []int{0, 1, mad.HeaderLen, mad.Size - 1} {
		if _, _, err := mad.Parse(b[:n]); !errors.Is(err, mad.ErrLength) {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
	if _, _, err := mad.Parse(append(b[:], 0)); !errors.Is(err, mad.ErrLength) {
		t.Errorf("one byte too long: %v", err)
	}
	for i := range 4 {
		c := b
		c[i]++
		if _, _, err := mad.Parse(c[:]); !errors.Is(err, mad.ErrClass) {
			t.Errorf("byte %d is wrong: %v", i, err)
		}
	}
}

func TestIPCM(t *testing.T) {
	for _, h := range []mad.IPCM{
		{Src: netip.MustParseAddr("10.0.0.1"), Dst: netip.MustParseAddr("10.0.0.2"), SrcPort: 0x1234},
		{Src: netip.MustParseAddr("2001:db8::1"), Dst: netip.MustParseAddr("fe80::2"), SrcPort: 65535},
	} {
		b := h.Append(nil)
		if len(b) != mad.IPCMLen {
			t.Fatalf("%d bytes", len(b))
		}
		if got, err := mad.ParseIPCM(append(b, 1, 2)); err != nil || got != h {
			t.Errorf("%+v became %+v, %v", h, got, err)
		}
		if _, err := mad.ParseIPCM(b[:35]); !errors.Is(err, mad.ErrIPCMLength) {
			t.Errorf("35 bytes: %v", err)
		}
		for _, bad := range [][2]byte{{0x10, b[1]}, {0, 0x50}, {0, 0}} {
			c := slices.Clone(b)
			c[0], c[1] = bad[0], bad[1]
			if _, err := mad.ParseIPCM(c); !errors.Is(err, mad.ErrIPCMVersion) {
				t.Errorf("version % x: %v", bad, err)
			}
		}
	}
	if got := mad.ServiceID(0x106, 7174); got != 0x1061c06 {
		t.Errorf("service ID %#x", got)
	}
}

func TestNames(t *testing.T) {
	if got := mad.AttrSIDRREP.String() + " " + mad.Attr(0x99).String(); got != "SIDR_REP attribute 0x99" {
		t.Error(got)
	}
}

func FuzzDecode(f *testing.F) {
	captured(f, func(_ string, _, _ netip.Addr, b []byte) { f.Add(bytes.Clone(b)) })
	for a := firstAttr; a <= lastAttr; a++ {
		var b [mad.Size]byte
		mad.Encode(&b, uint64(a), mad.New(a))
		f.Add(b[:])
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		h, data, err := mad.Parse(b)
		if err != nil {
			return
		}
		m := mad.New(h.Attr)
		if m == nil {
			return
		}
		mad.Decode(data, m)
		var again [mad.Size]byte
		mad.Encode(&again, h.TID, m)
		h2, data2, err := mad.Parse(again[:])
		if err != nil || h2.Attr != h.Attr || h2.TID != h.TID {
			t.Fatalf("%+v became %+v, %v", h, h2, err)
		}
		n := mad.New(h.Attr)
		mad.Decode(data2, n)
		if !reflect.DeepEqual(m, n) {
			t.Fatalf("%+v became %+v", m, n)
		}
	})
}

func FuzzIPCM(f *testing.F) {
	f.Add(bytes.Repeat([]byte{0, 0x40}, 18))
	f.Add(bytes.Repeat([]byte{0, 0x60}, 18))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := mad.ParseIPCM(b)
		if err != nil {
			return
		}
		if again, err := mad.ParseIPCM(h.Append(nil)); err != nil || again != h {
			t.Fatalf("%+v became %+v, %v", h, again, err)
		}
	})
}

func BenchmarkREQ(b *testing.B) {
	var buf [mad.Size]byte
	m := mad.REQ{LocalCommID: 1, PrivateData: make([]byte, mad.REQPrivateLen)}
	b.ReportAllocs()
	for b.Loop() {
		mad.Encode(&buf, 1, &m)
		_, data, err := mad.Parse(buf[:])
		if err != nil {
			b.Fatal(err)
		}
		mad.Decode(data, &m)
	}
	if binary.BigEndian.Uint64(buf[8:]) != 1 {
		b.Fatal("transaction ID")
	}
}
