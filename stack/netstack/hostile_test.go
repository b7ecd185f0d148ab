package netstack_test

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/stack"
	"github.com/softrnic/softrnic/stack/netstack"
)

func TestHostileFrames(t *testing.T) {
	w := newWire()
	put := binary.BigEndian.PutUint16
	v4 := func(change func(b []byte)) link.Frame {
		b := frame4(b4, a4, w.mac, 20)
		if change != nil {
			change(b)
			fixChecksum(b)
		}
		return link.Frame{Data: b}
	}
	v6 := func(change func(b []byte)) link.Frame {
		b := frame6(b6, a6, w.mac, 20)
		change(b)
		return link.Frame{Data: b}
	}
	v1 := func(change func(b []byte)) link.Frame {
		b := frameV1(b6, a6, w.mac, 20)
		change(b)
		return link.Frame{Data: b}
	}
	with := func(f link.Frame, change func(f *link.Frame)) link.Frame {
		change(&f)
		return f
	}
	from := func(src string) func(b []byte) {
		a := netip.MustParseAddr(src)
		return func(b []byte) {
			if a.Is4() {
				copy(b[26:], a.AsSlice())
			} else {
				copy(b[22:], a.AsSlice())
			}
		}
	}
	const (
		delivered = iota
		malformed
		ignored
		answered // by gVisor; ARP for the destination comes first
	)
	for _, tc := range []struct {
		name  string
		frame link.Frame
		want  int
	}{
		{"correct", v4(nil), delivered},
		{"correct IPv6", v6(func([]byte) {}), delivered},
		{"wrong UDP checksum", v4(func(b []byte) { put(b[40:], 0x1234) }), delivered},
		{"IP length beyond the frame", v4(func(b []byte) { put(b[16:], 49) }), malformed},
		{"IP length of headers only", v4(func(b []byte) { put(b[16:], 28); put(b[38:], 8) }), malformed},
		{"IP length 0", v4(func(b []byte) { put(b[16:], 0) }), malformed},
		{"UDP length short", v4(func(b []byte) { put(b[38:], 27) }), malformed},
		{"UDP length long", v4(func(b []byte) { put(b[38:], 29) }), malformed},
		{"wrong IPv4 checksum", with(v4(nil), func(f *link.Frame) { f.Data[24] ^= 1 }), malformed},
		{"IPv6 payload length beyond the frame", v6(func(b []byte) { put(b[18:], 29) }), malformed},
		{"IP and UDP lengths of a trimmed packet", v4(func(b []byte) { put(b[16:], 60); put(b[38:], 40) }), delivered},
		{"IPv6 and UDP lengths of a trimmed packet", v6(func(b []byte) { put(b[18:], 40); put(b[58:], 40) }), delivered},
		{"trimmed to the headers", with(v4(nil), func(f *link.Frame) { f.Data = f.Data[:42] }), malformed},
		{"trimmed in memory", with(v4(func(b []byte) { put(b[16:], 60); put(b[38:], 40) }), func(f *link.Frame) { f.NoICRC = true }), malformed},
		{"trimmed superframe", with(v4(func(b []byte) { put(b[16:], 60); put(b[38:], 40) }), func(f *link.Frame) {
			f.Segmentation, f.SegmentSize = link.UDP, 10
		}), malformed},
		{"IPv6 payload length 0", v6(func(b []byte) { put(b[18:], 0) }), malformed},
		{"IPv6 UDP length short", v6(func(b []byte) { put(b[58:], 8) }), malformed},
		{"from multicast", v4(from("224.0.0.1")), malformed},
		{"from broadcast", v4(from("255.255.255.255")), malformed},
		{"from the unspecified address", v4(from("0.0.0.0")), malformed},
		{"from loopback", v4(from("127.0.0.1")), malformed},
		{"from oneself", v4(from("10.0.0.1")), malformed},
		{"IPv6 from multicast", v6(from("ff02::1")), malformed},
		{"IPv6 from the unspecified address", v6(from("::")), malformed},
		{"IPv6 from IPv4", v6(from("::ffff:10.0.0.2")), malformed},
		{"superframe of segments of 0", with(v4(nil), func(f *link.Frame) { f.Segmentation = link.UDP }), malformed},
		{"TCP superframe", with(v4(nil), func(f *link.Frame) { f.Segmentation, f.SegmentSize = link.TCPv4, 10 }), malformed},
		{"correct RoCE v1", v1(func([]byte) {}), delivered},
		{"RoCE v1 length beyond the frame", v1(func(b []byte) { put(b[18:], 21) }), malformed},
		{"RoCE v1 length 0", v1(func(b []byte) { put(b[18:], 0) }), malformed},
		{"RoCE v1 of IP version 4", v1(func(b []byte) { b[14] = 0x45 }), malformed},
		{"RoCE v1 without a BTH", v1(func(b []byte) { b[20] = 17 }), malformed},
		{"RoCE v1 from multicast", v1(from("ff02::1")), malformed},
		{"RoCE v1 from the unspecified address", v1(from("::")), malformed},
		{"RoCE v1 from oneself", v1(from("2001:db8::1")), malformed},
		{"RoCE v1 superframe", with(v1(func([]byte) {}), func(f *link.Frame) { f.Segmentation, f.SegmentSize = link.UDP, 10 }), malformed},
		{"RoCE v1 for another GID", v1(func(b []byte) { b[53]++ }), ignored},
		{"RoCE v1 cut in the GRH", link.Frame{Data: v1(func([]byte) {}).Data[:53]}, malformed},
		{"first fragment", v4(func(b []byte) { put(b[20:], 0x2000) }), ignored},
		{"last fragment", v4(func(b []byte) { put(b[20:], 1) }), ignored},
		{"IPv4 options", v4(func(b []byte) { b[14] = 0x46 }), ignored},
		{"other port", v4(func(b []byte) { put(b[36:], 4790) }), answered},
		{"for another host", v4(func(b []byte) { copy(b[30:], []byte{10, 0, 0, 9}) }), ignored},
		{"for another MAC", with(v4(nil), func(f *link.Frame) { f.Data[5] ^= 1 }), ignored},
		{"to the broadcast MAC", with(v4(nil), func(f *link.Frame) { copy(f.Data, "\xff\xff\xff\xff\xff\xff") }), ignored},
		{"VLAN tag", with(v4(nil), func(f *link.Frame) {
			f.Data = slices.Concat(f.Data[:12], []byte{0x81, 0, 0, 5}, f.Data[12:])
		}), ignored},
		{"IPv6 hop-by-hop option", v6(func(b []byte) { b[20] = 0 }), ignored},
		{"Ethernet header only", link.Frame{Data: v4(nil).Data[:14]}, ignored},
		{"13 bytes", link.Frame{Data: v4(nil).Data[:13]}, ignored},
		{"cut in the UDP header", link.Frame{Data: v4(nil).Data[:41]}, ignored},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWire()
				h := newHost(t, w, &netstack.Config{Addrs: []string{"10.0.0.1/24", "2001:db8::1/64"}})
				in := collect(h)
				synctest.Wait()
				before := w.sent.Load()
				w.arrive(tc.frame)
				synctest.Wait()
				got := ignored
				c := h.Interfaces()[0].Counters()
				switch {
				case len(in.packets) == 1 && c.RxFrames == 1:
					got = delivered
				case c.RxMalformed == 1:
					got = malformed
				case w.sent.Load() != before:
					got = answered
				}
				if got != tc.want {
					t.Errorf("outcome %d, want %d: %d datagrams, %+v", got, tc.want, len(in.packets), c)
				}
			})
		})
	}
}

// TestPadding checks that Ethernet's padding of short packets is removed.
func TestPadding(t *testing.T) {
	w := newWire()
	h := newHost(t, w, &netstack.Config{Addrs: []string{"10.0.0.1/24"}})
	in := collect(h)
	w.arrive(link.Frame{Data: append(frame4(b4, a4, w.mac, 4), make([]byte, 14)...)})
	if len(in.packets) != 1 || len(in.packets[0].payload) != 4 {
		t.Fatalf("got %+v, want one datagram of 4 bytes", in.packets)
	}
}

// FuzzFrame checks for any frame that the received data lies in the frame and is complete.
func FuzzFrame(f *testing.F) {
	w := newWire()
	f.Add(frame4(b4, a4, w.mac, 20), uint8(0), uint16(0))
	f.Add(frame4(b4, a4, w.mac, 200), uint8(link.UDP), uint16(64))
	f.Add(frame6(b6, a6, w.mac, 20), uint8(0), uint16(0))
	f.Add(frame6(b6, a6, w.mac, 200), uint8(link.UDP), uint16(1))
	f.Add(frameV1(b6, a6, w.mac, 20), uint8(0), uint16(0))
	f.Add(frameV1(b4, a4, w.mac, 20), uint8(0), uint16(0))
	h := newHost(f, w, &netstack.Config{Addrs: []string{"10.0.0.1/24", "2001:db8::1/64"}})
	var data []byte
	var t *testing.T
	h.NICs()[0].Datagrams().Receive(func(d *stack.Datagram) {
		headers := len(d.Header)
		if headers != 28 && headers != 48 && headers != 40 || d.V1 != (headers == 40) || len(d.Payload) == 0 ||
			14+headers+len(d.Payload) > len(data) {
			t.Errorf("%d bytes of headers and %d of payload in a frame of %d", headers, len(d.Payload), len(data))
		}
		if &d.Header[0] != &data[14] || &d.Payload[0] != &data[14+headers] {
			t.Error("header or payload is not at its place in the frame")
		}
		if d.Dst != a4 && d.Dst != a6 {
			t.Errorf("for %v", d.Dst)
		}
		total := 0
		for {
			p, ok := d.Next()
			if !ok {
				break
			}
			total += len(p)
			if n := binary.BigEndian.Uint16(d.Header[headers-4:]); !d.V1 && int(n) != 8+len(p) {
				t.Errorf("segment of %d bytes has UDP length %d", len(p), n)
			}
		}
		if total != len(d.Payload) {
			t.Errorf("segments of %d bytes in all, payload %d", total, len(d.Payload))
		}
	})
	f.Fuzz(func(tt *testing.T, frame []byte, segmentation uint8, size uint16) {
		t, data = tt, frame
		w.arrive(link.Frame{Data: frame, Segmentation: link.Segmentation(segmentation), SegmentSize: size})
	})
}

// TestHostileSYN sends SYNs to a listening port, some with data offsets beyond their headers or too
// small.
func TestHostileSYN(t *testing.T) {
	w := newWire()
	h := newHost(t, w, &netstack.Config{Addrs: []string{"10.0.0.1/24"}})
	l, err := h.ListenStream(netip.MustParseAddrPort("10.0.0.1:7471"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	done := make(chan bool)
	go func() { // as in a link: a panic ends the program
		defer close(done)
		for words := range 16 {
			b := frame4(b4, a4, w.mac, 12)
			b[23] = 6 // TCP
			clear(b[34:])
			binary.BigEndian.PutUint16(b[34:], 40000)
			binary.BigEndian.PutUint16(b[36:], 7471)
			b[34+12], b[34+13] = byte(words)<<4, 2
			fixChecksum(b)
			w.arrive(link.Frame{Data: b, ChecksumValid: true})
		}
	}()
	<-done
}
