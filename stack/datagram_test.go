package stack_test

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"
	"testing/synctest"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/stack"
)

// packet is a datagram segment as a receiver saw it.
type packet struct {
	src, dst netip.Addr
	srcPort  uint16
	tc, hop  uint8
	header   []byte
	payload  []byte
	frame    int // index of the frame that it came in
}

// inbox collects what a port receives; read it when the bubble is quiet (synctest.Wait).
type inbox struct {
	packets []packet
	frames  int
}

func (in *inbox) receive(d *stack.Datagram) {
	for {
		p, ok := d.Next()
		if !ok {
			break
		}
		in.packets = append(in.packets, packet{d.Src, d.Dst, d.SrcPort, d.TrafficClass, d.HopLimit,
			bytes.Clone(d.Header), bytes.Clone(p), in.frames})
	}
	in.frames++
}

func newHost(t testing.TB, l link.Link, opts ...stack.Option) *stack.Host {
	t.Helper()
	h, err := stack.New(l, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.Close() })
	return h
}

func collect(h *stack.Host) *inbox {
	in := new(inbox)
	h.NICs()[0].Datagrams().Receive(in.receive)
	return in
}

func newPath(t testing.TB, h *stack.Host, a stack.PathAttr) stack.Path {
	t.Helper()
	if a.SrcPort == 0 {
		a.SrcPort = 50000
	}
	p, err := h.NICs()[0].Datagrams().Path(a)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

// send sends one datagram of each size, filled with its index, and returns the headers that the sender showed.
func send(t testing.TB, h *stack.Host, p stack.Path, sizes ...int) (headers [][]byte) {
	t.Helper()
	s := h.NICs()[0].Datagrams().Sender()
	defer s.Flush()
	for i, n := range sizes {
		header, payload := s.Datagram(p, n)
		if len(payload) != n {
			t.Fatalf("Datagram(%d) gave %d bytes", n, len(payload))
		}
		for j := range payload {
			payload[j] = byte(i + j)
		}
		headers = append(headers, bytes.Clone(header))
	}
	return headers
}

// icrcView blanks what the ICRC does not cover: traffic class, flow label, hop limit and checksums.
func icrcView(h []byte) []byte {
	h = bytes.Clone(h)
	if h[0]>>4 == 4 {
		h[1], h[8], h[10], h[11] = 0, 0, 0, 0
	} else {
		h[0], h[1], h[2], h[3], h[7] = 0x60, 0, 0, 0, 0
	}
	binary.BigEndian.PutUint16(h[len(h)-2:], 0)
	return h
}

func checkArrived(t testing.TB, in *inbox, a stack.PathAttr, headers [][]byte, sizes ...int) {
	t.Helper()
	if len(in.packets) != len(sizes) {
		t.Fatalf("%d datagrams arrived, want %d", len(in.packets), len(sizes))
	}
	for i, p := range in.packets {
		if p.src != a.Src || p.dst != a.Dst || p.srcPort != 50000 || p.tc != a.TrafficClass {
			t.Errorf("datagram %d: from %v:%d to %v class %#x, want as %+v", i, p.src, p.srcPort, p.dst, p.tc, a)
		}
		if want := max(a.HopLimit, 64); p.hop != want {
			t.Errorf("datagram %d: hop limit %d, want %d", i, p.hop, want)
		}
		if !bytes.Equal(icrcView(p.header), icrcView(headers[i])) {
			t.Errorf("datagram %d: header\n% x arrived,\n% x was shown", i, p.header, headers[i])
		}
		if len(p.payload) != sizes[i] {
			t.Errorf("datagram %d: %d bytes, want %d", i, len(p.payload), sizes[i])
		}
		for j, b := range p.payload {
			if b != byte(i+j) {
				t.Fatalf("datagram %d: byte %d is %d, want %d", i, j, b, byte(i+j))
			}
		}
	}
}

var (
	a4 = netip.MustParseAddr("10.0.0.1")
	b4 = netip.MustParseAddr("10.0.0.2")
	a6 = netip.MustParseAddr("2001:db8::1")
	b6 = netip.MustParseAddr("2001:db8::2")
)

func twoHosts(t testing.TB) (a, b *stack.Host) {
	lan := pipe.New()
	a = newHost(t, lan.Port(), stack.Addr("10.0.0.1/24"), stack.Addr("2001:db8::1/64"))
	b = newHost(t, lan.Port(), stack.Addr("10.0.0.2/24"), stack.Addr("2001:db8::2/64"))
	return a, b
}

func TestRoundTrip(t *testing.T) {
	for name, attr := range map[string]stack.PathAttr{
		"IPv4": {Src: a4, Dst: b4, TrafficClass: 0x6a, HopLimit: 200},
		"IPv6": {Src: a6, Dst: b6, TrafficClass: 0x6b, FlowLabel: 0xabcde},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, b := twoHosts(t)
				in := collect(b)
				p := newPath(t, a, attr)
				sizes := []int{16, 1040, 1040, 1040, 500, 1040, 1}
				headers := send(t, a, p, sizes...)
				synctest.Wait()
				checkArrived(t, in, attr, headers, sizes...)
				if in.frames != 3 {
					t.Errorf("%d frames, want 3: 16; 1040 1040 1040 500; 1040 1", in.frames)
				}
			})
		})
	}
}
