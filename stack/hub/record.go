package hub

import (
	"encoding/binary"
	"math/bits"
	"net/netip"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/stack"
)

// A ring of package ring contains a datagram, or several consecutive ones of equal size, as a
// frame: this header, followed by the payload. Numbers are in network byte order.
//
//	 0  source address, IPv4 mapped       16 bytes
//	16  destination address, IPv4 mapped  16 bytes
//	32  source port                       2 bytes
//	34  traffic class                     1 byte
//	35  TTL                               1 byte
//	36  payload bytes of each datagram but the last, 0 for a single one, 2 bytes
//	38  IPv4 identification of the first, guessed, 2 bytes
//	40  first QPN slot of the sending client, for stack.Datagram.SrcQPNs, 0: none, 1 byte
//	41  number of slots, as a power of two, 1 byte
//
// In a ring between two clients the first 40 bytes are the same. The last two are 0, because the
// sender is known.
const recordLen = 42

// Arrival is a received datagram, or several consecutive ones of equal size. Payload is valid
// during the call that it is passed to.
type Arrival struct {
	Payload           []byte
	From              netip.AddrPort
	Dst               netip.Addr
	TrafficClass, TTL uint8
	Segment           int         // payload bytes of each datagram but the last; 0 for a single one
	ID                uint16      // IPv4 identification of the first datagram, guessed
	SrcQPNs           stack.Range // of the sending client; the zero Range if there is none
	NoICRC, InPlace   bool        // as in stack.Datagram
}

func putRecord(b []byte, a *Arrival) {
	b = b[:recordLen]
	s, d := a.From.Addr().As16(), a.Dst.As16()
	copy(b, s[:])
	copy(b[16:], d[:])
	binary.BigEndian.PutUint16(b[32:], a.From.Port())
	b[34], b[35] = a.TrafficClass, a.TTL
	binary.BigEndian.PutUint16(b[36:], uint16(a.Segment))
	binary.BigEndian.PutUint16(b[38:], a.ID)
	b[40], b[41] = byte(a.SrcQPNs.Base>>slotBits), 0
	if b[40] != 0 {
		b[41] = byte(bits.Len32(a.SrcQPNs.Mask) - slotBits)
	}
}

// arrivalOf decodes a frame of a ring.
func arrivalOf(f *link.Frame) (a Arrival) {
	a = readRecord(f.Data)
	if len(f.More) > 0 && len(f.Data) == recordLen {
		a.Payload, a.InPlace = f.More[0], true
	} else if len(f.More) > 0 {
		a.Payload = nil // malformed
	}
	a.NoICRC = f.NoICRC
	return a
}

// readRecord accepts any bytes. If there are too few, the payload is empty.
func readRecord(b []byte) (a Arrival) {
	if len(b) < recordLen {
		return a
	}
	a.From = netip.AddrPortFrom(netip.AddrFrom16([16]byte(b)).Unmap(), binary.BigEndian.Uint16(b[32:]))
	a.Dst = netip.AddrFrom16([16]byte(b[16:])).Unmap()
	a.TrafficClass, a.TTL = b[34], b[35]
	a.Segment = int(binary.BigEndian.Uint16(b[36:]))
	a.ID = binary.BigEndian.Uint16(b[38:])
	if b[40] != 0 {
		a.SrcQPNs = qpns(uint32(b[40]), min(b[41], maxLeaseBits))
	}
	a.Payload = b[recordLen:]
	return a
}

// RecordLen is the length of a record's header.
const RecordLen = recordLen

// Writer writes records into the rings of other clients. Only one goroutine at a time may use it.
type Writer struct {
	record [recordLen]byte
	more   [1][]byte
	frames [1]link.Frame
}

// Commit sends datagrams to another client. They were written into room of Route.Reserve, after
// RecordLen bytes, and have no ICRC. n is their length, and a their header. If n is 0, Commit
// cancels the reservation.
func (w *Writer) Commit(room *link.Reservation, a *Arrival, n int) {
	w.frames[0] = link.Frame{}
	if n > 0 {
		putRecord(room.Data, a)
		w.frames[0].HeaderLen, w.frames[0].NoICRC = recordLen, true
		n += recordLen
	}
	room.Owner.Commit(room.At, &w.frames[0], n)
}
