// Package linktest tests implementations of [link.Link], also those outside of this module. It
// builds frames, and checks what every link promises:
//
//   - [Polling] and [CloseWhilePolled], if the link implements [link.Poller];
//   - [Queues], if it receives on several queues at the same time.
//
// Other tests send frames of [Plain], [Superframe] and [TCPSuperframe] to [Receive], which shows
// them as the link delivers them. A frame of another host on the medium does not disturb any of
// these.
//
//	func TestPolling(t *testing.T) {
//		a, b := mylink.Open("one"), mylink.Open("two") // on one medium
//		linktest.Polling(t, a, b, 1000)
//	}
//
// The package links nothing but the standard library, package link and a checksum.
package linktest

import (
	"bytes"
	"encoding/binary"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/checksum"
)

// etherType is for local experiments (IEEE 802).
const etherType = 0x88b5

// rocePort is the UDP destination port of superframes.
const rocePort = 4791

// Plain returns a frame with n bytes of payload, which begins with start.
func Plain(dst, src net.HardwareAddr, n int, start string) link.Frame {
	d := make([]byte, 0, link.EthernetHeaderLen+n)
	d = binary.BigEndian.AppendUint16(append(append(d, dst...), src...), etherType)
	d = append(d, start...)
	for len(d) < cap(d) {
		d = append(d, byte(len(d)))
	}
	return link.Frame{Data: d}
}

// Lengths of headers without options.
const (
	ipv4Len, ipv6Len   = 20, 40
	udpLen, tcpLen     = 8, 32 // TCP with 12 bytes of options
	udpProto, tcpProto = 17, 6
)

// headers returns an Ethernet and an IP header, for n bytes of a protocol, and the checksum of the
// pseudo-header. It has room for the n bytes.
func headers(dst, src net.HardwareAddr, v6 bool, protocol byte, n int) (b []byte, pseudo uint16) {
	b = append(append(make([]byte, 0, link.EthernetHeaderLen+ipv6Len+n), dst...), src...)
	var addrs []byte
	if v6 {
		b = append(b, 0x86, 0xdd, 0x60, 0, 0, 0, byte(n>>8), byte(n), protocol, 64)
		for host := byte(1); host <= 2; host++ { // fe80::1, fe80::2
			b = append(b, 0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, host)
		}
		addrs = b[len(b)-32:]
	} else {
		total := ipv4Len + n
		b = append(b, 0x08, 0x00, 0x45, 0, byte(total>>8), byte(total), 0, 1, 0x40, 0, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2)
		checksum.PutIPv4(b[link.EthernetHeaderLen:])
		addrs = b[len(b)-8:]
	}
	return b, checksum.Sum([]byte{0, protocol, byte(n >> 8), byte(n)}, checksum.Sum(addrs, 0))
}

// Superframe returns a UDP superframe to port 4791 over IPv4 or IPv6, with segments of size bytes
// each. The frame has the checksum of the pseudo-header only, as a sender leaves it to the link.
func Superframe(dst, src net.HardwareAddr, v6 bool, segments, size int) link.Frame {
	n := segments * size
	b, pseudo := headers(dst, src, v6, udpProto, udpLen+n)
	at := len(b)
	for _, field := range []uint16{0xc000, rocePort, uint16(udpLen + n), pseudo} {
		b = binary.BigEndian.AppendUint16(b, field)
	}
	f := link.Frame{Segmentation: link.UDP, SegmentSize: uint16(size), HeaderLen: uint16(len(b)),
		NeedsChecksum: true, ChecksumStart: uint16(at), ChecksumOffset: 6}
	for i := range n {
		b = append(b, byte(i*7))
	}
	f.Data = b
	return f
}

// udp returns the UDP header and the bytes after it, if f is a frame built by Superframe, or a
// segment of one.
func udp(f *link.Frame) (b []byte, ok bool) {
	if len(f.Data) < link.EthernetHeaderLen+ipv6Len+udpLen {
		return nil, false
	}
	b = f.Data[link.EthernetHeaderLen:]
	switch {
	case b[0] == 0x45 && b[9] == udpProto:
		b = b[ipv4Len:]
	case b[0]>>4 == 6 && b[6] == udpProto:
		b = b[ipv6Len:]
	default:
		return nil, false
	}
	return b, binary.BigEndian.Uint16(b[2:]) == rocePort
}

// Receive attaches to l, and sends copies of Plain's and Superframe's frames to the channel.
func Receive(l link.Link) <-chan link.Frame {
	c := make(chan link.Frame, 256)
	l.Attach(func(frames []link.Frame) {
		for _, f := range frames {
			if _, ok := udp(&f); ok || binary.BigEndian.Uint16(f.Data[12:]) == etherType {
				f.Data = bytes.Clone(f.Data)
				c <- f
			}
		}
	})
	return c
}

// Queues tests two links of one medium that have several queues. b receives on several queues
// concurrently. Each frame arrives once, superframes arrive uncut, and each flow stays in order.
func Queues(t *testing.T, a, b PollingLink) {
	t.Helper()
	const flows, each = 16, 100
	var mu sync.Mutex
	var next [flows]int
	total, all := 0, make(chan struct{})
	var inside atomic.Int32
	var once sync.Once
	parallel := make(chan struct{}) // closed once two calls overlap
	forwards := make(chan struct{}) // closed once a frame arrives
	var first sync.Once
	b.Attach(func(frames []link.Frame) {
		for _, f := range frames {
			b, ours := udp(&f)
			if !ours {
				if binary.BigEndian.Uint16(f.Data[12:]) == etherType {
					first.Do(func() { close(forwards) })
				}
				continue
			}
			if inside.Add(1) > 1 {
				once.Do(func() { close(parallel) })
			}
			select {
			case <-parallel:
			case <-t.Context().Done():
			}
			mu.Lock()
			flow, n := b[1]%flows, int(binary.BigEndian.Uint16(b[udpLen:]))
			if n != next[flow] || f.Segmentation != link.UDP {
				t.Errorf("flow %d: frame %d, segmentation %d; want %d, uncut", flow, n, f.Segmentation, next[flow])
			}
			next[flow] = n + 1
			if total++; total == flows*each {
				close(all)
			}
			mu.Unlock()
			inside.Add(-1)
		}
	})
	a.Attach(func(frames []link.Frame) {
		for i := range frames {
			if _, ours := udp(&frames[i]); ours {
				t.Error("a link received its own frame")
			}
		}
	})
	// A bridge drops what comes before it has noticed that its ports are up.
	again, late := time.NewTicker(time.Millisecond), time.After(20*time.Second)
	defer again.Stop()
	for waits := true; waits; {
		if _, err := a.Write([]link.Frame{Plain(b.MAC(), a.MAC(), 100, "")}); err != nil {
			t.Fatal(err)
		}
		b.Poll()
		select {
		case <-forwards:
			waits = false
		case <-again.C:
		case <-late:
			t.Fatal("no frame arrives")
		}
	}
	f := Superframe(b.MAC(), a.MAC(), false, 2, 1040)
	header, _ := udp(&f)
	// A queue of the medium loses frames beyond a few hundred, and each flow may be in the same one.
	const waiting = 16 * flows
	deadline := time.Now().Add(20 * time.Second)
	arrived := func(least int) bool {
		mu.Lock()
		defer mu.Unlock()
		return total >= least || time.Now().After(deadline)
	}
	for n := range uint16(each) {
		for !arrived(int(n)*flows - waiting) {
			b.Poll()
			runtime.Gosched()
		}
		for flow := range byte(flows) {
			header[1] = flow // low byte of the source port
			binary.BigEndian.PutUint16(header[8:], n)
			if _, err := a.Write([]link.Frame{f}); err != nil {
				t.Fatal(err)
			}
		}
		if n == 0 {
			select {
			case <-parallel:
			case <-time.After(20 * time.Second):
				t.Fatalf("%d flows arrived on one queue", flows)
			}
		}
		b.Poll()
	}
	select {
	case <-all:
	case <-time.After(20 * time.Second):
		t.Error("frames are missing")
	}
	for _, l := range []link.Link{a, b} {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TCPSuperframe returns a TCP segment of n bytes over IPv6 with FIN, PSH and CWR set, to be cut
// into segments of size bytes.
func TCPSuperframe(n, size int) link.Frame {
	b, pseudo := headers(net.HardwareAddr{2, 0, 0, 0, 0, 2}, net.HardwareAddr{2, 0, 0, 0, 0, 1}, true, tcpProto, tcpLen+n)
	b = append(b, 0, 1, 0, 2, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0, tcpLen/4<<4, 0x99, 0, 0, byte(pseudo>>8), byte(pseudo), 0, 0)
	b = append(b, make([]byte, tcpLen-20)...)
	for i := range n {
		b = append(b, byte(i))
	}
	return link.Frame{Data: b, Segmentation: link.TCPv6, SegmentSize: uint16(size), HeaderLen: 86,
		NeedsChecksum: true, ChecksumStart: 54, ChecksumOffset: 16}
}
