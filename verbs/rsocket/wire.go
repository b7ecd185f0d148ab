package rsocket

import (
	"encoding/binary"

	"github.com/softrnic/softrnic/verbs"
)

const version = 1

// The private data of a connection request and of its reply: 8 bytes of version, flags, credits and the scale of the iomaps, then
// the entry list and the first part of the receive buffer, as two SGEs. Numbers are in network byte order.
const (
	connDataLen = 40
	sgeLen      = 16 // address, key and length
	entries     = 2  // of the list of SGEs that the peer writes to
)

// flagBigEndian says that the sender keeps its entry list in big-endian order. SoftRNIC keeps its own in little-endian order on
// every machine.
const (
	flagBigEndian = 1 << 0
	flagIomaps    = 1 << 1 // the number of iomaps is said
)

// sge is a piece of a peer's memory.
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

// getSGE loads key and length at once: the peer may be placing them meanwhile (sender.credited).
func getSGE(b []byte, order binary.ByteOrder) sge {
	half := order.Uint64(b[8:])
	if order == binary.ByteOrder(binary.BigEndian) {
		half = half<<32 | half>>32
	}
	return sge{addr: order.Uint64(b), key: uint32(half), length: uint32(half >> 32)}
}

// connData is what each side tells the other when they connect.
type connData struct {
	bigEndian bool
	iomaps    int    // that the peer may have in the list
	credits   uint16 // messages that may be sent before more credits are given
	list      sge    // where SGEs are written; length is the number of its entries
	data      sge    // where the first bytes are written
}

func (d *connData) bytes() []byte {
	b := make([]byte, connDataLen)
	b[0] = version
	if d.bigEndian {
		b[1] = flagBigEndian
	}
	if d.iomaps > 0 {
		b[1] |= flagIomaps
		_, b[7] = iomapCount(d.iomaps)
	}
	binary.BigEndian.PutUint16(b[2:], d.credits)
	d.list.put(b[8:], binary.BigEndian)
	d.data.put(b[24:], binary.BigEndian)
	return b
}

// parseConnData parses the private data of a request or reply, which may have zeros behind it.
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
		d.iomaps = unscaled(b[7])
	}
	switch {
	case d.credits < minQueue/2:
		return d, verbs.Errorf(errProtocol, op, "the peer gives %d credits, less than %d", d.credits, minQueue/2)
	case d.list.length < entries || d.list.length > 1<<16:
		return d, verbs.Errorf(errProtocol, op, "the peer's list has %d entries, not %d", d.list.length, entries)
	case d.data.length == 0:
		return d, verbs.Errorf(errProtocol, op, "the peer has no room for data")
	case d.list.addr+uint64(d.list.length)*sgeLen+uint64(d.iomaps)*iomapLen < d.list.addr:
		return d, verbs.Errorf(errProtocol, op, "the peer's list is at %#x, past the end of memory", d.list.addr)
	case d.data.addr+uint64(d.data.length) < d.data.addr:
		return d, verbs.Errorf(errProtocol, op, "the peer's room of %d bytes is at %#x, past the end of memory", d.data.length, d.data.addr)
	}
	return d, nil
}

// order is the byte order of the peer's memory, and over iWARP of its messages.
func (d *connData) order() binary.ByteOrder {
	if d.bigEndian {
		return binary.BigEndian
	}
	return binary.LittleEndian
}

// A message is 32 bits: the operation, and 29 bits whose meaning it determines. RoCE has it as immediate data, iWARP as a SEND of
// 4 bytes in the order of the sender's machine.
type message uint32

type operation uint8

const (
	opData    operation = 0 // bytes that were placed
	opCredits operation = 4 // the sequence number that the receiver may send up to, in 16 bits; an SGE may have been written
	opIomap   operation = 6 // the index of an iomap that was written
	opControl operation = 7
)

// Of opCredits over iWARP, where the receiver does not see what was placed: whether an SGE was written. librdmacm takes 16 bits of the
// message alone, so it neither sets these nor minds them.
const (
	creditsTell = 1 << 16 // creditsRoom is meant
	creditsRoom = 1 << 17
)

// The values of opControl.
const (
	ctrlDisconnect = 0 // no more is sent, nor wanted
	ctrlKeepalive  = 1
	ctrlShutdown   = 2 // no more is sent
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
