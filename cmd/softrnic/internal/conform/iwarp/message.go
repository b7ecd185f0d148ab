package iwarp

import (
	"bytes"
	"encoding/binary"

	"github.com/softrnic/softrnic/cmd/softrnic/internal/conform/suite"
	"github.com/softrnic/softrnic/rdmatransport/ddp"
	"github.com/softrnic/softrnic/rdmatransport/rdmap"
)

// Opcodes of RDMAP (RFC 5040 §4.1, RFC 7306 §4.1).
const (
	opWrite          = uint64(rdmap.Write)
	opReadRequest    = uint64(rdmap.ReadRequest)
	opReadResponse   = uint64(rdmap.ReadResponse)
	opSend           = uint64(rdmap.Send)
	opSendInvalidate = uint64(rdmap.SendInvalidate)
	opSendSE         = uint64(rdmap.SendSE)
	opTerminate      = uint64(rdmap.Terminate)
	opImmediate      = uint64(rdmap.ImmediateData)
	opImmediateSE    = uint64(rdmap.ImmediateDataSE)
	opAtomicRequest  = uint64(rdmap.AtomicRequest)
	opAtomicResponse = uint64(rdmap.AtomicResponse)
)

// place is the position of a field in a ULPDU or frame: the bits mask of size bytes at an offset.
type place struct {
	at, size int
	mask     uint64
}

const all = ^uint64(0)

// fields are the fields of a segment. Those of messages follow the untagged header.
var fields = map[string]place{
	"T": {0, 1, 0x80}, "L": {0, 1, 0x40}, "DDP's reserved bits": {0, 1, 0x3c}, "DDP version": {0, 1, 3},
	"RDMAP version": {1, 1, 0xc0}, "RDMAP's reserved bits": {1, 1, 0x30}, "opcode": {1, 1, 0x0f},
	"STag": {2, 4, all}, "TO": {6, 8, all},
	"STag to invalidate": {2, 4, all}, "QN": {6, 4, all}, "MSN": {10, 4, all}, "MO": {14, 4, all},

	"sink STag": {18, 4, all}, "sink TO": {22, 8, all}, "READ size": {30, 4, all}, "source STag": {34, 4, all}, "source TO": {38, 8, all},

	"atomic reserved bits": {18, 4, 0xfffffff0}, "atomic opcode": {18, 4, 0x0f}, "request identifier": {22, 4, all},
	"atomic STag": {26, 4, all}, "atomic TO": {30, 8, all}, "add or swap data": {38, 8, all}, "add or swap mask": {46, 8, all},
	"compare data": {54, 8, all}, "compare mask": {62, 8, all},
	"response identifier": {18, 4, all}, "original value": {22, 8, all}, "immediate data": {18, 8, all},

	"layer": {18, 1, 0xf0}, "error type": {18, 1, 0x0f}, "error code": {19, 1, 0xff}, "M, D, R": {20, 1, 0xe0},
	"Terminate's reserved bits": {20, 2, 0x1fff}, "DDP segment length": {22, 2, all},
}

// get returns the value of a field in the lowest bits.
func (p place) get(b []byte) (v uint64, ok bool) {
	if len(b) < p.at+p.size {
		return 0, false
	}
	for _, x := range b[p.at : p.at+p.size] {
		v = v<<8 | uint64(x)
	}
	return v & p.mask >> p.shift(), true
}

func (p place) shift() (n int) {
	for ; p.mask>>n&1 == 0; n++ {
	}
	return n
}

// flip changes the lowest bit of a field.
func (p place) flip(b []byte) {
	if len(b) >= p.at+p.size {
		n := p.shift()
		b[p.at+p.size-1-n/8] ^= 1 << (n % 8)
	}
}

// message is an FPDU of the target.
type message struct {
	fpdu
	t      *tester
	number int
}

// parse parses the headers that later comparisons rely on.
func (m *message) parse() {
	if len(m.ulpdu) > 0 && len(m.ulpdu) < ddp.HeaderLen(m.ulpdu) {
		m.t.Failf("message %d ends within its DDP header: % x", m.number, m.ulpdu)
	}
}

// idle reports whether the message is a WRITE of zero bytes.
func (m *message) idle() bool {
	return len(m.ulpdu) == ddp.TaggedLen && m.ulpdu[0]&0x80 != 0 && uint64(m.ulpdu[1]&0x0f) == opWrite
}

// op returns the name of the message for texts.
func (m *message) op() string {
	if len(m.ulpdu) < 2 {
		return "an empty FPDU"
	}
	return rdmap.Opcode(m.ulpdu[1] & 0x0f).String()
}

// field compares a field.
func (m *message) field(name string, want uint64) *message {
	m.t.Check(m.number, name)
	got, ok := fields[name].get(m.ulpdu)
	if !ok {
		m.t.Failf("message %d (%s) has no %s: % x", m.number, m.op(), name, m.ulpdu)
	}
	if got != want {
		m.t.Failf("%s of message %d (%s) is %#x, want %#x", name, m.number, m.op(), got, want)
	}
	return m
}

// value returns a field without comparing it.
func (m *message) value(name string) uint64 {
	got, ok := fields[name].get(m.ulpdu)
	if !ok {
		m.t.Failf("message %d (%s) has no %s: % x", m.number, m.op(), name, m.ulpdu)
	}
	return got
}

// is checks the opcode of the message.
func (m *message) is(opcode uint64) *message { return m.field("opcode", opcode) }

// payload returns the bytes after the DDP header.
func (m *message) payload() []byte {
	if len(m.ulpdu) == 0 {
		return nil
	}
	return m.ulpdu[ddp.HeaderLen(m.ulpdu):]
}

// carries compares the payload.
func (m *message) carries(want []byte) *message {
	m.t.Check(m.number, "payload")
	if got := m.payload(); !bytes.Equal(got, want) {
		m.t.Failf("message %d (%s) has a payload of %d bytes, % x, want %d, % x", m.number, m.op(), len(got), suite.Head(got), len(want),
			suite.Head(want))
	}
	return m
}

// framed checks a property of the FPDU.
func (m *message) framed(what string, ok bool) *message {
	m.t.Check(m.number, what)
	if !ok {
		m.t.Failf("the FPDU of message %d (%s): wrong %s", m.number, m.op(), what)
	}
	return m
}

func (m *message) crcRight() *message     { return m.framed("CRC", m.crc) }
func (m *message) markersRight() *message { return m.framed("markers", m.fpdu.markers) }
func (m *message) padZero() *message {
	return m.framed("pad", len(m.pad) > 0 && bytes.Count(m.pad, []byte{0}) == len(m.pad))
}

// alter changes a compared value as if the target had sent it.
func (m *message) alter(field string) {
	m.ulpdu = bytes.Clone(m.ulpdu)
	switch f, ok := fields[field]; {
	case ok:
		f.flip(m.ulpdu)
	case field == "payload" && len(m.payload()) == 0:
		m.ulpdu = append(m.ulpdu, 'x')
	case field == "payload", field == "quoted headers":
		m.ulpdu[len(m.ulpdu)-1] ^= 1
	case field == "CRC":
		m.crc, m.crcWord = !m.crc, m.crcWord^1
	case field == "markers":
		m.fpdu.markers = false
	case field == "pad":
		m.pad = []byte{1}
	case field == "place":
		m.first = false
	case field == "emptiness":
		m.ulpdu = []byte{0}
	case field == "size":
		m.size, m.ulpdu = m.size+1<<16, append(m.ulpdu, make([]byte, 1<<16)...)
	default:
		panic("no such field: " + field)
	}
}

// frame is the target's MPA request or reply.
type frame struct {
	t      *tester
	number int
	raw    []byte
}

var frameFields = map[string]place{
	"M": {16, 1, 0x80}, "C": {16, 1, 0x40}, "R": {16, 1, 0x20}, "S": {16, 1, 0x10}, "MPA's reserved bits": {16, 1, 0x0f},
	"revision": {17, 1, 0xff}, "PD_Length": {18, 2, all},
	"A": {20, 2, 0x8000}, "B": {20, 2, 0x4000}, "IRD": {20, 2, 0x3fff}, "RTR by WRITE": {22, 2, 0x8000}, "RTR by READ": {22, 2, 0x4000},
	"ORD": {22, 2, 0x3fff},
}

func (f *frame) field(name string, want uint64) *frame {
	f.t.Check(f.number, name)
	if got := f.value(name); got != want {
		f.t.Failf("%s of the target's MPA frame is %#x, want %#x", name, got, want)
	}
	return f
}

func (f *frame) value(name string) uint64 {
	got, ok := frameFields[name].get(f.raw)
	if !ok {
		f.t.Failf("the target's MPA frame has no %s: % x", name, f.raw)
	}
	return got
}

// key compares the first 16 bytes.
func (f *frame) key(want string) *frame {
	f.t.Check(f.number, "key")
	if got := string(f.raw[:16]); got != want {
		f.t.Failf("the key of the target's MPA frame is %q, want %q", got, want)
	}
	return f
}

// private returns the private data of the ULP.
func (f *frame) private() []byte {
	if f.raw[17] >= 2 && f.raw[16]&0x10 != 0 {
		return f.raw[min(frameLen+4, len(f.raw)):]
	}
	return f.raw[frameLen:]
}

func (f *frame) carries(want []byte) *frame {
	f.t.Check(f.number, "private data")
	if got := f.private(); !bytes.Equal(got, want) {
		f.t.Failf("the target's MPA frame has %d bytes of private data, % x, want % x", len(got), suite.Head(got), suite.Head(want))
	}
	return f
}

func (f *frame) alter(field string) {
	switch p, ok := frameFields[field]; {
	case ok:
		p.flip(f.raw)
	case field == "key":
		f.raw[0] ^= 1
	case field == "private data" && len(f.private()) == 0:
		f.raw = append(f.raw, 'x')
		binary.BigEndian.PutUint16(f.raw[18:], uint16(len(f.raw)-frameLen))
	case field == "private data":
		f.raw[len(f.raw)-1] ^= 1
	default:
		panic("no such field: " + field)
	}
}

// Segments that the tester sends.

// tagged returns the last segment of a tagged message.
func tagged(op rdmap.Opcode, stag uint32, to uint64, payload []byte) []byte {
	b := make([]byte, ddp.TaggedLen, ddp.TaggedLen+len(payload))
	(&ddp.Tagged{Last: true, RsvdULP: op.Control(), STag: stag, TO: to}).Encode(b)
	return append(b, payload...)
}

// untagged returns a segment of an untagged message.
func untagged(h ddp.Untagged, op rdmap.Opcode, payload []byte) []byte {
	b := make([]byte, ddp.UntaggedLen, ddp.UntaggedLen+len(payload))
	h.RsvdULP = op.Control()
	h.Encode(b)
	return append(b, payload...)
}

// write returns a WRITE of one segment to the region.
func (c *conn) write(off int, data []byte) []byte {
	return tagged(rdmap.Write, c.rkey, c.addr+uint64(off), data)
}

// message returns an untagged message of one segment, the next of its queue.
func (c *conn) message(op rdmap.Opcode, payload []byte) []byte {
	q := op.Info().Queue
	b := untagged(ddp.Untagged{Last: true, QN: q, MSN: c.msn[q]}, op, payload)
	c.msn[q]++
	return b
}

func (c *conn) sendMessage(data []byte) []byte { return c.message(rdmap.Send, data) }

// readRequest returns a READ of length bytes of the region, into the tester's STag at TO off.
func (c *conn) readRequest(off, length int) []byte {
	return c.read28(rdmap.ReadRequestHeader{SinkSTag: ourTag, SinkTO: uint64(off), Size: uint32(length), SourceSTag: c.rkey,
		SourceTO: c.addr + uint64(off)})
}

// read28 returns a READ request with a header.
func (c *conn) read28(h rdmap.ReadRequestHeader) []byte {
	b := make([]byte, rdmap.ReadRequestLen)
	h.Encode(b)
	return c.message(rdmap.ReadRequest, b)
}

// edit changes a byte of a segment.
func edit(b []byte, at int, value byte) []byte {
	b = bytes.Clone(b)
	b[at] = value
	return b
}

// respond returns the response to a READ request of the target.
func (c *conn) respond(m *message, data []byte) []byte {
	return tagged(rdmap.ReadResponse, uint32(m.value("sink STag")), m.value("sink TO"), data)
}
