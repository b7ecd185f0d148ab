package wireguard

import (
	"encoding/binary"
	"net/netip"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/checksum"
)

// A tunnel of WireGuard carries IP packets, so no peer answers ARP or neighbour solicitations. The
// link answers them itself, for the addresses that peers have. Since an answer must not be received
// within Write, a goroutine passes answers on.

// maxAnswers is the number of answers that may wait. Further ones are lost, and asked for again.
const maxAnswers = 64

// route is what happens to a frame in Write.
type route uint8

const (
	tunnel   route = iota // an IP packet for a peer
	consumed              // a solicitation, or a message that only concerns an Ethernet
	nobody                // no peer has the destination, or the frame is no IP packet
)

// classify returns what happens to a frame. A solicitation is answered. headers has the frame's
// first bytes.
func (l *Link) classify(f *link.Frame) route {
	b := f.Data
	var headers [link.EthernetHeaderLen + ipv6Len + neighbourLen]byte
	if len(b) < len(headers) && len(f.More) > 0 { // gVisor's headers and payload are in several pieces
		n := copy(headers[:], b)
		for _, m := range f.More {
			n += copy(headers[n:], m)
		}
		b = headers[:n]
	}
	var dst netip.Addr
	switch ip := b[link.EthernetHeaderLen:]; binary.BigEndian.Uint16(b[12:]) {
	case typeARP:
		l.answerARP(ip)
		return consumed
	case typeIPv4:
		if len(ip) < ipv4Len {
			return nobody
		}
		dst = netip.AddrFrom4([4]byte(ip[16:]))
	case typeIPv6:
		if len(ip) < ipv6Len {
			return nobody
		}
		if ip[6] == icmpv6 && len(ip) > ipv6Len && (ip[ipv6Len] == solicitation || ip[ipv6Len] == advertisement) {
			l.answerSolicitation(ip)
			return consumed
		}
		dst = netip.AddrFrom16([16]byte(ip[24:]))
	default:
		return nobody
	}
	if dst.IsLinkLocalMulticast() {
		return consumed // IGMP and MLD, for switches
	}
	if l.routes.find(dst) == nil {
		return nobody
	}
	return tunnel
}

const (
	arpLen                      = 28
	arpRequest, arpReply        = 1, 2
	icmpv6                      = 58
	solicitation, advertisement = 135, 136
	neighbourLen                = 24 // of a solicitation or advertisement without options
	targetLinkLayerAddress      = 2
)

// answerARP answers a request (RFC 826) for an address of a peer.
func (l *Link) answerARP(request []byte) {
	if len(request) < arpLen || binary.BigEndian.Uint16(request[2:]) != typeIPv4 || binary.BigEndian.Uint16(request[6:]) != arpRequest {
		return
	}
	own, target := netip.AddrFrom4([4]byte(request[14:])), netip.AddrFrom4([4]byte(request[24:]))
	p := l.routes.find(target)
	if p == nil || own == target { // an announcement
		return
	}
	answer := l.answer(p, typeARP, arpLen)
	arp := answer[link.EthernetHeaderLen:]
	copy(arp, request[:8])
	binary.BigEndian.PutUint16(arp[6:], arpReply)
	copy(arp[8:], p.mac[:])
	copy(arp[14:], request[24:28])
	copy(arp[18:], request[8:18])
	l.send(answer)
}

// answerSolicitation answers a neighbour solicitation (RFC 4861 §4.3) for an address of a peer.
func (l *Link) answerSolicitation(request []byte) {
	if len(request) < ipv6Len+neighbourLen || request[ipv6Len] != solicitation {
		return
	}
	own, target := netip.AddrFrom16([16]byte(request[8:])), netip.AddrFrom16([16]byte(request[ipv6Len+8:]))
	p := l.routes.find(target)
	if p == nil || own == target || own.IsUnspecified() { // duplicate address detection
		return
	}
	const length = neighbourLen + 8
	answer := l.answer(p, typeIPv6, ipv6Len+length)
	ip := answer[link.EthernetHeaderLen:]
	ip[0], ip[6], ip[7] = 6<<4, icmpv6, 255
	binary.BigEndian.PutUint16(ip[4:], length)
	copy(ip[8:], target.AsSlice())
	copy(ip[24:], own.AsSlice())
	icmp := ip[ipv6Len:]
	icmp[0], icmp[4] = advertisement, 0x60 // solicited, override
	copy(icmp[8:], target.AsSlice())
	icmp[neighbourLen], icmp[neighbourLen+1] = targetLinkLayerAddress, 1
	copy(icmp[neighbourLen+2:], p.mac[:])
	sum := checksum.Sum(ip[8:ipv6Len], length+icmpv6)
	binary.BigEndian.PutUint16(icmp[2:], ^checksum.Sum(icmp, sum))
	l.send(answer)
}

// answer returns a frame from a peer with n bytes after the Ethernet header.
func (l *Link) answer(p *peer, etherType uint16, n int) []byte {
	b := make([]byte, link.EthernetHeaderLen+n)
	copy(b, l.mac[:])
	copy(b[6:], p.mac[:])
	binary.BigEndian.PutUint16(b[12:], etherType)
	return b
}

func (l *Link) send(answer []byte) {
	select {
	case l.answers <- answer:
	default:
	}
}

// passAnswers passes answers to the host until the link is closed.
func (l *Link) passAnswers() {
	defer l.answering.Done()
	for {
		select {
		case b := <-l.answers:
			if recv := l.recv.Load(); recv != nil {
				(*recv)([]link.Frame{{Data: b, ChecksumValid: true}})
			}
		case <-l.done:
			return
		}
	}
}
