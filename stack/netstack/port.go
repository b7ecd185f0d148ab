package netstack

import (
	"encoding/binary"
	"net/netip"
	"sync"
	"sync/atomic"

	"gvisor.dev/gvisor/pkg/tcpip/header"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/stack"
)

// The way of a datagram in: link goroutine → port.handle → parseDatagram → the receiver, before the next frame is
// looked at. Of the frames that handle does not take, gVisor does what a host does.

// port is an interface's datagram port.
type port struct {
	nic      *Interface
	counters counters

	lanes [lanes]lane
}

// lanes is how many flows can be received at the same time. There are more of them than links have queues, so that two
// queues seldom need the same lane.
const lanes = 16

// lane receives the flows of a UDP source port, with 15 others of them.
type lane struct {
	// mu is held while the receiver runs: it orders what the link and the loopback bring, and lets Receive wait.
	mu sync.Mutex
	fn func(*stack.Datagram)
	d  stack.Datagram // the one that is passed, reused
	_  [64]byte       // keeps lanes, which different processors use, in different cache lines
}

// lane is that of the flow of a frame, if it is RoCE.
func (p *port) lane(b []byte) *lane {
	at := ethLen + ipv4Len
	if len(b) > ethLen && b[ethLen]>>4 == 6 {
		if at = ethLen + ipv6Len; b[13] == stack.RoCEv1Type&0xff {
			at = ethLen + grhLen + 6 // the end of the destination QP
		}
	}
	if len(b) < at+2 {
		return &p.lanes[0]
	}
	return &p.lanes[(b[at]^b[at+1])%lanes]
}

var _ stack.DatagramPort = (*port)(nil)

// traffic is what has to be added to, or subtracted from, the counters of frames and bytes to get those of packets on the
// link. Most frames are one packet, which needs no correction.
type traffic struct {
	loopedFrames, loopedBytes atomic.Uint64
	morePackets, moreBytes    atomic.Uint64 // packets in superframes beyond the first, and their headers
	multicast                 atomic.Uint64
}

// add counts frames that went over the loopback, or the corrections for others.
func (t *traffic) add(looped bool, frames, bytes uint64, more *stack.Traffic) {
	if looped {
		t.loopedFrames.Add(frames)
		t.loopedBytes.Add(bytes)
		return
	}
	if more.Packets > 0 {
		t.morePackets.Add(more.Packets)
		t.moreBytes.Add(more.Bytes)
	}
	if more.Multicast > 0 {
		t.multicast.Add(more.Multicast)
	}
}

// countCut adds to t what a frame that is cut into n packets counts beyond one packet. The frame has its headers, of so
// many bytes, only once.
func countCut(t *stack.Traffic, frame []byte, n, header int) {
	t.Packets += uint64(n - 1)
	t.Bytes += uint64((n - 1) * header)
	if frame[0]&1 != 0 {
		t.Multicast += uint64(n)
	}
}

// of returns the traffic, given the counters of frames and bytes. Those are read last, so that they include everything
// that is taken from them.
func (t *traffic) of(frames, bytes *atomic.Uint64) stack.Traffic {
	s := stack.Traffic{
		Packets: t.morePackets.Load() - t.loopedFrames.Load(), Multicast: t.multicast.Load(), Bytes: t.moreBytes.Load() - t.loopedBytes.Load()}
	s.Packets += frames.Load()
	s.Bytes += bytes.Load()
	return s
}

type counters struct {
	txFrames, txDatagrams, txBytes, txErrors, txNoRoute atomic.Uint64
	rxFrames, rxBytes, rxMalformed, rxDropped           atomic.Uint64
	sent, received                                      traffic
}

func (c *counters) snapshot() stack.Counters {
	return stack.Counters{
		TxFrames: c.txFrames.Load(), TxDatagrams: c.txDatagrams.Load(), TxBytes: c.txBytes.Load(),
		TxErrors: c.txErrors.Load(), TxNoRoute: c.txNoRoute.Load(),
		RxFrames: c.rxFrames.Load(), RxBytes: c.rxBytes.Load(),
		RxMalformed: c.rxMalformed.Load(), RxDropped: c.rxDropped.Load(),
		Sent: c.sent.of(&c.txFrames, &c.txBytes), Received: c.received.of(&c.rxFrames, &c.rxBytes),
	}
}

// Receive implements DatagramPort. The receiver must not call it.
func (p *port) Receive(fn func(*stack.Datagram)) {
	for i := range p.lanes {
		l := &p.lanes[i]
		l.mu.Lock()
		l.fn = fn
		l.mu.Unlock()
	}
}

func (p *port) close() { p.Receive(nil) }

// handle is the link endpoint's frame handler; it returns false for what is gVisor's. The frame is addressed to the
// interface's MAC, or to a group.
func (p *port) handle(f *link.Frame) bool {
	return p.receive(f, false)
}

// handleLoopback is the receiver of the interface's loopback.
func (p *port) handleLoopback(frames []link.Frame) {
	for i := range frames {
		p.receive(&frames[i], true)
	}
}

func (p *port) receive(f *link.Frame, looped bool) bool {
	l := p.lane(f.Data)
	l.mu.Lock()
	defer l.mu.Unlock()
	d := &l.d
	switch parseDatagram(d, f) {
	case notRoCE:
		return false
	case malformed:
		p.counters.rxMalformed.Add(1)
		return true
	}
	if f.Data[0]&1 == 0 && !p.nic.has(d.Dst) || f.Data[0]&1 != 0 && !p.nic.joined(d.Dst) {
		return false
	}
	// A frame that arrives with the interface's own address as its source is forged, or went round a loop in the network.
	if !looped && p.nic.has(d.Src) {
		p.counters.rxMalformed.Add(1)
		return true
	}
	if l.fn == nil {
		p.counters.rxDropped.Add(1)
		return true
	}
	d.Looped = looped
	p.counters.rxFrames.Add(1)
	p.counters.rxBytes.Add(uint64(f.Len()))
	if looped || d.SegmentSize < len(d.Payload) || f.Data[0]&1 != 0 {
		var more stack.Traffic
		countCut(&more, f.Data, (len(d.Payload)+d.SegmentSize-1)/d.SegmentSize, ethLen+len(d.Header))
		p.counters.received.add(looped, 1, uint64(f.Len()), &more)
	}
	l.fn(d)
	return true
}

type verdict uint8

const (
	notRoCE   verdict = iota // not a whole UDP datagram to port 4791 directly behind an IP header without options
	malformed                // that, but with lengths, a checksum or a source that cannot be
	whole
)

const (
	ethLen  = link.EthernetHeaderLen
	ipv4Len = header.IPv4MinimumSize
	ipv6Len = header.IPv6MinimumSize
	udpLen  = header.UDPMinimumSize
)

// parse makes d the datagram in f; it then points into f. The UDP checksum is not verified: the ICRC covers what it
// does, and it may be partial.
func parseDatagram(d *stack.Datagram, f *link.Frame) verdict {
	*d = stack.Datagram{Polled: f.Polled, TCI: f.TCI, NoICRC: f.NoICRC, InPlace: len(f.More) > 0}
	b := f.Data
	if len(b) < ethLen {
		return notRoCE
	}
	var ipLen, total int
	ip := b[ethLen:]
	switch binary.BigEndian.Uint16(b[12:]) {
	case uint16(header.IPv4ProtocolNumber):
		ipLen = ipv4Len
		const fragment = 0x3fff // more fragments, offset
		if len(ip) < ipv4Len+udpLen || ip[0] != 4<<4|ipv4Len/4 || ip[9] != uint8(header.UDPProtocolNumber) ||
			binary.BigEndian.Uint16(ip[6:])&fragment != 0 || binary.BigEndian.Uint16(ip[ipv4Len+2:]) != stack.RoCEPort {
			return notRoCE
		}
		total = int(binary.BigEndian.Uint16(ip[2:]))
		if !header.IPv4(ip).IsChecksumValid() {
			return malformed
		}
		d.Src, d.Dst = netip.AddrFrom4([4]byte(ip[12:])), netip.AddrFrom4([4]byte(ip[16:]))
		d.TrafficClass, d.HopLimit = ip[1], ip[8]
	case uint16(header.IPv6ProtocolNumber):
		ipLen = ipv6Len
		if len(ip) < ipv6Len+udpLen || ip[0]>>4 != 6 || ip[6] != uint8(header.UDPProtocolNumber) ||
			binary.BigEndian.Uint16(ip[ipv6Len+2:]) != stack.RoCEPort {
			return notRoCE
		}
		total = ipv6Len + int(binary.BigEndian.Uint16(ip[4:]))
		d.Src, d.Dst = netip.AddrFrom16([16]byte(ip[8:])), netip.AddrFrom16([16]byte(ip[24:]))
		d.TrafficClass, d.HopLimit = uint8(binary.BigEndian.Uint16(ip)>>4), ip[7]
	case stack.RoCEv1Type:
		if f.NoICRC {
			return malformed
		}
		return parseV1(d, f)
	default:
		return notRoCE
	}
	// Bytes after the packet are Ethernet padding. The UDP length must be the IP packet's: a shorter one would leave
	// bytes that no checksum covers.
	headers := ipLen + udpLen
	rest := ip[headers:]
	if d.InPlace {
		if len(rest) > 0 {
			return malformed
		}
		rest = f.More[0]
	}
	if total > headers+len(rest) || total <= headers || int(binary.BigEndian.Uint16(ip[ipLen+4:])) != total-ipLen {
		return malformed
	}
	if !isHostAddr(d.Src) || d.Src.IsLoopback() || d.Src.Is4In6() {
		return malformed
	}
	d.SrcPort = binary.BigEndian.Uint16(ip[ipLen:])
	d.Header = ip[:headers:headers]
	d.Payload = rest[: total-headers : total-headers]
	d.SegmentSize = len(d.Payload)
	switch f.Segmentation {
	case link.NoSegmentation:
	case link.UDP:
		if f.SegmentSize == 0 {
			return malformed
		}
		d.SegmentSize = min(int(f.SegmentSize), len(d.Payload))
	default:
		return malformed
	}
	return whole
}
