// Package mpa frames DDP segments on a TCP stream: marker PDU aligned framing, RFC 5044, with the
// connection set-up of RFC 6581. It is the lowest layer of iWARP, for programs that write or read
// such streams, such as readers of captures, fuzzers and test benches of hardware.
//
// Each side first sends a [Frame], the request or the reply. Then a [Sender] makes an FPDU of each
// ULPDU, and a [Receiver] finds the ULPDUs in a stream, which may come in pieces of any size.
// Fields are big-endian on the wire, except the CRC32C, which is little-endian. In this package
// they are values in host order. What parses accepts any bytes, and buffers at most one FPDU.
//
// The package has formats and framing only. Its user has the streams and timers, and decides which
// side may send. ULPDUs are the subject of package ddp.
package mpa

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Lengths in bytes, and numbers of READs.
const (
	HeaderLen      = 20                         // of a request or reply frame, without private data
	EnhancedLen    = 4                          // of [Enhanced], before the private data
	maxPrivateData = 512                        // [Enhanced] included, if there is one
	MaxFrameLen    = HeaderLen + maxPrivateData // of the longest request or reply
	MaxReadDepth   = 0x3ffe                     // largest IRD or ORD in a frame
	NoNegotiation  = 0x3fff                     // IRD or ORD: left to the ULP (RFC 6581 §9.1)
)

// Revisions of MPA. Only 2 has [Enhanced].
const (
	Revision1 = 1 // RFC 5044
	Revision2 = 2 // RFC 6581
)

const (
	requestKey = "MPA ID Req Frame"
	replyKey   = "MPA ID Rep Frame"
)

const (
	flagMarkers  = 0x80
	flagCRC      = 0x40
	flagRejected = 0x20
	flagEnhanced = 0x10
	flagReserved = 0x0f
)

// ErrShort means that a request or reply frame is incomplete: read more, then parse again.
var ErrShort = errors.New("mpa: frame is not complete")

// Frame is the MPA request or reply frame, which each side sends first (RFC 5044 §7.1.1, RFC 6581
// §6).
//
//	bytes  0…15  key, "MPA ID Req Frame" or "MPA ID Rep Frame"
//
//	         7   6   5   4   3 … 0
//	byte 16  M | C | R | S | reserved
//	byte 17  revision
//	bytes 18…19  PD_Length, big endian: bytes that follow, at most 512
//	bytes 20…    if S: enhanced data, 4 bytes; then the ULP's private data
type Frame struct {
	Reply    bool
	Markers  bool // the sender wants to receive markers
	CRC      bool // the sender wants CRCs in both directions
	Rejected bool // has no meaning in a request
	// Reserved has the reserved bits of byte 16: 0x0f, and in revision 1 also 0x10, which is S in
	// revision 2. A receiver does not check them. Linux's siw copies the reserved bits of a request
	// into its reply, and treats 0x08 as permission to send FPDUs longer than a TCP segment. An
	// extension therefore needs another bit in the reply than in the request.
	Reserved    uint8
	Revision    uint8    // Revision1 or Revision2
	HasEnhanced bool     // S: there is an Enhanced
	Enhanced    Enhanced // of revision 2
	PrivateData []byte   // of the ULP, without [Enhanced]
}

// Enhanced is the data before the private data in RFC 6581 §9, big endian.
//
//	15  14  13 … 0   15  14  13 … 0
//	A | B | IRD    | C | D | ORD
type Enhanced struct {
	// Bit A: the initiator sends an RTR indication, so that the responder may send first.
	PeerToPeer     bool
	ZeroLengthSend bool   // B: the RTR indication may be an FPDU with an empty SEND
	RDMAWrite      bool   // C: or an RDMA Write of 0 bytes
	RDMARead       bool   // D: or an RDMA Read of 0 bytes
	IRD            uint16 // 14 bits: READs that the sender answers at a time
	ORD            uint16 // 14 bits: READs that the sender requests at a time
}

func (e Enhanced) encode(b []byte) {
	binary.BigEndian.PutUint16(b, pack(e.PeerToPeer, e.ZeroLengthSend, e.IRD))
	binary.BigEndian.PutUint16(b[2:], pack(e.RDMAWrite, e.RDMARead, e.ORD))
}

func parseEnhanced(b []byte) (e Enhanced) {
	ird, ord := binary.BigEndian.Uint16(b), binary.BigEndian.Uint16(b[2:])
	return Enhanced{
		PeerToPeer: ird&0x8000 != 0, ZeroLengthSend: ird&0x4000 != 0, IRD: ird & 0x3fff,
		RDMAWrite: ord&0x8000 != 0, RDMARead: ord&0x4000 != 0, ORD: ord & 0x3fff,
	}
}

func pack(high, low bool, depth uint16) uint16 {
	depth &= 0x3fff
	if high {
		depth |= 0x8000
	}
	if low {
		depth |= 0x4000
	}
	return depth
}

// Len returns the encoded length in bytes.
func (f *Frame) Len() int {
	n := HeaderLen + len(f.PrivateData)
	if f.HasEnhanced {
		n += EnhancedLen
	}
	return n
}

// Encode writes f to dst, which must have at least Len bytes, and returns Len. It fails if there is
// too much private data or if an enhanced frame is not of revision 2.
func (f *Frame) Encode(dst []byte) (int, error) {
	n := f.Len()
	switch {
	case n > MaxFrameLen:
		limit := MaxFrameLen - n + len(f.PrivateData)
		return 0, fmt.Errorf("mpa: %d bytes of private data, and the frame takes %d: send the rest when connected", len(f.PrivateData),
			limit)
	case f.HasEnhanced && f.Revision < Revision2:
		return 0, fmt.Errorf("mpa: revision %d has no IRD and ORD: use revision %d or leave HasEnhanced false", f.Revision, Revision2)
	case len(dst) < n:
		return 0, fmt.Errorf("mpa: frame of %d bytes into %d: must be Len() bytes", n, len(dst))
	}
	reserved := f.Reserved & flagReserved
	if f.Revision < Revision2 {
		reserved |= f.Reserved & flagEnhanced
	}
	dst[16] = reserved
	for _, flag := range [...]struct {
		set bool
		bit byte
	}{{f.Markers, flagMarkers}, {f.CRC, flagCRC}, {f.Rejected, flagRejected}, {f.HasEnhanced, flagEnhanced}} {
		if flag.set {
			dst[16] |= flag.bit
		}
	}
	key := requestKey
	if f.Reply {
		key = replyKey
	}
	copy(dst, key)
	dst[17] = f.Revision
	binary.BigEndian.PutUint16(dst[18:], uint16(n-HeaderLen))
	private := dst[HeaderLen:n]
	if f.HasEnhanced {
		f.Enhanced.encode(private)
		private = private[EnhancedLen:]
	}
	copy(private, f.PrivateData)
	return n, nil
}

// FrameLen returns the length of the frame whose first HeaderLen bytes are header, so that a reader
// reads nothing after the frame from the stream. The error is ErrShort, or an [*Error] with
// CodeInvalidFrame: close the connection.
func FrameLen(header []byte) (int, error) {
	if len(header) < HeaderLen {
		return 0, ErrShort
	}
	if key := header[:16]; string(key) != requestKey && string(key) != replyKey {
		return 0, ErrKey
	}
	n := int(binary.BigEndian.Uint16(header[18:]))
	switch {
	case n > maxPrivateData:
		return 0, ErrPrivateData
	case header[17] != Revision1 && header[17] != Revision2:
		return 0, ErrRevision
	case header[17] == Revision2 && header[16]&flagEnhanced != 0 && n < EnhancedLen:
		return 0, ErrEnhanced
	}
	return HeaderLen + n, nil
}

// Parse parses the frame at the start of b and returns its length in bytes. PrivateData is a part
// of b. The error is as for [FrameLen]. The caller must check Reply: an unexpected value means that
// both sides are initiators, or both are responders (ErrKey, RFC 5044 §7.1.2).
func Parse(b []byte) (f Frame, n int, err error) {
	n, err = FrameLen(b)
	if err != nil {
		return f, 0, err
	}
	if len(b) < n {
		return f, 0, ErrShort
	}
	flags := b[16]
	f = Frame{
		Reply:       string(b[:16]) == replyKey,
		Markers:     flags&flagMarkers != 0,
		CRC:         flags&flagCRC != 0,
		Rejected:    flags&flagRejected != 0,
		Reserved:    flags & flagReserved,
		Revision:    b[17],
		PrivateData: b[HeaderLen:n:n],
	}
	switch {
	case flags&flagEnhanced == 0:
	case f.Revision < Revision2:
		f.Reserved |= flagEnhanced
	default:
		f.HasEnhanced = true
		f.Enhanced = parseEnhanced(f.PrivateData)
		f.PrivateData = f.PrivateData[EnhancedLen:]
	}
	return f, n, nil
}
