// Package mad encodes and parses the management datagrams of InfiniBand's communication manager
// (CM), by which RC, UC, UD and XRC QPs are connected, also on RoCE. It is for programs that write
// or read such datagrams, such as readers of captures and test benches. A datagram is the payload
// of a UD SEND to QP 1 of a port, and has 256 bytes. Fields are big-endian on the wire, and values
// in host order in this package.
//
//	+-----------------+--------------------------+----------------------+
//	| MAD header (24) | fields of the message    | its private data     |
//	+-----------------+--------------------------+----------------------+
//
// [Parse] parses the header, and [New] returns the message for [Decode]. All functions accept any
// bytes. The package knows formats only. It checks no state, and leaves retries and timeouts to its
// user. Package wire has the packet around a datagram. Classes other than CM are not known.
//
// Sources: IBTA Vol 1 §13.4.3 (header), §12.6 and §12.11 (messages), annex A11 (RDMA IP CM
// service).
package mad

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Lengths in bytes.
const (
	Size      = 256 // of a datagram
	HeaderLen = 24  // of its header
	dataLen   = Size - HeaderLen
)

// QPN and QKey are the number and the Q_Key of the general services QP, which sends and receives
// MADs.
const (
	QPN  = 1
	QKey = 0x80010000
)

// Header fields of every CM datagram.
const (
	baseVersion  = 1
	classCM      = 7
	classVersion = 2
	methodSend   = 3
)

// Errors of [Parse].
var (
	ErrLength = errors.New("mad: not 256 bytes")
	ErrClass  = errors.New("mad: not a CM datagram of base version 1, class version 2, method Send")
)

// Attr is a message's type: its attribute ID (IBTA Vol 1 §12.6).
type Attr uint16

// The messages of the CM class, in the order of their IDs.
const (
	AttrREQ Attr = 0x10 + iota
	AttrMRA
	AttrREJ
	AttrREP
	AttrRTU
	AttrDREQ
	AttrDREP
	AttrSIDRREQ
	AttrSIDRREP
	AttrLAP
	AttrAPR
)

var attrNames = [...]string{"REQ", "MRA", "REJ", "REP", "RTU", "DREQ", "DREP", "SIDR_REQ", "SIDR_REP", "LAP", "APR"}

// String returns the name of the message, as REQ or SIDR_REQ.
func (a Attr) String() string {
	if i := int(a) - int(AttrREQ); i >= 0 && i < len(attrNames) {
		return attrNames[i]
	}
	return fmt.Sprintf("attribute %#x", uint16(a))
}

// Header has the fields of a MAD header that vary between CM messages (IBTA Vol 1 §13.4.3).
//
//	+--------------+--------------+--------------+---------------+
//	| base version | class (CM 7) | class vers. 2| method (Send) |
//	+--------------+--------------+--------------+---------------+
//	|            status           |        class specific        |
//	+-----------------------------+------------------------------+
//	|                   transaction ID, 64 bits                  |
//	+-----------------------------+------------------------------+
//	|         attribute ID        |           reserved           |
//	+-----------------------------+------------------------------+
//	|                     attribute modifier                     |
//	+------------------------------------------------------------+
type Header struct {
	Attr    Attr
	TID     uint64 // transaction ID: the same in a retransmission, and in the answer
	AttrMod uint32 // 0 in all messages of this package
}

// Message is one of this package's messages.
type Message interface {
	Attr() Attr // the attribute ID of its type
	// IDs returns the communication IDs of the sender and of the receiver, each 0 if the message
	// does not have it. SIDR messages have a request ID instead, which is the requester's.
	IDs() (local, remote uint32)
	fields(*coder)
}

// New returns an empty message for [Decode], or nil if this package has none for the attribute.
func New(a Attr) Message {
	switch a {
	case AttrREQ:
		return new(REQ)
	case AttrMRA:
		return new(MRA)
	case AttrREJ:
		return new(REJ)
	case AttrREP:
		return new(REP)
	case AttrRTU:
		return new(RTU)
	case AttrDREQ:
		return new(DREQ)
	case AttrDREP:
		return new(DREP)
	case AttrSIDRREQ:
		return new(SIDRREQ)
	case AttrSIDRREP:
		return new(SIDRREP)
	case AttrLAP:
		return new(LAP)
	case AttrAPR:
		return new(APR)
	}
	return nil
}

// Parse parses the header of a datagram and returns the rest of b, 232 bytes, for [Decode]. The
// error is [ErrLength] or [ErrClass].
func Parse(b []byte) (h Header, data []byte, err error) {
	if len(b) != Size {
		return h, nil, ErrLength
	}
	if b[0] != baseVersion || b[1] != classCM || b[2] != classVersion || b[3] != methodSend {
		return h, nil, ErrClass
	}
	h.TID = binary.BigEndian.Uint64(b[8:])
	h.Attr = Attr(binary.BigEndian.Uint16(b[16:]))
	h.AttrMod = binary.BigEndian.Uint32(b[20:])
	return h, b[HeaderLen:], nil
}

// Decode decodes a message, of the type that [Header] names, from the data that [Parse] returned.
// The message's byte slices are parts of data, each of the full length of its field.
func Decode(data []byte, m Message) { m.fields(&coder{b: data[:dataLen]}) }

// Encode writes a datagram of a transaction. Values are cut to the bits of their fields. Byte
// slices shorter than their fields are padded with zeros, and longer ones are cut.
func Encode(b *[Size]byte, tid uint64, m Message) {
	clear(b[:])
	b[0], b[1], b[2], b[3] = baseVersion, classCM, classVersion, methodSend
	binary.BigEndian.PutUint64(b[8:], tid)
	binary.BigEndian.PutUint16(b[16:], uint16(m.Attr()))
	m.fields(&coder{b: b[HeaderLen:], write: true})
}

// coder reads or writes fields, so that one description of a message serves both directions.
type coder struct {
	b     []byte
	write bool
}

// field codes a value of at most 32 bits: width bits from bit (0 is the highest) of the byte at
// off. It must not cross a boundary of four bytes.
func field[T ~uint8 | ~uint16 | ~uint32](c *coder, off, bit, width int, v *T) {
	word := c.b[off&^3 : off&^3+4]
	shift := 32 - (off&3*8 + bit + width)
	mask := uint32(1<<width-1) << shift
	w := binary.BigEndian.Uint32(word)
	if c.write {
		binary.BigEndian.PutUint32(word, w&^mask|uint32(*v)<<shift&mask)
	} else {
		*v = T(w & mask >> shift)
	}
}

func flag(c *coder, off, bit int, v *bool) {
	var x uint8
	if *v {
		x = 1
	}
	field(c, off, bit, 1, &x)
	*v = x != 0
}

func (c *coder) u64(off int, v *uint64) {
	if c.write {
		binary.BigEndian.PutUint64(c.b[off:], *v)
	} else {
		*v = binary.BigEndian.Uint64(c.b[off:])
	}
}

func (c *coder) gid(off int, v *[16]byte) {
	if c.write {
		copy(c.b[off:], v[:])
	} else {
		*v = [16]byte(c.b[off:])
	}
}

func (c *coder) bytes(off, n int, v *[]byte) {
	if c.write {
		copy(c.b[off:off+n], *v)
	} else {
		*v = c.b[off : off+n : off+n]
	}
}
