package trace

import (
	"encoding/binary"
	"net/netip"

	"github.com/softrnic/softrnic/link/checksum"
)

// A verdict is the result of checking a TCP or UDP checksum.
type verdict uint8

const (
	absent    verdict = iota // UDP: the field is zero
	right                    // it matches the packet
	offloaded                // it covers only the pseudo header: checksum offload (CHECKSUM_PARTIAL)
	damaged
)

// transportChecksum checks the checksum of a TCP segment or UDP datagram. Its field is at offset at
// (RFC 9293 §3.1, RFC 768, RFC 8200 §8.1).
func transportChecksum(src, dst netip.Addr, proto uint8, b []byte, at int) verdict {
	field := binary.BigEndian.Uint16(b[at:])
	if field == 0 && proto == protoUDP {
		return absent
	}
	s, d := src.As16(), dst.As16() // the prefix of an IPv4 address adds 0xffff, which is 0 in this sum
	pseudo := checksum.Sum(s[:], checksum.Sum(d[:], checksum.Sum([]byte{0, proto}, uint16(len(b)))))
	switch {
	case checksum.Sum(b, pseudo) == 0xffff:
		return right
	case field == pseudo:
		return offloaded
	}
	return damaged
}
