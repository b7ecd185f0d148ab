package netstack

import (
	"encoding/binary"
	"net/netip"
	"sync"

	"gvisor.dev/gvisor/pkg/tcpip/header"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/stack"
)

// A received datagram passes from the link's goroutine through port.handle and parseDatagram to the
// receiver, before the next frame is processed. gVisor processes the frames that handle does not
// accept.

// port is an interface's datagram port.
type port struct {
	nic *Interface

	lanes          [lanes]lane
	sent, received [lanes]tally // of the lanes' flows
}

// lanes is the number of flows that can be received concurrently. It is four times the number of a
// link's queues, so that two queues seldom need the same lane.
const lanes = 64

// lane receives the flows of some UDP source ports.
type lane struct {
	// mu is held while the receiver runs. Frames of the link and of the loopback thus arrive one at a
	// time, and Receive can wait for the receiver.
	mu sync.Mutex
	fn func(*stack.Datagram)
	d  stack.Datagram // passed to fn; reused
	_  [64]byte       // keeps lanes, which different processors use, in different cache lines
}

// laneOf returns the lane number of a frame's flow, if it is RoCE.
func laneOf(b []byte) int {
	at := ethLen + ipv4Len
	if len(b) > ethLen && b[ethLen]>>4 == 6 {
		if at = ethLen + ipv6Len; b[13] == stack.RoCEv1Type&0xff {
			at = ethLen + grhLen + 6 // the end of the destination QP
		}
	}
	if len(b) < at+2 {
		return 0
	}
	return int(b[at]^b[at+1]) % lanes
}

var _ stack.DatagramPort = (*port)(nil)

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

// handle is the link endpoint's frame handler. It returns false for frames that gVisor should
// process. The frame's destination is the interface's MAC, or a group.
func (p *port) handle(f *link.Frame) bool {
	return p.receive(f, false)
}

// handleLoopback receives from the interface's loopback.
func (p *port) handleLoopback(frames []link.Frame) {
	for i := range frames {
		p.receive(&frames[i], true)
	}
}

func (p *port) receive(f *link.Frame, looped bool) bool {
	flow := laneOf(f.Data)
	l, c := &p.lanes[flow], &p.received[flow]
	l.mu.Lock()
	defer l.mu.Unlock()
	d := &l.d
	switch parseDatagram(d, f) {
	case notRoCE:
		return false
	case malformed:
		c.add(&counts{bad: 1})
		return true
	}
	if f.Data[0]&1 == 0 && !p.nic.has(d.Dst) || f.Data[0]&1 != 0 && !p.nic.joined(d.Dst) {
		return false
	}
	// A frame from the link with the interface's own source address is forged, or came back by a loop
	// in the network.
	if !looped && p.nic.has(d.Src) {
		c.add(&counts{bad: 1})
		return true
	}
	if l.fn == nil {
		c.add(&counts{lost: 1})
		return true
	}
	d.Looped = looped
	if !looped && f.Data[6]&1 == 0 {
		d.Via = [6]byte(f.Data[6:])
	}
	n := 1
	if d.SegmentSize < len(d.Payload) {
		n = (len(d.Payload) + d.SegmentSize - 1) / d.SegmentSize
	}
	var k counts
	k.frame(f, n, ethLen+len(d.Header), looped)
	c.add(&k)
	l.fn(d)
	return true
}

type verdict uint8

const (
	// Anything but a whole UDP datagram to port 4791 directly after an IP header without options.
	notRoCE   verdict = iota
	malformed         // such a datagram, but with invalid lengths, checksum or source
	whole
)

const (
	ethLen  = link.EthernetHeaderLen
	ipv4Len = header.IPv4MinimumSize
	ipv6Len = header.IPv6MinimumSize
	udpLen  = header.UDPMinimumSize
)

// parseDatagram makes d the datagram in f; d then refers to f. The UDP checksum is not verified:
// the ICRC covers the same bytes, and the checksum may be partial.
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
	// Bytes after the packet are Ethernet padding. The UDP length must match the IP packet's length.
	// If it were shorter, some bytes would be covered by no checksum.
	headers := ipLen + udpLen
	rest := ip[headers:]
	if d.InPlace {
		if len(rest) > 0 {
			return malformed
		}
		rest = f.More[0]
	}
	if total <= headers || int(binary.BigEndian.Uint16(ip[ipLen+4:])) != total-ipLen {
		return malformed
	}
	if total > headers+len(rest) {
		if d.Truncated = len(rest) > 0 && !f.NoICRC && f.Segmentation == link.NoSegmentation; !d.Truncated || d.InPlace {
			return malformed
		}
		total = headers + len(rest)
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
