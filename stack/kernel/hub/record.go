package hub

import (
	"encoding/binary"
	"net/netip"

	"github.com/softrnic/softrnic/stack"
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
//	40  number of the QPNs' range of the client that sent it, for stack.Datagram.SrcQPNs; 0: none, 2 bytes
const recordLen = 42

// Arrival is what a client gets: a datagram, or several of one size in a row. Payload is valid during the call that it is handed to.
type Arrival struct {
	Payload           []byte
	From              netip.AddrPort
	Dst               netip.Addr
	TrafficClass, TTL uint8
	Segment           int         // payload bytes of each datagram but the last; 0 if there is one only
	ID                uint16      // IPv4 identification of the first datagram, as it is guessed
	SrcQPNs           stack.Range // of the client that sent it; the zero Range if it was none
}

func putRecord(b *[recordLen]byte, a *Arrival) {
	s, d := a.From.Addr().As16(), a.Dst.As16()
	copy(b[:], s[:])
	copy(b[16:], d[:])
	binary.BigEndian.PutUint16(b[32:], a.From.Port())
	b[34], b[35] = a.TrafficClass, a.TTL
	binary.BigEndian.PutUint16(b[36:], uint16(a.Segment))
	binary.BigEndian.PutUint16(b[38:], a.ID)
	binary.BigEndian.PutUint16(b[40:], uint16(a.SrcQPNs.Base>>qpnBits))
}

// readRecord takes any bytes. The payload is empty if they are too few.
func readRecord(b []byte) (a Arrival) {
	if len(b) < recordLen {
		return a
	}
	a.From = netip.AddrPortFrom(netip.AddrFrom16([16]byte(b)).Unmap(), binary.BigEndian.Uint16(b[32:]))
	a.Dst = netip.AddrFrom16([16]byte(b[16:])).Unmap()
	a.TrafficClass, a.TTL = b[34], b[35]
	a.Segment = int(binary.BigEndian.Uint16(b[36:]))
	a.ID = binary.BigEndian.Uint16(b[38:])
	if slot := binary.BigEndian.Uint16(b[40:]); slot != 0 && slot < qpnSlots {
		a.SrcQPNs = numbers(uint32(slot), 0).QPNs
	}
	a.Payload = b[recordLen:]
	return a
}
