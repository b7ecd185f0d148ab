package mad

import (
	"encoding/binary"
	"errors"
	"net/netip"
)

// IPCMLen is the length of an [IPCM], in bytes.
const IPCMLen = 36

// Errors of [ParseIPCM].
var (
	ErrIPCMLength  = errors.New("mad: private data is shorter than the IP CM header")
	ErrIPCMVersion = errors.New("mad: IP CM header of an unknown version")
)

// IPCM is the RDMA IP CM header at the start of the private data of a REQ or SIDR_REQ (IBTA annex
// A11 §11.3). With a service ID, its addresses and port define an IP connection.
//
//	+-------+-------+------+-------+-----------------------------+
//	| major | minor | IPv  |  0    |         source port         |
//	+-------+-------+------+-------+-----------------------------+
//	|       source address: IPv6, or 12 zeros and IPv4           |
//	+------------------------------------------------------------+
//	|       destination address                                  |
//	+------------------------------------------------------------+
type IPCM struct {
	Src     netip.Addr
	SrcPort uint16
	Dst     netip.Addr // of the same family
}

// ParseIPCM parses the header at the start of b, a message's private data. The error is
// [ErrIPCMLength] or [ErrIPCMVersion].
func ParseIPCM(b []byte) (h IPCM, err error) {
	if len(b) < IPCMLen {
		return h, ErrIPCMLength
	}
	if b[0] != 0 {
		return h, ErrIPCMVersion
	}
	h.SrcPort = binary.BigEndian.Uint16(b[2:])
	switch b[1] >> 4 {
	case 4:
		h.Src, h.Dst = netip.AddrFrom4([4]byte(b[16:])), netip.AddrFrom4([4]byte(b[32:]))
	case 6:
		h.Src, h.Dst = netip.AddrFrom16([16]byte(b[4:])), netip.AddrFrom16([16]byte(b[20:]))
	default:
		return h, ErrIPCMVersion
	}
	return h, nil
}

// Append appends the header to b.
func (h *IPCM) Append(b []byte) []byte {
	var x [IPCMLen]byte
	binary.BigEndian.PutUint16(x[2:], h.SrcPort)
	if h.Src.Is4() {
		x[1] = 4 << 4
		src, dst := h.Src.As4(), h.Dst.As4()
		copy(x[16:], src[:])
		copy(x[32:], dst[:])
	} else {
		x[1] = 6 << 4
		src, dst := h.Src.As16(), h.Dst.As16()
		copy(x[4:], src[:])
		copy(x[20:], dst[:])
	}
	return append(b, x[:]...)
}

// ServiceID returns the service ID of a port in one of rdma_cm's port spaces, such as 0x0106 of
// RDMA_PS_TCP (annex A11 §11.2).
func ServiceID(space, port uint16) uint64 { return uint64(space)<<16 | uint64(port) }
