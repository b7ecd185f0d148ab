// Package linktest is shared by the tests of links: it builds frames, and media in private network
// namespaces.
package linktest

import (
	"bytes"
	"encoding/binary"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"

	"github.com/softrnic/softrnic/link"
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

// Superframe returns a UDP superframe to port 4791 over IPv4 or IPv6, with segments of size bytes
// each.
func Superframe(dst, src net.HardwareAddr, v6 bool, segments, size int) link.Frame {
	n := segments * size
	udp := header.UDPMinimumSize + n
	h := append(append(make([]byte, 0, 64+n), dst...), src...)
	var sum uint16
	if v6 {
		from, to := tcpip.AddrFrom16([16]byte{0xfe, 0x80, 15: 1}), tcpip.AddrFrom16([16]byte{0xfe, 0x80, 15: 2})
		sum = header.PseudoHeaderChecksum(header.UDPProtocolNumber, from, to, uint16(udp))
		h = append(binary.BigEndian.AppendUint16(h, uint16(header.IPv6ProtocolNumber)), make([]byte, header.IPv6MinimumSize)...)
		header.IPv6(h[link.EthernetHeaderLen:]).Encode(&header.IPv6Fields{PayloadLength: uint16(udp),
			TransportProtocol: header.UDPProtocolNumber, HopLimit: 64, SrcAddr: from, DstAddr: to})
	} else {
		from, to := tcpip.AddrFrom4([4]byte{10, 0, 0, 1}), tcpip.AddrFrom4([4]byte{10, 0, 0, 2})
		sum = header.PseudoHeaderChecksum(header.UDPProtocolNumber, from, to, uint16(udp))
		h = append(binary.BigEndian.AppendUint16(h, uint16(header.IPv4ProtocolNumber)), make([]byte, header.IPv4MinimumSize)...)
		ip := header.IPv4(h[link.EthernetHeaderLen:])
		ip.Encode(&header.IPv4Fields{TotalLength: uint16(header.IPv4MinimumSize + udp), ID: 1,
			Flags: header.IPv4FlagDontFragment, TTL: 64, Protocol: uint8(header.UDPProtocolNumber), SrcAddr: from, DstAddr: to})
		ip.SetChecksum(^ip.CalculateChecksum())
	}
	at := len(h)
	h = append(h, make([]byte, header.UDPMinimumSize)...)
	header.UDP(h[at:]).Encode(&header.UDPFields{SrcPort: 0xc000, DstPort: rocePort, Length: uint16(udp), Checksum: sum})
	f := link.Frame{Data: h, Segmentation: link.UDP, SegmentSize: uint16(size), HeaderLen: uint16(len(h)),
		NeedsChecksum: true, ChecksumStart: uint16(at), ChecksumOffset: 6}
	for i := range n {
		f.Data = append(f.Data, byte(i*7))
	}
	return f
}

// udp returns the UDP header and the bytes after it, if f is a frame built by Superframe, or a
// segment of one.
func udp(f *link.Frame) (b []byte, ok bool) {
	if len(f.Data) < link.EthernetHeaderLen+header.IPv6MinimumSize+header.UDPMinimumSize {
		return nil, false
	}
	b = f.Data[link.EthernetHeaderLen:]
	switch {
	case b[0] == 0x45 && b[9] == uint8(header.UDPProtocolNumber):
		b = b[header.IPv4MinimumSize:]
	case b[0]>>4 == 6 && b[6] == uint8(header.UDPProtocolNumber):
		b = b[header.IPv6MinimumSize:]
	default:
		return nil, false
	}
	return b, header.UDP(b).DestinationPort() == rocePort
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
func Queues(t *testing.T, a, b pollingLink) {
	t.Helper()
	const flows, each = 16, 100
	var mu sync.Mutex
	var next [flows]int
	total, all := 0, make(chan struct{})
	var inside atomic.Int32
	var once sync.Once
	parallel := make(chan struct{}) // closed once two calls overlap
	b.Attach(func(frames []link.Frame) {
		for _, f := range frames {
			b, ours := udp(&f)
			if !ours {
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
			flow, n := b[1]%flows, int(binary.BigEndian.Uint16(b[header.UDPMinimumSize:]))
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
	f := Superframe(b.MAC(), a.MAC(), false, 2, 1040)
	header, _ := udp(&f)
	for n := range uint16(each) {
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

// TCPSuperframe returns a TCP segment of n bytes with FIN, PSH and CWR set, to be cut into segments
// of size bytes.
func TCPSuperframe(n, size int) link.Frame {
	d := make([]byte, 14+40+32+n)
	header.Ethernet(d).Encode(&header.EthernetFields{
		SrcAddr: "\x02\x00\x00\x00\x00\x01", DstAddr: "\x02\x00\x00\x00\x00\x02", Type: header.IPv6ProtocolNumber})
	src, dst := tcpip.AddrFrom16([16]byte{0xfe, 0x80, 15: 1}), tcpip.AddrFrom16([16]byte{0xfe, 0x80, 15: 2})
	header.IPv6(d[14:]).Encode(&header.IPv6Fields{
		PayloadLength: uint16(32 + n), TransportProtocol: 6, HopLimit: 64, SrcAddr: src, DstAddr: dst})
	h := header.TCP(d[54:])
	h.Encode(&header.TCPFields{SrcPort: 1, DstPort: 2, SeqNum: 0xffffff00, DataOffset: 32,
		Flags: header.TCPFlagAck | header.TCPFlagFin | header.TCPFlagPsh | 0x80})
	h.SetChecksum(header.PseudoHeaderChecksum(6, src, dst, uint16(32+n)))
	for i := range n {
		d[86+i] = byte(i)
	}
	return link.Frame{Data: d, Segmentation: link.TCPv6, SegmentSize: uint16(size), HeaderLen: 86,
		NeedsChecksum: true, ChecksumStart: 54, ChecksumOffset: 16}
}
