package netstack

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"syscall"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/stack"
)

// RoCE v1 has a global route header after the Ethernet header (IBTA Vol 1 §8.3, A16.3):
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+-------+---------------+---------------------------------------+
//	|IPVer 6|    TClass     |               FlowLabel               |
//	+-------+---------------+-------+---------------+---------------+
//	|            PayLen             |    NxtHdr     |    HopLmt     |
//	+-------------------------------+---------------+---------------+
//	|                        SGID, 16 bytes                         |
//	+---------------------------------------------------------------+
//	|                        DGID, 16 bytes                         |
//	+---------------------------------------------------------------+
//
// PayLen is the number of bytes after the header, including the ICRC. NxtHdr is the value for a
// BTH.
const (
	grhLen     = 40
	grhNextIBA = 0x1b
)

// putGRH writes a header without its length.
func putGRH(b []byte, a *stack.PathAttr) {
	binary.BigEndian.PutUint32(b, 6<<28|uint32(a.TrafficClass)<<20|a.FlowLabel)
	b[6], b[7] = grhNextIBA, a.HopLimit
	src, dst := a.Src.As16(), a.Dst.As16()
	copy(b[8:], src[:])
	copy(b[24:], dst[:])
}

// parseV1 makes d the packet in f, a frame of RoCE v1.
func parseV1(d *stack.Datagram, f *link.Frame) verdict {
	b := f.Data[ethLen:]
	if len(b) < grhLen || f.Segmentation != link.NoSegmentation || b[0]>>4 != 6 || b[6] != grhNextIBA {
		return malformed
	}
	// Bytes after the packet are Ethernet padding.
	total := grhLen + int(binary.BigEndian.Uint16(b[4:]))
	if total > len(b) || total == grhLen {
		return malformed
	}
	d.Src, d.Dst = netip.AddrFrom16([16]byte(b[8:])).Unmap(), netip.AddrFrom16([16]byte(b[24:])).Unmap()
	if !isHostAddr(d.Src) || d.Src.IsLoopback() {
		return malformed
	}
	d.V1 = true
	d.TrafficClass, d.HopLimit = uint8(binary.BigEndian.Uint16(b)>>4), b[7]
	d.Header, d.Payload = b[:grhLen:grhLen], b[grhLen:total:total]
	d.SegmentSize = len(d.Payload)
	return whole
}

// macFromLinkLocal returns the MAC from which a link-local address was made (RFC 4291 appendix A).
// Linux finds the MAC of a GID in this way. ok is false if the address was not made from a MAC.
func macFromLinkLocal(a netip.Addr) (mac []byte, ok bool) {
	b := a.As16()
	if !a.Is6() || !a.IsLinkLocalUnicast() || b[11] != 0xff || b[12] != 0xfe {
		return nil, false
	}
	return []byte{b[8] ^ 2, b[9], b[10], b[13], b[14], b[15]}, true
}

// direct returns an error for a RoCE v1 path through a gateway: RoCE v1 is not routed.
func (t *pathGroup) direct(next netip.Addr) error {
	if t.attr.V1 && next != t.attr.Dst {
		return fmt.Errorf("path to %v: RoCE v1 does not pass the gateway %v: %w", t.attr.Dst, next, syscall.ENETUNREACH)
	}
	return nil
}
