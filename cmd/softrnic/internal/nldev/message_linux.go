package nldev

import (
	"encoding/binary"
	"syscall"

	"golang.org/x/sys/unix"
)

// Commands of the client NLDEV, and their attributes (linux/uapi/rdma/rdma_netlink.h).
const (
	clientNLDEV = 5

	cmdGet      = 1
	cmdPortGet  = 5
	cmdSysGet   = 6
	cmdResGet   = 9
	cmdResQPGet = 10
	cmdStatGet  = 17

	attrDevIndex      = 1
	attrDevName       = 2
	attrPortIndex     = 3
	attrFWVersion     = 5
	attrNodeGUID      = 6
	attrSysImageGUID  = 7
	attrPortState     = 12
	attrPortPhysState = 13
	attrNodeType      = 14
	attrResSummary    = 15
	attrResEntry      = 16
	attrResName       = 17
	attrResCurrent    = 18
	attrResQP         = 19
	attrResQPEntry    = 20
	attrResLQPN       = 21
	attrResRQPN       = 22
	attrResRQPSN      = 23
	attrResSQPSN      = 24
	attrResPathMig    = 25
	attrResType       = 26
	attrResState      = 27
	attrResPID        = 28
	attrNetdevIndex   = 50
	attrNetdevName    = 51
	attrNetNSMode     = 66
	attrDevProtocol   = 67
	attrStatRes       = 75
	attrHWCounters    = 80
	attrHWEntry       = 81
	attrHWName        = 82
	attrHWValue       = 83
	attrCopyOnFork    = 93
)

const (
	headerSize = unix.SizeofNlMsghdr
	attrHeader = unix.SizeofNlAttr
	// maxMessage is the size of the buffer in which rdma receives.
	maxMessage = 4096
)

var native = binary.NativeEndian

// attributes are encoded attributes.
type attributes []byte

func (a *attributes) bytes(kind uint16, value []byte) {
	b := native.AppendUint16(*a, uint16(attrHeader+len(value)))
	b = append(native.AppendUint16(b, kind), value...)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	*a = b
}

func (a *attributes) u8(kind uint16, v uint8)        { a.bytes(kind, []byte{v}) }
func (a *attributes) u32(kind uint16, v uint32)      { a.bytes(kind, native.AppendUint32(nil, v)) }
func (a *attributes) u64(kind uint16, v uint64)      { a.bytes(kind, native.AppendUint64(nil, v)) }
func (a *attributes) text(kind uint16, v string)     { a.bytes(kind, append([]byte(v), 0)) }
func (a *attributes) nest(kind uint16, v attributes) { a.bytes(kind|unix.NLA_F_NESTED, v) }

// u32Of returns the value of an attribute of 32 bits.
func (a attributes) u32Of(kind uint16) (v uint32, ok bool) {
	for len(a) >= attrHeader {
		length := int(native.Uint16(a))
		if length < attrHeader || length > len(a) {
			return 0, false
		}
		if native.Uint16(a[2:])&^unix.NLA_F_NESTED == kind && length >= attrHeader+4 {
			return native.Uint32(a[attrHeader:]), true
		}
		a = a[min((length+3)&^3, len(a)):]
	}
	return 0, false
}

// request is a message of rdma.
type request struct {
	header []byte
	kind   uint16
	flags  uint16
	seq    uint32
	attrs  attributes
}

// parse returns a request, or false for another message.
func parse(b []byte) (r request, ok bool) {
	if len(b) < headerSize || int(native.Uint32(b)) > len(b) || native.Uint32(b) < headerSize {
		return r, false
	}
	return request{header: b[:headerSize], kind: native.Uint16(b[4:]), flags: native.Uint16(b[6:]), seq: native.Uint32(b[8:]),
		attrs: b[headerSize:native.Uint32(b)]}, true
}

func (r *request) dump() bool { return r.flags&unix.NLM_F_DUMP == unix.NLM_F_DUMP }

// message returns a message to the socket with a port ID, as the kernel's.
func (r *request) message(kind, flags uint16, port uint32, payload []byte) []byte {
	b := native.AppendUint32(nil, uint32(headerSize+len(payload)))
	b = native.AppendUint16(native.AppendUint16(b, kind), flags)
	return append(native.AppendUint32(native.AppendUint32(b, r.seq), port), payload...)
}

// failed returns the answer with an errno; 0 acknowledges the request.
func (r *request) failed(port uint32, errno syscall.Errno) []byte {
	return r.message(unix.NLMSG_ERROR, 0, port, append(native.AppendUint32(nil, uint32(-int32(errno))), r.header...))
}
