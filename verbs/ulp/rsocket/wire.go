package rsocket

import (
	"encoding/binary"

	"github.com/softrnic/softrnic/verbs"
)

const version = 1

// The private data of a connection request and its reply: 8 bytes with the version, flags, credits
// and number of iomaps, then two SGEs. The SGEs describe the entry list and the first half of the
// receive buffer. Numbers are in network byte order.
const (
	connDataLen = 40
	sgeLen      = 16 // address, key and length
	entries     = 2  // of the list of SGEs that the peer writes to
)

// flagBigEndian means that the sender's entry list is in big-endian order. SoftRNIC's own list is
// in little-endian order on all machines.
const (
	flagBigEndian = 1 << 0
	flagIomaps    = 1 << 1 // the number of iomaps is valid
)

// sge is a range of a peer's memory.
type sge struct {
	addr   uint64
	key    uint32
	length uint32
}

func (s sge) put(b []byte, order binary.ByteOrder) {
	order.PutUint64(b, s.addr)
	order.PutUint32(b[8:], s.key)
	order.PutUint32(b[12:], s.length)
}

// getSGE loads the key and the length with one load, because the peer may be writing them
// (sender.handleCredits).
func getSGE(b []byte, order binary.ByteOrder) sge {
	half := order.Uint64(b[8:])
	if order == binary.ByteOrder(binary.BigEndian) {
		half = half<<32 | half>>32
	}
	return sge{addr: order.Uint64(b), key: uint32(half), length: uint32(half >> 32)}
}

// connData is the content of the private data.
type connData struct {
	bigEndian bool
	iomaps    int    // that the peer may have in the list
	credits   uint16 // messages that may be sent before more credits are granted
	list      sge    // the target of SGEs; its length is the number of entries
	data      sge    // the target of the first bytes
}

func (d *connData) bytes() []byte {
	b := make([]byte, connDataLen)
	b[0] = version
	if d.bigEndian {
		b[1] = flagBigEndian
	}
	if d.iomaps > 0 {
		b[1] |= flagIomaps
		_, b[7] = encodeIomapCount(d.iomaps)
	}
	binary.BigEndian.PutUint16(b[2:], d.credits)
	d.list.put(b[8:], binary.BigEndian)
	d.data.put(b[24:], binary.BigEndian)
	return b
}

// parseConnData parses the private data of a request or reply. Zeros may follow it.
func parseConnData(b []byte) (connData, error) {
	const op = "connect"
	if len(b) < connDataLen {
		return connData{}, verbs.Errorf(errProtocol, op, "the peer sent %d bytes of private data, less than %d", len(b), connDataLen)
	}
	if b[0] != version {
		return connData{}, verbs.Errorf(errProtocol, op, "the peer has version %d of the protocol, not %d", b[0], version)
	}
	d := connData{
		bigEndian: b[1]&flagBigEndian != 0, credits: binary.BigEndian.Uint16(b[2:]),
		list: getSGE(b[8:], binary.BigEndian), data: getSGE(b[24:], binary.BigEndian),
	}
	if b[1]&flagIomaps != 0 {
		d.iomaps = decodeIomapCount(b[7])
	}
	switch {
	case d.credits < minQueue/2:
		return d, verbs.Errorf(errProtocol, op, "the peer grants %d credits, less than %d", d.credits, minQueue/2)
	case d.list.length < entries || d.list.length > 1<<16:
		return d, verbs.Errorf(errProtocol, op, "the peer's list has %d entries, not %d", d.list.length, entries)
	case d.data.length == 0:
		return d, verbs.Errorf(errProtocol, op, "the peer's receive buffer has length 0")
	case d.list.addr+uint64(d.list.length)*sgeLen+uint64(d.iomaps)*iomapLen < d.list.addr:
		return d, verbs.Errorf(errProtocol, op, "the peer's list at %#x exceeds the address space", d.list.addr)
	case d.data.addr+uint64(d.data.length) < d.data.addr:
		return d, verbs.Errorf(errProtocol, op, "the peer's buffer of %d bytes at %#x exceeds the address space",
			d.data.length, d.data.addr)
	}
	return d, nil
}

// order returns the byte order of the peer's memory, and over iWARP of its messages.
func (d *connData) order() binary.ByteOrder {
	if d.bigEndian {
		return binary.BigEndian
	}
	return binary.LittleEndian
}

// A message has 32 bits: the operation, and 29 bits whose meaning depends on the operation. RoCE
// carries it as immediate data, and iWARP as a SEND of 4 bytes in the byte order of the sender.
type message uint32

type operation uint8

const (
	opData operation = 0 // bytes that were placed
	// The sequence number up to which the receiver may send, in 16 bits. An SGE may have been written.
	opCredits operation = 4
	opIomap   operation = 6 // the index of an iomap that was written
	opControl operation = 7
)

// Flags of opCredits over iWARP, where the receiver does not know how many bytes were placed. They
// report whether an SGE was written. librdmacm uses only 16 bits of the message: it does not set
// these flags, and ignores them.
const (
	creditsHasFlags = 1 << 16 // creditsTarget is valid
	creditsTarget   = 1 << 17 // an SGE was written
)

// The values of opControl.
const (
	ctrlDisconnect = 0 // the sender has ended both halves
	ctrlKeepalive  = 1
	ctrlShutdown   = 2 // the sender has ended its sending half
)

const (
	dataBits   = 29
	messageLen = 4
)

func newMessage(op operation, data uint32) message {
	return message(uint32(op)<<dataBits | data&(1<<dataBits-1))
}

func (m message) op() operation { return operation(m >> dataBits) }
func (m message) data() uint32  { return uint32(m) & (1<<dataBits - 1) }
