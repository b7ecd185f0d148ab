package framed

import (
	"encoding/binary"
	"net/netip"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/checksum"
	"github.com/softrnic/softrnic/stack"
)

// Sizes, numbers and offsets of the headers (RFC 791, 8200, 768).
const (
	ethLen, ipv4Len, ipv6Len, udpLen = link.EthernetHeaderLen, 20, 40, 8
	maxHeaders                       = ethLen + ipv6Len + udpLen
	maxIPPacket                      = 65535
	etherTypeIPv4, etherTypeIPv6     = 0x0800, 0x86dd
	protoUDP                         = 17
)

// flow consists of the header fields that identify a path.
type flow struct {
	src, dst               netip.Addr
	srcPort                uint16
	trafficClass, hopLimit uint8
}

// flowOf reads an IP and UDP header, as [stack.Sender] returns them.
func flowOf(h []byte) (f flow) {
	if h[0]>>4 == 4 {
		f.src, f.dst = netip.AddrFrom4([4]byte(h[12:])), netip.AddrFrom4([4]byte(h[16:]))
		f.trafficClass, f.hopLimit = h[1], h[8]
	} else {
		f.src, f.dst = netip.AddrFrom16([16]byte(h[8:])), netip.AddrFrom16([16]byte(h[24:]))
		f.trafficClass, f.hopLimit = uint8(binary.BigEndian.Uint16(h)>>4), h[7]
	}
	f.srcPort = binary.BigEndian.Uint16(h[len(h)-udpLen:])
	return f
}

// buildFrame makes a frame of b. b begins with room for the Ethernet header, and an IP and a UDP
// header that end at offset headers. The payload follows: one datagram, or several of equal size.
// buildFrame fills in lengths and checksums.
func buildFrame(b []byte, headers, size int, src, dst []byte) link.Frame {
	ip := b[ethLen:headers]
	copy(b, dst)
	copy(b[6:], src)
	binary.BigEndian.PutUint16(b[12:], etherTypeIPv6)
	stack.PutLengths(ip, len(b)-headers)
	addrs, udp := ip[8:40], ip[len(ip)-udpLen:]
	if ip[0]>>4 == 4 {
		binary.BigEndian.PutUint16(b[12:], etherTypeIPv4)
		addrs = ip[12:20]
		checksum.PutIPv4(ip[:ipv4Len])
	}
	clear(udp[6:])
	binary.BigEndian.PutUint16(udp[6:], checksum.Sum(addrs, checksum.Sum(udp[4:6], protoUDP)))
	f := link.Frame{Data: b, NeedsChecksum: true, ChecksumStart: uint16(headers - udpLen), ChecksumOffset: 6}
	if len(b)-headers > size {
		f.Segmentation, f.SegmentSize, f.HeaderLen = link.UDP, uint16(size), uint16(headers)
	}
	return f
}

// parseFrame finds the IP and UDP headers and the payload of a frame that buildFrame made and the
// link may have corrupted. It returns false if no host would accept the frame as RoCE. The UDP
// checksum is not checked, because the ICRC is stronger.
func parseFrame(f *link.Frame) (header, payload []byte, ok bool) {
	b := f.Data
	if len(b) < ethLen+ipv4Len+udpLen {
		return nil, nil, false
	}
	ip := b[ethLen:]
	n := ipv4Len + udpLen
	switch etherType := binary.BigEndian.Uint16(b[12:]); {
	case etherType == etherTypeIPv4 && ip[0] == 4<<4|ipv4Len/4:
		if checksum.Sum(ip[:ipv4Len], 0) != 0xffff || ip[9] != protoUDP || int(binary.BigEndian.Uint16(ip[2:])) != len(ip) {
			return nil, nil, false
		}
	case etherType == etherTypeIPv6 && ip[0]>>4 == 6:
		if n = ipv6Len + udpLen; len(ip) < n || ip[6] != protoUDP || int(binary.BigEndian.Uint16(ip[4:])) != len(ip)-ipv6Len {
			return nil, nil, false
		}
	default:
		return nil, nil, false
	}
	header, payload = ip[:n:n], ip[n:]
	udp := header[n-udpLen:]
	ok = binary.BigEndian.Uint16(udp[2:]) == stack.RoCEPort &&
		int(binary.BigEndian.Uint16(udp[4:])) == udpLen+len(payload) && len(payload) > 0
	return header, payload, ok
}
