package netstack_test

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/stack"
	"github.com/softrnic/softrnic/stack/netstack"
)

// packet is a datagram segment as received.
type packet struct {
	src, dst netip.Addr
	srcPort  uint16
	tc, hop  uint8
	header   []byte
	payload  []byte
	frame    int // index of the frame
}

// inbox collects received datagrams. Read it when the bubble is idle (synctest.Wait).
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

// at returns cfg, which may be nil, with an address.
func at(cfg *netstack.Config, addr string) *netstack.Config {
	var c netstack.Config
	if cfg != nil {
		c = *cfg
	}
	c.Addrs = append(slices.Clone(c.Addrs), addr)
	return &c
}

func newHost(t testing.TB, l link.Link, cfg *netstack.Config) *netstack.Host {
	t.Helper()
	h, err := netstack.New(l, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.Close() })
	return h
}

func collect(h *netstack.Host) *inbox {
	in := new(inbox)
	h.NICs()[0].Datagrams().Receive(in.receive)
	return in
}

func newPath(t testing.TB, h *netstack.Host, a stack.PathAttr) stack.Path {
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

// send sends one datagram of each size, filled with its index, and returns the sender's headers.
func send(t testing.TB, h *netstack.Host, p stack.Path, sizes ...int) (headers [][]byte) {
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

// icrcView clears the fields that the ICRC does not cover: traffic class, flow label, hop limit and
// checksums.
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
			t.Errorf("datagram %d: header\n% x arrived,\n% x was returned", i, p.header, headers[i])
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

func twoHosts(t testing.TB) (a, b *netstack.Host) {
	lan := new(pipe.Switch)
	a = newHost(t, lan.Port(), &netstack.Config{Addrs: []string{"10.0.0.1/24", "2001:db8::1/64"}})
	b = newHost(t, lan.Port(), &netstack.Config{Addrs: []string{"10.0.0.2/24", "2001:db8::2/64"}})
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

// TestSharedPath checks that paths between the same addresses share all but their source ports, and
// that each survives the close of the others.
func TestSharedPath(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := twoHosts(t)
		in := collect(b)
		attr := stack.PathAttr{Src: a4, Dst: b4}
		var headers [][]byte
		var paths [3]stack.Path
		for i := range paths {
			attr.SrcPort = 50_000 + uint16(i)
			paths[i] = newPath(t, a, attr)
		}
		paths[0].Close()
		paths[0].Close()
		for _, p := range paths[1:] {
			headers = append(headers, send(t, a, p, 100)...)
		}
		synctest.Wait()
		if len(in.packets) != 2 {
			t.Fatalf("%d datagrams arrived", len(in.packets))
		}
		for i, p := range in.packets {
			if want := 50_001 + uint16(i); p.srcPort != want || !bytes.Equal(icrcView(p.header), icrcView(headers[i])) {
				t.Errorf("datagram %d is from port %d with header %x, want port %d and %x", i, p.srcPort, p.header, want, headers[i])
			}
		}
	})
}

// TestSuperframeLimits checks where a superframe ends: 128 segments, 65,535 bytes of IP packet.
func TestSuperframeLimits(t *testing.T) {
	for _, tc := range []struct {
		name         string
		size, number int
		frames       []int // segments in each
	}{
		{"segments", 64, 200, []int{128, 72}},
		{"bytes", 4112, 20, []int{15, 5}},
		{"bytes of 1024", 1040, 70, []int{62, 8}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, b := twoHosts(t)
				in := collect(b)
				attr := stack.PathAttr{Src: a4, Dst: b4}
				p := newPath(t, a, attr)
				synctest.Wait() // resolved
				sizes := slices.Repeat([]int{tc.size}, tc.number)
				headers := send(t, a, p, sizes...)
				synctest.Wait()
				checkArrived(t, in, attr, headers, sizes...)
				got := make([]int, in.frames)
				for _, p := range in.packets {
					got[p.frame]++
				}
				if !slices.Equal(got, tc.frames) {
					t.Errorf("segments a frame: %v, want %v", got, tc.frames)
				}
			})
		})
	}
}

// TestCut checks that a frame ends with the datagram before Cut. The data of superframes, which the
// kernel copies, begins on a cache line.
func TestCut(t *testing.T) {
	for _, attr := range []stack.PathAttr{{Src: a4, Dst: b4}, {Src: a6, Dst: b6}} {
		synctest.Test(t, func(t *testing.T) {
			lan := new(pipe.Switch)
			out := &spy{Link: lan.Port()}
			a := newHost(t, out, &netstack.Config{Addrs: []string{"10.0.0.1/24", "2001:db8::1/64"}})
			newHost(t, lan.Port(), &netstack.Config{Addrs: []string{"10.0.0.2/24", "2001:db8::2/64"}})
			p := newPath(t, a, attr)
			synctest.Wait() // resolved
			s := a.NICs()[0].Datagrams().Sender()
			s.Cut()
			sizes := []int{1056, 1040, 1040, 1041, 1041, 1041, 1041, 77, 1040, 1040}
			for i, n := range sizes {
				if _, payload := s.Datagram(p, n); len(payload) != n {
					t.Fatalf("Datagram(%d) gave %d bytes", n, len(payload))
				}
				if i == 0 || i == 4 {
					s.Cut()
					s.Drop() // no effect: it was sent
				}
			}
			s.Flush()
			synctest.Wait()
			var got []int
			for _, f := range out.roce() {
				got = append(got, len(f.Data)-int(f.HeaderLen))
			}
			want := []int{1056 + 42, 2080, 2082, 2*1041 + 77, 2080}
			if attr == (stack.PathAttr{Src: a6, Dst: b6}) {
				want[0] = 1056 + 62
			}
			if !slices.Equal(got, want) {
				t.Errorf("frames of %v bytes after their headers, want %v", got, want)
			}
			if !slices.Equal(out.skew, make([]int, 4)) {
				t.Errorf("superframes' data begins %v bytes after a cache line boundary", out.skew)
			}
		})
	}
}

func TestDatagramSizeBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := twoHosts(t)
		in := collect(b)
		attr := stack.PathAttr{Src: a4, Dst: b4}
		p := newPath(t, a, attr)
		if want := pipe.DefaultMTU - 28; p.MTU() != want {
			t.Errorf("MTU %d, want %d", p.MTU(), want)
		}
		if got := newPath(t, a, stack.PathAttr{Src: a6, Dst: b6}).MTU(); got != pipe.DefaultMTU-48 {
			t.Errorf("IPv6 MTU %d, want %d", got, pipe.DefaultMTU-48)
		}
		s := a.NICs()[0].Datagrams().Sender()
		for _, n := range []int{-1, 0, p.MTU() + 1, 1 << 20} {
			if h, b := s.Datagram(p, n); h != nil || b != nil {
				t.Errorf("Datagram(%d) gave %d and %d bytes, want nil", n, len(h), len(b))
			}
		}
		s.Flush()
		headers := send(t, a, p, p.MTU(), p.MTU(), 1)
		synctest.Wait()
		checkArrived(t, in, attr, headers, p.MTU(), p.MTU(), 1)
	})
}

// resized is a link whose MTU changes.
type resized struct {
	*pipe.Port
	mtu atomic.Int64
}

func (l *resized) MTU() int { return int(l.mtu.Load()) }

// TestLoopbackMTU checks that datagrams on a path from an interface to itself may use the MTU at
// the time when the path was opened.
func TestLoopbackMTU(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &resized{Port: new(pipe.Switch).Port()}
		l.mtu.Store(1500)
		h := newHost(t, l, &netstack.Config{Addrs: []string{"10.0.0.1/24"}})
		in := collect(h)
		attr := stack.PathAttr{Src: a4, Dst: a4}
		for _, mtu := range []int{1500, 9000, 1500} {
			l.mtu.Store(int64(mtu))
			p := newPath(t, h, attr)
			if want := mtu - 28; p.MTU() != want {
				t.Fatalf("MTU %d, want %d", p.MTU(), want)
			}
			*in = inbox{}
			headers := send(t, h, p, p.MTU())
			synctest.Wait()
			checkArrived(t, in, attr, headers, p.MTU())
		}
	})
}

// TestIDWrap sends more datagrams than there are IPv4 IDs. If a superframe's IDs wrap from 65535 to
// 0, each segment's header must be the sender's. A path of one sender skips no ID.
func TestIDWrap(t *testing.T) {
	for _, oneSender := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			a, b := twoHosts(t)
			in := collect(b)
			attr := stack.PathAttr{Src: a4, Dst: b4, OneSender: oneSender}
			p := newPath(t, a, attr)
			synctest.Wait()
			sizes := slices.Repeat([]int{20}, 1000)
			wrapped := false
			var next uint16
			// Twice through the IDs: the wrap falls between superframes at most once.
			for i := range 140 {
				in.packets = in.packets[:0]
				headers := send(t, a, p, sizes...)
				synctest.Wait()
				checkArrived(t, in, attr, headers, sizes...)
				for i, q := range in.packets[1:] {
					wrapped = wrapped || q.frame == in.packets[i].frame && q.header[4] == 0 && q.header[5] == 0
				}
				first := binary.BigEndian.Uint16(in.packets[0].header[4:])
				if oneSender && i > 0 && first != next {
					t.Fatalf("ID %d follows %d", first, next-1)
				}
				next = first + uint16(len(sizes))
			}
			if !wrapped {
				t.Errorf("OneSender %t: no superframe contained the wrap", oneSender)
			}
		})
	}
}

func TestDrop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := twoHosts(t)
		in := collect(b)
		p := newPath(t, a, stack.PathAttr{Src: a4, Dst: b4})
		s := a.NICs()[0].Datagrams().Sender()
		s.Drop() // no effect
		var headers [][]byte
		for i := range 8 {
			n := 100
			if i == 2 {
				n = 50 // short: it would have ended the superframe
			}
			h, payload := s.Datagram(p, n)
			payload[0] = byte(i)
			if i == 0 || i == 2 || i == 7 {
				s.Drop()
				s.Drop() // the second has no effect
				continue
			}
			headers = append(headers, bytes.Clone(h))
		}
		s.Flush()
		synctest.Wait()
		var got []byte
		for i, q := range in.packets {
			got = append(got, q.payload[0])
			if len(q.payload) != 100 || !bytes.Equal(icrcView(q.header), icrcView(headers[i])) {
				t.Errorf("datagram %d: %d bytes, header\n% x arrived,\n% x was returned", i, len(q.payload), q.header, headers[i])
			}
		}
		if !bytes.Equal(got, []byte{1, 3, 4, 5, 6}) {
			t.Errorf("arrived: %v, want 1 3 4 5 6", got)
		}
		if c := a.Interfaces()[0].Counters(); c.TxDatagrams != 5 {
			t.Errorf("TxDatagrams %d, want 5", c.TxDatagrams)
		}
	})
}

// TestNoOffloads checks that a link without superframes gets finished packets.
func TestNoOffloads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lan := new(pipe.Switch)
		out := &spy{Link: lan.Port(), plain: true}
		a := newHost(t, out, &netstack.Config{Addrs: []string{"10.0.0.1/24", "2001:db8::1/64"}})
		b := newHost(t, lan.Port(), &netstack.Config{Addrs: []string{"10.0.0.2/24", "2001:db8::2/64"}})
		in := collect(b)
		for _, attr := range []stack.PathAttr{{Src: a4, Dst: b4}, {Src: a6, Dst: b6}} {
			in.packets = nil
			p := newPath(t, a, attr)
			headers := send(t, a, p, 1040, 1040, 1040)
			synctest.Wait()
			checkArrived(t, in, attr, headers, 1040, 1040, 1040)
		}
		frames := out.roce()
		if len(frames) != 6 {
			t.Fatalf("%d frames, want 6", len(frames))
		}
		for i, f := range frames {
			if f.Segmentation != link.NoSegmentation || f.NeedsChecksum {
				t.Errorf("frame %d: segmentation %d, partial checksum %t", i, f.Segmentation, f.NeedsChecksum)
			}
			if i < 3 && (!header.IPv4(f.Data[14:]).IsChecksumValid() || f.Data[20] != 0x40) {
				t.Errorf("frame %d: IPv4 header % x: want a valid checksum and DF", i, f.Data[14:34])
			}
		}
	})
}

// TestSuperframeChecksum completes a superframe's partial checksum as the kernel would, and
// verifies it.
func TestSuperframeChecksum(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lan := new(pipe.Switch)
		out := &spy{Link: lan.Port()}
		a := newHost(t, out, &netstack.Config{Addrs: []string{"10.0.0.1/24", "2001:db8::1/64"}})
		newHost(t, lan.Port(), &netstack.Config{Addrs: []string{"10.0.0.2/24", "2001:db8::2/64"}})
		for _, attr := range []stack.PathAttr{{Src: a4, Dst: b4}, {Src: a6, Dst: b6}} {
			send(t, a, newPath(t, a, attr), 300, 300, 99)
			synctest.Wait()
		}
		frames := out.roce()
		if len(frames) != 2 {
			t.Fatalf("%d frames, want 2", len(frames))
		}
		for i, f := range frames {
			if f.Segmentation != link.UDP || f.SegmentSize != 300 || !f.NeedsChecksum {
				t.Fatalf("frame %d: %+v", i, f)
			}
			f.FinishChecksum()
			at := int(f.HeaderLen) - 8
			src, dst := f.Data[26:30], f.Data[30:34]
			if i == 1 {
				src, dst = f.Data[22:38], f.Data[38:54]
			}
			datagram := f.Data[at:]
			if !header.UDP(datagram).IsChecksumValid(tcpip.AddrFromSlice(src), tcpip.AddrFromSlice(dst),
				checksum.Checksum(datagram[8:], 0)) {
				t.Errorf("frame %d: the UDP checksum is wrong", i)
			}
		}
	})
}

// TestOwnAddress sends to the host's own addresses while holding a lock that the receiver takes, as
// a QP does.
func TestOwnAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lan := new(pipe.Switch)
		c4 := netip.MustParseAddr("10.0.1.1")
		out := &spy{Link: lan.Port()}
		h := newHost(t, out, &netstack.Config{Addrs: []string{"10.0.0.1/24", "2001:db8::1/64"},
			NICs: []netstack.NICConfig{{Link: lan.Port(), Addrs: []string{"10.0.1.1/24"}}}})
		var mu sync.Mutex
		var in [2]inbox
		for i, n := range h.NICs() {
			n.Datagrams().Receive(func(d *stack.Datagram) {
				mu.Lock()
				defer mu.Unlock()
				in[i].receive(d)
			})
		}
		linkLocal := h.NICs()[0].GIDs()[0]
		for _, tc := range []struct {
			attr stack.PathAttr
			nic  int
		}{
			{stack.PathAttr{Src: a4, Dst: a4}, 0},
			{stack.PathAttr{Src: a6, Dst: a6}, 0},
			{stack.PathAttr{Src: linkLocal, Dst: a6}, 0},
			{stack.PathAttr{Src: a4, Dst: c4}, 1}, // the host's other NIC
		} {
			in = [2]inbox{}
			p := newPath(t, h, tc.attr)
			sizes := slices.Repeat([]int{1040}, 100)
			mu.Lock()
			headers := send(t, h, p, sizes...)
			mu.Unlock()
			synctest.Wait()
			checkArrived(t, &in[tc.nic], tc.attr, headers, sizes...)
		}
		if n := len(out.roce()); n != 0 {
			t.Errorf("%d frames went out", n)
		}
	})
}

// TestReceiveNilWaits removes a running receiver.
func TestReceiveNilWaits(t *testing.T) {
	w := newWire()
	h := newHost(t, w, &netstack.Config{Addrs: []string{"10.0.0.1/24"}})
	port := h.NICs()[0].Datagrams()
	running, release := make(chan bool), make(chan bool)
	var returned, early atomic.Bool
	port.Receive(func(*stack.Datagram) {
		close(running)
		<-release
		early.Store(returned.Load())
	})
	frame := frame4(b4, a4, w.mac, 20)
	var wg sync.WaitGroup
	wg.Go(func() { w.arrive(link.Frame{Data: frame}) })
	<-running
	wg.Go(func() {
		port.Receive(nil)
		returned.Store(true)
	})
	for range 1000 {
		runtime.Gosched() // lets a Receive that does not wait return
	}
	close(release)
	wg.Wait()
	if early.Load() {
		t.Error("Receive(nil) returned while the receiver was running")
	}
	w.arrive(link.Frame{Data: frame})
	if c := h.Interfaces()[0].Counters(); c.RxFrames != 1 || c.RxDropped != 1 {
		t.Errorf("%+v, want one frame received and one dropped", c)
	}
}

// TestManySenders shares a path between goroutines: every header must be as returned.
func TestManySenders(t *testing.T) {
	const senders, rounds, burst = 8, 50, 10
	a, b := twoHosts(t)
	p := newPath(t, a, stack.PathAttr{Src: a4, Dst: b4})
	shown := make([][]byte, senders*rounds*burst)
	var seen atomic.Int64
	done := make(chan bool)
	arrived := make([][]byte, len(shown))
	b.NICs()[0].Datagrams().Receive(func(d *stack.Datagram) {
		for {
			payload, ok := d.Next()
			if !ok {
				return
			}
			arrived[binary.BigEndian.Uint32(payload)] = bytes.Clone(d.Header)
			if seen.Add(1) == int64(len(shown)) {
				close(done)
			}
		}
	})
	var wg sync.WaitGroup
	for i := range senders {
		wg.Go(func() {
			for r := range rounds {
				s := a.NICs()[0].Datagrams().Sender()
				for k := range burst {
					n := (i*rounds+r)*burst + k
					h, payload := s.Datagram(p, 64)
					binary.BigEndian.PutUint32(payload, uint32(n))
					shown[n] = bytes.Clone(h)
				}
				s.Flush()
			}
		})
	}
	wg.Wait()
	<-done
	for i := range shown {
		if !bytes.Equal(icrcView(shown[i]), icrcView(arrived[i])) {
			t.Fatalf("datagram %d: header\n% x arrived,\n% x was returned", i, arrived[i], shown[i])
		}
	}
}
