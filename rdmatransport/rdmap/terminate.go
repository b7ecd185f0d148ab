package rdmap

import (
	"encoding/binary"

	"github.com/softrnic/softrnic/rdmatransport/ddp"
)

// MaxTerminateLen is the length of the longest Terminate message, in bytes, with all quoted
// headers.
const MaxTerminateLen = TerminateLen + segmentLenLen + ddp.UntaggedLen + ReadRequestLen

const segmentLenLen = 2

// TerminateHeader is the message of a Terminate (RFC 5040 §4.8).
//
//	byte 0     layer, high 4 bits; error type
//	byte 1     error code
//	byte 2     M | D | R | reserved 5
//	byte 3     reserved
//	2 bytes    length of the segment at fault, if M or D
//	14 or 18   its DDP header, if D
//	28         its Read Request, if R
type TerminateHeader struct {
	Cause
	Reserved      uint16 // 13 bits, zero when sent, not checked when received
	HasSegmentLen bool   // M
	SegmentLen    uint16 // bytes, DDP header included; on the wire if M or D
	DDPHeader     []byte // D: 14 or 18 bytes, by its first bit; or nil
	RDMAHeader    []byte // R: 28 bytes; or nil
	// Swapped means that the fields of bytes 0 and 2 begin at the lowest bit, as Linux's siw sends
	// them on little-endian machines. The layer is below the error type, and M, D and R are the
	// lowest bits.
	Swapped bool
}

const (
	flagM = 0x8000
	flagD = 0x4000
	flagR = 0x2000

	maskTerminateReserved = 0x1fff

	// The same bits if the fields are Swapped.
	swappedM = 0x0100
	swappedD = 0x0200
	swappedR = 0x0400
)

// Quote returns the Terminate message for c, with the quote of the invalid DDP segment according to
// RFC 5040 §4.8. Local catastrophic and MPA errors quote nothing; others quote the segment's length
// and its DDP header, and remote protection errors also the Read Request. The quoted headers are
// parts of segment. If segment is nil or too short, nothing is quoted. If the READ was in progress,
// the caller sets RDMAHeader to the request after [ReadRequestHeader.Advance].
func (c Cause) Quote(segment []byte) TerminateHeader {
	t := TerminateHeader{Cause: c}
	quoted := c.Type != TypeLocalCatastrophic && (c.Layer == LayerRDMA || c.Layer == LayerDDP)
	if !quoted || len(segment) == 0 || len(segment) < ddp.HeaderLen(segment) {
		return t
	}
	n := ddp.HeaderLen(segment)
	t.HasSegmentLen, t.SegmentLen = true, uint16(len(segment))
	t.DDPHeader = segment[:n:n]
	if c.Layer == LayerRDMA && c.Type == TypeRemoteProtection && !ddp.IsTagged(segment) {
		h, message, err := ddp.ParseUntagged(segment)
		if err == nil && Opcode(h.RsvdULP&maskOpcode) == ReadRequest && len(message) >= ReadRequestLen {
			t.RDMAHeader = message[:ReadRequestLen:ReadRequestLen]
		}
	}
	return t
}

// Len returns the encoded length in bytes, at most MaxTerminateLen.
func (t *TerminateHeader) Len() int {
	n := TerminateLen + len(t.DDPHeader) + len(t.RDMAHeader)
	if t.HasSegmentLen || t.DDPHeader != nil {
		n += segmentLenLen
	}
	return n
}

// Encode writes t into the first Len bytes of b.
func (t *TerminateHeader) Encode(b []byte) {
	var (
		kind  = uint8(t.Layer)<<4 | t.Type&0x0f
		flags = t.Reserved & maskTerminateReserved
		m     = uint16(flagM)
		d     = uint16(flagD)
		r     = uint16(flagR)
	)
	if t.Swapped {
		kind = t.Type<<4 | uint8(t.Layer)&0x0f
		flags = t.Reserved<<11 | t.Reserved>>5
		m, d, r = swappedM, swappedD, swappedR
	}
	if t.HasSegmentLen {
		flags |= m
	}
	if t.DDPHeader != nil {
		flags |= d
	}
	if t.RDMAHeader != nil {
		flags |= r
	}
	b[0], b[1] = kind, t.Code
	binary.BigEndian.PutUint16(b[2:], flags)
	b = b[TerminateLen:]
	if t.HasSegmentLen || t.DDPHeader != nil {
		binary.BigEndian.PutUint16(b, t.SegmentLen)
		b = b[segmentLenLen:]
	}
	copy(b, t.DDPHeader)
	copy(b[len(t.DDPHeader):], t.RDMAHeader)
}

// ParseTerminate parses the message b. The error is ErrLen. Even then the Cause is valid if b has
// TerminateLen bytes: some peers quote less than they announce, such as siw after a SEND with
// invalidate.
func ParseTerminate(b []byte) (t TerminateHeader, err error) {
	if len(b) < TerminateLen {
		return t, ErrLen
	}
	flags := binary.BigEndian.Uint16(b[2:])
	m, d, r := flags&flagM != 0, flags&flagD != 0, flags&flagR != 0
	t.Cause = Cause{Layer(b[0] >> 4), b[0] & 0x0f, b[1]}
	t.Reserved = flags & maskTerminateReserved
	announced, quotes := m || d || r, len(b) > TerminateLen
	if swapped := flags & (swappedM | swappedD | swappedR); swapped != 0 && quotes && !announced {
		// Bits that must be zero are set, and there is a quote that no other bit announces.
		t.Swapped = true
		m, d, r = swapped&swappedM != 0, swapped&swappedD != 0, swapped&swappedR != 0
		t.Cause = Cause{Layer(b[0] & 0x0f), b[0] >> 4, b[1]}
		t.Reserved = flags>>11 | flags<<5&0x1fe0
	}
	b = b[TerminateLen:]
	t.HasSegmentLen = m
	if m || d {
		if len(b) < segmentLenLen {
			return t, ErrLen
		}
		t.SegmentLen = binary.BigEndian.Uint16(b)
		b = b[segmentLenLen:]
	}
	if d {
		if len(b) == 0 || len(b) < ddp.HeaderLen(b) {
			return t, ErrLen
		}
		n := ddp.HeaderLen(b)
		t.DDPHeader, b = b[:n:n], b[n:]
	}
	if r {
		if len(b) < ReadRequestLen {
			return t, ErrLen
		}
		t.RDMAHeader, b = b[:ReadRequestLen:ReadRequestLen], b[ReadRequestLen:]
	}
	if len(b) != 0 {
		return t, ErrLen
	}
	return t, nil
}
