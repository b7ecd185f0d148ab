package rpcrdma

import (
	"encoding/binary"
	"fmt"
)

// Version is the protocol's version (RFC 8166 §4.2.2).
const Version = 1

// MsgType is the type of a message (RFC 8166 §4.2.4, rdma_proc).
type MsgType uint32

const (
	Msg   MsgType = 0 // the RPC message follows, apart from its chunks
	NoMsg MsgType = 1 // the RPC message is in a chunk
	MsgP  MsgType = 2 // obsolete
	Done  MsgType = 3 // obsolete
	Error MsgType = 4 // an error in place of a reply
)

func (t MsgType) String() string {
	names := [...]string{"RDMA_MSG", "RDMA_NOMSG", "RDMA_MSGP", "RDMA_DONE", "RDMA_ERROR"}
	if int64(t) < int64(len(names)) {
		return names[t]
	}
	return fmt.Sprintf("message type %d", uint32(t))
}

// ErrCode is the reason in a message of type Error (RFC 8166 §4.5, rpc_rdma_errcode).
type ErrCode uint32

const (
	ErrVers  ErrCode = 1 // the version is not supported
	ErrChunk ErrCode = 2 // the header is invalid, or the reply does not fit the chunks
)

func (c ErrCode) String() string {
	switch c {
	case ErrVers:
		return "ERR_VERS"
	case ErrChunk:
		return "ERR_CHUNK"
	}
	return fmt.Sprintf("error code %d", uint32(c))
}

// Segment is a range of the requester's memory (RFC 8166 §3.4.3, xdr_rdma_segment).
type Segment struct {
	Handle uint32 // rkey or STag
	Length uint32 // bytes
	Offset uint64 // address
}

// ReadSegment is an element of the Read list (RFC 8166 §3.4.5). Elements with the same position are
// one chunk.
type ReadSegment struct {
	Position uint32 // offset in the RPC message
	Segment
}

// Header is a transport header (RFC 8166 §4.2), in XDR:
//
//	xid  version  credits  type
//	Msg, NoMsg:  Read list  Write list  Reply chunk
//	Error:       code [lowest version, highest version]
type Header struct {
	XID     uint32 // that of the RPC message
	Version uint32
	Credits uint32 // requested in a call, granted in a reply (RFC 8166 §3.3.1)
	Type    MsgType

	// Of Msg and NoMsg. A nil Reply means that there is no Reply chunk.
	Read  []ReadSegment
	Write [][]Segment
	Reply []Segment

	// Of Error; Low and High with ErrVers only.
	Err       ErrCode
	Low, High uint32
}

// maxSegments is the number of segments that a header may have. Linux sends at most a few dozen.
const maxSegments = 256

// fixedLen is the length of the fields that each version has (RFC 8166 §4.2).
const fixedLen = 16

// A headerError says why a header is invalid.
type headerError string

func (e headerError) Error() string { return "RPC-over-RDMA header: " + string(e) }

const (
	errShort    = headerError("it is truncated")
	errItem     = headerError("a list has a discriminator that is neither 0 nor 1")
	errSegments = headerError("it has too many segments")
	errMsgType  = headerError("its type is unknown")
	errVersion  = headerError("its version is not 1")
	errErrCode  = headerError("its error code is unknown")
)

// decoder reads XDR. After an error all its results are 0.
type decoder struct {
	b   []byte
	off int
	err error
}

func (d *decoder) fail(err error) {
	if d.err == nil {
		d.err = err
	}
}

func (d *decoder) uint32() uint32 {
	if d.err != nil || len(d.b)-d.off < 4 {
		d.fail(errShort)
		return 0
	}
	v := binary.BigEndian.Uint32(d.b[d.off:])
	d.off += 4
	return v
}

func (d *decoder) uint64() uint64 {
	high := d.uint32()
	return uint64(high)<<32 | uint64(d.uint32())
}

// present reads the discriminator of optional data.
func (d *decoder) present() bool {
	v := d.uint32()
	if v > 1 {
		d.fail(errItem)
	}
	return v == 1 && d.err == nil
}

// segments reads a counted array of segments: a Write chunk or the Reply chunk. left is the number
// of segments that the header may still have.
func (d *decoder) segments(left *int) []Segment {
	n := d.uint32()
	if d.err == nil && int64(n) > int64(*left) {
		d.fail(errSegments)
	}
	if d.err != nil {
		return nil
	}
	*left -= int(n)
	list := make([]Segment, n)
	for i := range list {
		list[i] = Segment{Handle: d.uint32(), Length: d.uint32(), Offset: d.uint64()}
	}
	return list
}

// ParseHeader parses the header at the start of b, and returns it with its length. If the error is
// not nil and b has at least 16 bytes, the fields before the chunk lists are valid.
func ParseHeader(b []byte) (h *Header, n int, err error) {
	d := &decoder{b: b}
	h = &Header{XID: d.uint32(), Version: d.uint32(), Credits: d.uint32(), Type: MsgType(d.uint32())}
	switch {
	case d.err != nil:
	case h.Version != Version && h.Type != Error:
		d.fail(errVersion)
	case h.Type == Msg || h.Type == NoMsg:
		d.chunks(h)
	case h.Type == Error:
		d.error(h)
	case h.Type != Done:
		d.fail(errMsgType)
	}
	if d.err != nil {
		return h, 0, d.err
	}
	return h, d.off, nil
}

// chunks reads the three chunk lists (RFC 8166 §4.3).
func (d *decoder) chunks(h *Header) {
	left := maxSegments
	for d.present() {
		if left--; left < 0 {
			d.fail(errSegments)
			return
		}
		h.Read = append(h.Read, ReadSegment{d.uint32(), Segment{Handle: d.uint32(), Length: d.uint32(), Offset: d.uint64()}})
	}
	for d.present() {
		if len(h.Write) == maxSegments { // each may be empty
			d.fail(errSegments)
			return
		}
		h.Write = append(h.Write, d.segments(&left))
	}
	if d.present() {
		h.Reply = d.segments(&left)
	}
}

// error reads the body of an Error message (RFC 8166 §4.5).
func (d *decoder) error(h *Header) {
	switch h.Err = ErrCode(d.uint32()); {
	case h.Err == ErrVers:
		h.Low, h.High = d.uint32(), d.uint32()
	case h.Err != ErrChunk:
		d.fail(errErrCode)
	}
}

// Append appends the header to b.
func (h *Header) Append(b []byte) []byte {
	be := binary.BigEndian
	b = be.AppendUint32(b, h.XID)
	b = be.AppendUint32(b, h.Version)
	b = be.AppendUint32(b, h.Credits)
	b = be.AppendUint32(b, uint32(h.Type))
	switch h.Type {
	case Msg, NoMsg:
		for _, s := range h.Read {
			b = be.AppendUint32(b, 1)
			b = be.AppendUint32(b, s.Position)
			b = s.append(b)
		}
		b = be.AppendUint32(b, 0)
		for _, chunk := range h.Write {
			b = be.AppendUint32(b, 1)
			b = appendSegments(b, chunk)
		}
		b = be.AppendUint32(b, 0)
		if h.Reply == nil {
			return be.AppendUint32(b, 0)
		}
		b = be.AppendUint32(b, 1)
		b = appendSegments(b, h.Reply)
	case Error:
		b = be.AppendUint32(b, uint32(h.Err))
		if h.Err == ErrVers {
			b = be.AppendUint32(b, h.Low)
			b = be.AppendUint32(b, h.High)
		}
	}
	return b
}

// Len returns the length that Append appends.
func (h *Header) Len() int {
	n := fixedLen
	switch h.Type {
	case Msg, NoMsg:
		n += 3*4 + 24*len(h.Read)
		for _, chunk := range h.Write {
			n += 8 + 16*len(chunk)
		}
		if h.Reply != nil {
			n += 4 + 16*len(h.Reply)
		}
	case Error:
		n += 4
		if h.Err == ErrVers {
			n += 8
		}
	}
	return n
}

func (s Segment) append(b []byte) []byte {
	b = binary.BigEndian.AppendUint32(b, s.Handle)
	b = binary.BigEndian.AppendUint32(b, s.Length)
	return binary.BigEndian.AppendUint64(b, s.Offset)
}

func appendSegments(b []byte, list []Segment) []byte {
	b = binary.BigEndian.AppendUint32(b, uint32(len(list)))
	for _, s := range list {
		b = s.append(b)
	}
	return b
}

// length returns the number of bytes of a chunk.
func length(chunk []Segment) (n uint64) {
	for _, s := range chunk {
		n += uint64(s.Length)
	}
	return n
}
