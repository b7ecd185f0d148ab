package verbs

import (
	"encoding/binary"
	"net/netip"
)

// GRHLen is the number of bytes before the message in a UD QP's receive buffer. They are the
// packet's IPv6 header, or 20 undefined bytes and its IPv4 header (IBTA A17.4.5.3).
const GRHLen = 40

// InitAHFromWC returns the address vector for replying to a datagram (ibv_init_ah_from_wc). wc is
// the completion of the datagram, which was received on the port. grh has the first GRHLen bytes of
// its buffer.
func (d *Device) InitAHFromWC(port uint8, wc *WC, grh []byte) (AHAttr, error) {
	const op = "init AH from WC"
	switch {
	case wc == nil:
		return AHAttr{}, Errorf(ErrInvalid, op, "no completion")
	case wc.Flags&WCGRH == 0:
		return AHAttr{}, Errorf(ErrInvalid, op, "the completion has no GRH flag, without which the sender is unknown")
	}
	h, ok := parseGRH(grh)
	if !ok {
		return AHAttr{}, Errorf(ErrInvalid, op, "the %d bytes of grh are not a GRH: pass the first %d bytes of the buffer",
			len(grh), GRHLen)
	}
	table, err := d.gidTable(port)
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
	return AHAttr{}, Errorf(ErrInvalid, op, "the datagram was sent to %v, which is not a %v GID of port %d", h.dst.Addr(), h.kind, port)
}

// receivedGRH has the fields of a received GRH.
type receivedGRH struct {
	src, dst     GID
	trafficClass uint8
	flowLabel    uint32
	kind         GIDType
}

// parseGRH parses the 40 bytes, which alone determine whether they have an IPv4 or an IPv6 header.
// It assumes IPv4 if the last 20 bytes are an IPv4 header with a valid checksum, because the bytes
// before it are undefined.
func parseGRH(b []byte) (h receivedGRH, ok bool) {
	if len(b) < GRHLen {
		return h, false
	}
	if v4 := b[20:40]; v4[0] == 0x45 && validChecksum(v4) {
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
	const nextIBA = 0x1b // the BTH follows without a UDP header
	if h.kind = GIDTypeRoCEv2; b[6] == nextIBA {
		h.kind = GIDTypeRoCEv1
	}
	return h, true
}

// validChecksum reports whether the checksum of an IPv4 header is right: the one's complement sum
// of its 16-bit words, of which it is one, has no zero bit (RFC 791 §3.1).
func validChecksum(header []byte) bool {
	var sum uint32
	for ; len(header) > 0; header = header[2:] {
		sum += uint32(binary.BigEndian.Uint16(header))
	}
	return sum>>16+sum&0xffff == 0xffff
}
