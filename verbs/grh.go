package verbs

import (
	"encoding/binary"
	"net/netip"
)

// GRHLen is the number of bytes in front of the message in a UD QP's receive buffer: the IPv6 header that it came with,
// or 20 bytes of no meaning and the IPv4 header (IBTA A17.4.5.3).
const GRHLen = 40

// InitAHFromWC is the address vector that answers a datagram which arrived at the port with completion wc; grh is the
// first GRHLen bytes of its buffer (ibv_init_ah_from_wc).
func (d *Device) InitAHFromWC(port uint8, wc *WC, grh []byte) (AHAttr, error) {
	const op = "init AH from WC"
	switch {
	case wc == nil:
		return AHAttr{}, Errorf(ErrInvalid, op, "no completion")
	case wc.Flags&WCGRH == 0:
		return AHAttr{}, Errorf(ErrInvalid, op, "the completion has no GRH flag: the sender is not known without")
	}
	h, ok := parseGRH(grh)
	if !ok {
		return AHAttr{}, Errorf(ErrInvalid, op, "the %d bytes given are no GRH: give the first %d of the buffer", len(grh), GRHLen)
	}
	table, err := d.GIDTable(port)
	if err != nil {
		return AHAttr{}, err
	}
	for i := range table {
		if table[i].GID == h.dst && table[i].Type == h.kind {
			return AHAttr{
				GRH: GRH{
					DGID: h.src, FlowLabel: h.flowLabel, SGIDIndex: uint8(table[i].Index), HopLimit: 0xff,
					TrafficClass: h.trafficClass,
				},
				DLID: wc.SLID, SL: wc.SL, SrcPathBits: wc.DLIDPathBits, IsGlobal: true, PortNum: port,
			}, nil
		}
	}
	return AHAttr{}, Errorf(ErrInvalid, op, "the datagram was sent to %v, which is no %v GID of port %d", h.dst.Addr(), h.kind, port)
}

// receivedGRH is what the 40 bytes tell.
type receivedGRH struct {
	src, dst     GID
	trafficClass uint8
	flowLabel    uint32
	kind         GIDType
}

// parseGRH reads the 40 bytes, whose kind only they tell: an IPv4 header with a right checksum is one, because the bytes
// before it may be anything.
func parseGRH(b []byte) (h receivedGRH, ok bool) {
	if len(b) < GRHLen {
		return h, false
	}
	if v4 := b[20:40]; v4[0] == 0x45 && onesSum(v4) == 0xffff {
		h.src, h.dst = GIDFromAddr(netip.AddrFrom4([4]byte(v4[12:]))), GIDFromAddr(netip.AddrFrom4([4]byte(v4[16:])))
		h.trafficClass, h.kind = v4[1], GIDTypeRoCEv2
		return h, true
	}
	if b[0]>>4 != 6 {
		return h, false
	}
	word := binary.BigEndian.Uint32(b)
	h.trafficClass, h.flowLabel = uint8(word>>20), word&(1<<20-1)
	h.src, h.dst = GID(b[8:24]), GID(b[24:40])
	const nextIBA = 0x1b // a BTH without UDP before it
	if h.kind = GIDTypeRoCEv2; b[6] == nextIBA {
		h.kind = GIDTypeRoCEv1
	}
	return h, true
}

// onesSum is the ones' complement sum of an IPv4 header: 0xffff if its checksum is right.
func onesSum(b []byte) uint16 {
	var sum uint32
	for i := 0; i < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	sum = sum>>16 + sum&0xffff
	return uint16(sum>>16 + sum)
}
