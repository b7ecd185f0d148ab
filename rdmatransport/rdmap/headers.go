package rdmap

import (
	"encoding/binary"
	"errors"
)

// Lengths of the headers that follow DDP's.
const (
	ReadRequestLen    = 28
	AtomicRequestLen  = 52
	AtomicResponseLen = 12
	ImmediateLen      = 8 // of immediate data, without another header
	TerminateLen      = 4 // without quoted headers
)

// ErrLen means that a message has a different length than its header. RFC 5040 has no code for
// that; [CauseOf] returns StreamCatastrophic.
var ErrLen = errors.New("rdmap: message is not as long as its header")

// ReadRequestHeader is the message of an RDMA Read Request (RFC 5040 §4.4).
//
//	bytes  0…3   sink STag       bytes 4…11   sink TO
//	bytes 12…15  size
//	bytes 16…19  source STag     bytes 20…27  source TO
type ReadRequestHeader struct {
	SinkSTag   uint32 // where the response goes: the requester's memory
	SinkTO     uint64
	Size       uint32 // bytes to read
	SourceSTag uint32 // the responder's memory
	SourceTO   uint64
}

// Encode writes h into the first ReadRequestLen bytes of b.
func (h *ReadRequestHeader) Encode(b []byte) {
	_ = b[ReadRequestLen-1]
	binary.BigEndian.PutUint32(b, h.SinkSTag)
	binary.BigEndian.PutUint64(b[4:], h.SinkTO)
	binary.BigEndian.PutUint32(b[12:], h.Size)
	binary.BigEndian.PutUint32(b[16:], h.SourceSTag)
	binary.BigEndian.PutUint64(b[20:], h.SourceTO)
}

// ParseReadRequest parses the message b; the error is ErrLen.
func ParseReadRequest(b []byte) (h ReadRequestHeader, err error) {
	if len(b) != ReadRequestLen {
		return h, ErrLen
	}
	return ReadRequestHeader{
		SinkSTag:   binary.BigEndian.Uint32(b),
		SinkTO:     binary.BigEndian.Uint64(b[4:]),
		Size:       binary.BigEndian.Uint32(b[12:]),
		SourceSTag: binary.BigEndian.Uint32(b[16:]),
		SourceTO:   binary.BigEndian.Uint64(b[20:]),
	}, nil
}

// Advance removes n bytes, which were read and sent, from the start of the request. A Terminate
// message that ends a READ in the middle quotes the request in this form (RFC 5040 §4.8).
func (h *ReadRequestHeader) Advance(n uint32) {
	h.SinkTO += uint64(n)
	h.SourceTO += uint64(n)
	h.Size -= n
}

// AtomicCode is the code of an atomic operation (RFC 7306 §5.2.1).
type AtomicCode uint8

// The operations. Others are reserved.
const (
	FetchAdd AtomicCode = 0
	CmpSwap  AtomicCode = 2 // with a compare mask of 0, an unconditional swap
)

// Known reports whether the RFC defines c.
func (c AtomicCode) Known() bool { return c == FetchAdd || c == CmpSwap }

// AtomicRequestHeader is the message of an Atomic Request (RFC 7306 §5.2.1).
//
//	bytes  0…3   reserved, and code in the low 4 bits     bytes  4…7   request identifier
//	bytes  8…11  remote STag                              bytes 12…19  remote TO
//	bytes 20…27  add or swap data                         bytes 28…35  add or swap mask
//	bytes 36…43  compare data                             bytes 44…51  compare mask
type AtomicRequestHeader struct {
	Reserved    uint32 // 28 bits, zero when sent, not checked when received
	Code        AtomicCode
	ID          uint32 // the same in the response
	STag        uint32
	TO          uint64 // of 8 aligned bytes
	Data        uint64 // to add, or to swap in
	Mask        uint64 // add: the top bit of each field; swap: bits to swap
	CompareData uint64 // CmpSwap only, else 0
	CompareMask uint64 // CmpSwap only, else all ones
}

// Encode writes h into the first AtomicRequestLen bytes of b.
func (h *AtomicRequestHeader) Encode(b []byte) {
	_ = b[AtomicRequestLen-1]
	binary.BigEndian.PutUint32(b, h.Reserved<<4|uint32(h.Code&0x0f))
	binary.BigEndian.PutUint32(b[4:], h.ID)
	binary.BigEndian.PutUint32(b[8:], h.STag)
	binary.BigEndian.PutUint64(b[12:], h.TO)
	binary.BigEndian.PutUint64(b[20:], h.Data)
	binary.BigEndian.PutUint64(b[28:], h.Mask)
	binary.BigEndian.PutUint64(b[36:], h.CompareData)
	binary.BigEndian.PutUint64(b[44:], h.CompareMask)
}

// ParseAtomicRequest parses the message b; the error is ErrLen. The code may be unknown.
func ParseAtomicRequest(b []byte) (h AtomicRequestHeader, err error) {
	if len(b) != AtomicRequestLen {
		return h, ErrLen
	}
	first := binary.BigEndian.Uint32(b)
	return AtomicRequestHeader{
		Reserved:    first >> 4,
		Code:        AtomicCode(first & 0x0f),
		ID:          binary.BigEndian.Uint32(b[4:]),
		STag:        binary.BigEndian.Uint32(b[8:]),
		TO:          binary.BigEndian.Uint64(b[12:]),
		Data:        binary.BigEndian.Uint64(b[20:]),
		Mask:        binary.BigEndian.Uint64(b[28:]),
		CompareData: binary.BigEndian.Uint64(b[36:]),
		CompareMask: binary.BigEndian.Uint64(b[44:]),
	}, nil
}

// Apply returns the new value for the previous one (RFC 7306 §5.1). h.Code must be Known.
func (h *AtomicRequestHeader) Apply(old uint64) uint64 {
	if h.Code == FetchAdd {
		return maskedAdd(old, h.Data, h.Mask)
	}
	if (h.CompareData^old)&h.CompareMask != 0 {
		return old
	}
	return old&^h.Mask | h.Data&h.Mask
}

// maskedAdd adds each field separately: no carry leaves a bit that is set in mask. It adds all
// other bits, and corrects the masked ones by an exclusive or.
func maskedAdd(a, b, mask uint64) uint64 {
	return (a&^mask + b&^mask) ^ (a^b)&mask
}

// AtomicResponseHeader is the message of an Atomic Response (RFC 7306 §5.2.2).
//
//	bytes 0…3  request identifier     bytes 4…11  original value
type AtomicResponseHeader struct {
	ID       uint32 // of the request
	Original uint64 // the value before the operation
}

// Encode writes h into the first AtomicResponseLen bytes of b.
func (h *AtomicResponseHeader) Encode(b []byte) {
	_ = b[AtomicResponseLen-1]
	binary.BigEndian.PutUint32(b, h.ID)
	binary.BigEndian.PutUint64(b[4:], h.Original)
}

// ParseAtomicResponse parses the message b; the error is ErrLen.
func ParseAtomicResponse(b []byte) (h AtomicResponseHeader, err error) {
	if len(b) != AtomicResponseLen {
		return h, ErrLen
	}
	return AtomicResponseHeader{ID: binary.BigEndian.Uint32(b), Original: binary.BigEndian.Uint64(b[4:])}, nil
}

// PutImmediate writes the message of Immediate Data into the first ImmediateLen bytes of b (RFC
// 7306 §6.2).
func PutImmediate(b []byte, data uint64) { binary.BigEndian.PutUint64(b, data) }

// ParseImmediate parses the message b; the error is ErrLen.
func ParseImmediate(b []byte) (data uint64, err error) {
	if len(b) != ImmediateLen {
		return 0, ErrLen
	}
	return binary.BigEndian.Uint64(b), nil
}
