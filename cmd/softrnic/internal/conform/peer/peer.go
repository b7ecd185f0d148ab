// Package peer is a RoCEv2 peer on a link that sends and receives raw packets. It has no queue
// pairs, no retransmissions and no state except an ARP entry.
package peer

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/checksum"
	"github.com/softrnic/softrnic/rdmatransport/wire"
)

// Lengths and offsets of a datagram's headers in bytes: Ethernet, IPv4 without options, UDP.
const (
	etherLen = 14
	ipLen    = 20
	udpLen   = 8
	// HeaderLen is the length of the IPv4 and UDP headers.
	HeaderLen = ipLen + udpLen

	etherIPv4, etherARP = 0x0800, 0x0806
	protoUDP            = 17
	// Port is RoCEv2's UDP port.
	Port = 4791
	// sourcePort is the peer's UDP source port.
	sourcePort = 0xd123
)

// Datagram is a RoCEv2 packet as it is on the wire, from the IPv4 header on.
type Datagram []byte

// Header returns the IPv4 and UDP headers.
func (d Datagram) Header() []byte { return d[:HeaderLen] }

// Packet returns the bytes after the headers, from the BTH to the ICRC.
func (d Datagram) Packet() []byte { return d[HeaderLen:] }

// Seal computes the IPv4 checksum and the ICRC.
func (d Datagram) Seal() {
	checksum.PutIPv4(d[:ipLen])
	wire.PutICRC(d.Header(), d.Packet())
}

// Peer is an address on a link.
type Peer struct {
	Addr, Target netip.Addr // IPv4

	link link.Link
	cut  link.Cutter

	mu      sync.Mutex
	target  [6]byte
	found   chan struct{} // closed when target is known
	arrived chan struct{} // has a value after queue has grown
	queue   []Datagram
	id      uint16 // the last IPv4 identification
	seen    func(sent bool, d Datagram)
}

// New returns a peer at addr on l that sends to target. Both are IPv4 addresses of one subnet. It
// owns l. seen, unless nil, is called with each sent or received RoCE packet, one at a time.
func New(l link.Link, addr, target netip.Addr, seen func(sent bool, d Datagram)) (*Peer, error) {
	if !addr.Is4() || !target.Is4() {
		return nil, fmt.Errorf("addresses %v and %v: must be IPv4 addresses", addr, target)
	}
	p := &Peer{Addr: addr, Target: target, link: l, found: make(chan struct{}), arrived: make(chan struct{}, 1), seen: seen}
	l.Attach(p.receive)
	return p, nil
}

// Close closes the link.
func (p *Peer) Close() error { return p.link.Close() }

// Find resolves the target's Ethernet address. It repeats the request for up to wait.
func (p *Peer) Find(wait time.Duration) error {
	for end := time.Now().Add(wait); ; {
		if err := p.write(p.arp(1, [6]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, p.Target)); err != nil {
			return err
		}
		select {
		case <-p.found:
			return nil
		case <-time.After(100 * time.Millisecond):
			if time.Now().After(end) {
				return fmt.Errorf("%v does not answer ARP requests of %v on %s", p.Target, p.Addr, p.link.Name())
			}
		}
	}
}

// arp returns an ARP request or reply (RFC 826).
func (p *Peer) arp(op byte, to [6]byte, addr netip.Addr) []byte {
	b := make([]byte, etherLen+28)
	copy(b, to[:])
	copy(b[6:], p.link.MAC())
	binary.BigEndian.PutUint16(b[12:], etherARP)
	a := b[etherLen:]
	copy(a, []byte{0, 1, 8, 0, 6, 4, 0, op})
	copy(a[8:], p.link.MAC())
	copy(a[14:], p.Addr.AsSlice())
	if op == 2 {
		copy(a[18:], to[:])
	}
	copy(a[24:], addr.AsSlice())
	return b
}

func (p *Peer) write(frames ...[]byte) error {
	batch := make([]link.Frame, len(frames))
	for i, b := range frames {
		batch[i].Data = b
	}
	n, err := p.link.Write(batch)
	if err == nil && n < len(batch) {
		err = errors.New("the link took less than all frames")
	}
	return err
}

// Make returns a complete datagram with a packet: DF set, TTL 64.
func (p *Peer) Make(pkt *wire.Packet) Datagram {
	d := make(Datagram, HeaderLen+pkt.Size())
	p.mu.Lock()
	p.id++
	id := p.id
	p.mu.Unlock()
	d[0], d[6], d[8], d[9] = 0x45, 0x40, 64, protoUDP
	binary.BigEndian.PutUint16(d[2:], uint16(len(d)))
	binary.BigEndian.PutUint16(d[4:], id)
	copy(d[12:], p.Addr.AsSlice())
	copy(d[16:], p.Target.AsSlice())
	binary.BigEndian.PutUint16(d[20:], sourcePort)
	binary.BigEndian.PutUint16(d[22:], Port)
	binary.BigEndian.PutUint16(d[24:], uint16(len(d)-ipLen))
	pkt.Encode(d.Header(), d.Packet())
	checksum.PutIPv4(d[:ipLen])
	return d
}

// Send sends datagrams unchanged and in order.
func (p *Peer) Send(ds ...Datagram) error {
	frames := make([][]byte, len(ds))
	p.mu.Lock()
	for i, d := range ds {
		f := make([]byte, etherLen+len(d))
		copy(f, p.target[:])
		copy(f[6:], p.link.MAC())
		binary.BigEndian.PutUint16(f[12:], etherIPv4)
		copy(f[etherLen:], d)
		frames[i] = f
		if p.seen != nil {
			p.seen(true, d)
		}
	}
	p.mu.Unlock()
	return p.write(frames...)
}

// Next returns the next datagram of the target, if one is received in time.
func (p *Peer) Next(wait time.Duration) (Datagram, bool) {
	late := time.NewTimer(wait)
	defer late.Stop()
	for {
		p.mu.Lock()
		if len(p.queue) > 0 {
			d := p.queue[0]
			p.queue = p.queue[1:]
			p.mu.Unlock()
			return d, true
		}
		p.mu.Unlock()
		select {
		case <-p.arrived:
		case <-late.C:
			return nil, false
		}
	}
}

// receive returns the link's receiver. With several queues it is called concurrently.
func (p *Peer) receive(frames []link.Frame) {
	var replies [][]byte
	p.mu.Lock()
	for i := range frames {
		for b := range p.cut.Packets(&frames[i]) {
			if r := p.frame(b); r != nil {
				replies = append(replies, r)
			}
		}
	}
	p.mu.Unlock()
	if len(replies) > 0 {
		_ = p.write(replies...) // a lost reply is like any lost frame
	}
}

// frame handles a frame and returns an ARP reply if it is an ARP request.
func (p *Peer) frame(b []byte) (reply []byte) {
	if len(b) < etherLen+28 {
		return nil
	}
	body := b[etherLen:]
	switch binary.BigEndian.Uint16(b[12:]) {
	case etherARP:
		p.neighbour(body)
		if body[7] == 1 && [4]byte(body[24:28]) == p.Addr.As4() {
			return p.arp(2, [6]byte(body[8:14]), netip.AddrFrom4([4]byte(body[14:18])))
		}
	case etherIPv4:
		n := int(binary.BigEndian.Uint16(body[2:]))
		ours := body[0] == 0x45 && body[9] == protoUDP && [4]byte(body[12:16]) == p.Target.As4() && [4]byte(body[16:20]) == p.Addr.As4()
		if !ours || n > len(body) || n < HeaderLen+wire.BTHLen+wire.ICRCLen || binary.BigEndian.Uint16(body[22:]) != Port {
			return nil
		}
		d := append(Datagram(nil), body[:n]...)
		if p.seen != nil {
			p.seen(false, d)
		}
		p.deliver(d)
	}
	return nil
}

// Deliver makes Next return d as if the target had sent it. Tests use it to make a case fail.
func (p *Peer) Deliver(d Datagram) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.deliver(d)
}

func (p *Peer) deliver(d Datagram) {
	p.queue = append(p.queue, d)
	select {
	case p.arrived <- struct{}{}:
	default:
	}
}

// neighbour learns the target's Ethernet address.
func (p *Peer) neighbour(a []byte) {
	if [4]byte(a[14:18]) != p.Target.As4() {
		return
	}
	p.target = [6]byte(a[8:14])
	select {
	case <-p.found:
	default:
		close(p.found)
	}
}
