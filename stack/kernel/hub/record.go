package hub

import (
	"encoding/binary"
	"net/netip"

	"github.com/softrnic/softrnic/stack/kernel/internal/inlet"
)

// A datagram, or several of one size in a row, stands in the ring as a frame of package ring: this header, and the payload.
// Numbers are in network byte order.
//
//	 0  source address, IPv4 mapped       16 bytes
//	16  destination address, IPv4 mapped  16 bytes
//	32  source port                       2 bytes
//	34  traffic class                     1 byte
//	35  TTL                               1 byte
//	36  payload bytes of each datagram but the last; 0 if there is one, 2 bytes
//	38  IPv4 identification of the first, as it is guessed, 2 bytes
const recordLen = 40

func putRecord(b *[recordLen]byte, a *inlet.Arrival, dst netip.Addr, id uint16) {
	s, d := a.From.Addr().As16(), dst.As16()
	copy(b[:], s[:])
	copy(b[16:], d[:])
	binary.BigEndian.PutUint16(b[32:], a.From.Port())
	b[34], b[35] = a.TrafficClass, a.TTL
	binary.BigEndian.PutUint16(b[36:], uint16(a.Segment))
	binary.BigEndian.PutUint16(b[38:], id)
}

// readRecord takes any bytes. The payload is empty if they are too few.
func readRecord(b []byte) (a inlet.Arrival, dst netip.Addr, id uint16) {
	if len(b) < recordLen {
		return a, dst, 0
	}
	a.From = netip.AddrPortFrom(netip.AddrFrom16([16]byte(b)).Unmap(), binary.BigEndian.Uint16(b[32:]))
	a.TrafficClass, a.TTL = b[34], b[35]
	a.Segment = int(binary.BigEndian.Uint16(b[36:]))
	a.Payload = b[recordLen:]
	return a, netip.AddrFrom16([16]byte(b[16:])).Unmap(), binary.BigEndian.Uint16(b[38:])
}
