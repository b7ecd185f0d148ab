package link

import (
	"encoding/binary"

	"github.com/softrnic/softrnic/link/checksum"
)

// transportChecksum returns the checksum of a TCP or UDP segment whose checksum field is zero, sent
// between the addresses in addrs (RFC 9293 §3.1, RFC 768, RFC 8200 §8.1). It is never 0, which in
// UDP means no checksum.
func transportChecksum(addrs []byte, proto uint8, segment []byte) uint16 {
	sum := checksum.Sum(addrs, uint16(proto))
	var length [4]byte
	binary.BigEndian.PutUint32(length[:], uint32(len(segment)))
	sum = ^checksum.Sum(segment, checksum.Sum(length[:], sum))
	if sum == 0 {
		return 0xffff
	}
	return sum
}
