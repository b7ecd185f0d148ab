package raw

import (
	"encoding/binary"

	"github.com/softrnic/softrnic/verbs"
)

// headers are the headers of a frame. Missing or incomplete ones are nil.
type headers struct {
	eth       []byte
	etherType uint16 // after the VLAN tag
	vlan      uint16
	tagged    bool
	ip4, ip6  []byte // without options and extensions
	proto     uint8  // the protocol of ports
	ports     []byte // source and destination port
}

const (
	ethLen  = 14
	ip4Len  = 20
	ip6Len  = 40
	typeIP4 = 0x0800
	typeIP6 = 0x86dd
	tagLen  = 4
	tcp     = 6
	udp     = 17
)

// parse finds the headers. Ports are found after the options of IPv4, but not after extension
// headers of IPv6.
func (h *headers) parse(frame []byte) {
	if len(frame) < ethLen {
		return
	}
	h.eth = frame
	h.etherType = binary.BigEndian.Uint16(frame[12:])
	rest := frame[ethLen:]
	if (h.etherType == 0x8100 || h.etherType == 0x88a8) && len(rest) >= tagLen {
		h.tagged, h.vlan, h.etherType = true, binary.BigEndian.Uint16(rest), binary.BigEndian.Uint16(rest[2:])
		rest = rest[tagLen:]
	}
	switch {
	case h.etherType == typeIP4 && len(rest) >= ip4Len && rest[0]>>4 == 4:
		n := int(rest[0]&15) * 4
		if n < ip4Len || len(rest) < n {
			return
		}
		h.ip4, h.proto = rest, rest[9]
		const offset = 0x1fff
		if binary.BigEndian.Uint16(rest[6:])&offset != 0 {
			return
		}
		rest = rest[n:]
	case h.etherType == typeIP6 && len(rest) >= ip6Len && rest[0]>>4 == 6:
		h.ip6, h.proto = rest, rest[6]
		rest = rest[ip6Len:]
	default:
		return
	}
	if (h.proto == tcp || h.proto == udp) && len(rest) >= 4 {
		h.ports = rest
	}
}

// matcher has the requirements of a flow spec on one kind of header.
type matcher struct {
	of                  headerKind
	bytes               []byteAt
	proto               uint8 // of ports
	etherType, typeMask uint16
	vlan, vlanMask      uint16
}

type headerKind uint8

const (
	noHeader headerKind = iota // of an unknown spec: it matches nothing
	eth
	ip4
	ip6
	ports
)

// byteAt is a byte of a header to compare.
type byteAt struct {
	at        int
	val, mask byte
}

func newMatcher(s verbs.FlowSpec) (m matcher) {
	switch s := s.(type) {
	case *verbs.FlowSpecEth:
		m = matcher{of: eth,
			etherType: s.Val.EtherType & s.Mask.EtherType, typeMask: s.Mask.EtherType,
			vlan: s.Val.VLANTag & s.Mask.VLANTag, vlanMask: s.Mask.VLANTag}
		m.add(0, s.Val.DstMAC[:], s.Mask.DstMAC[:])
		m.add(6, s.Val.SrcMAC[:], s.Mask.SrcMAC[:])
	case *verbs.FlowSpecIPv4:
		m.of = ip4
		m.add(12, s.Val.SrcIP[:], s.Mask.SrcIP[:])
		m.add(16, s.Val.DstIP[:], s.Mask.DstIP[:])
	case *verbs.FlowSpecIPv4Ext:
		m.of = ip4
		m.add(12, s.Val.SrcIP[:], s.Mask.SrcIP[:])
		m.add(16, s.Val.DstIP[:], s.Mask.DstIP[:])
		m.add(9, []byte{s.Val.Proto}, []byte{s.Mask.Proto})
		m.add(1, []byte{s.Val.TOS}, []byte{s.Mask.TOS})
		m.add(8, []byte{s.Val.TTL}, []byte{s.Mask.TTL})
		m.add(6, []byte{s.Val.Flags << 5}, []byte{s.Mask.Flags << 5})
	case *verbs.FlowSpecIPv6:
		m.of = ip6
		word := func(f verbs.FlowIPv6Filter) []byte {
			return binary.BigEndian.AppendUint32(nil, uint32(f.TrafficClass)<<20|f.FlowLabel)
		}
		m.add(0, word(s.Val), word(s.Mask))
		m.add(6, []byte{s.Val.NextHdr}, []byte{s.Mask.NextHdr})
		m.add(7, []byte{s.Val.HopLimit}, []byte{s.Mask.HopLimit})
		m.add(8, s.Val.SrcIP[:], s.Mask.SrcIP[:])
		m.add(24, s.Val.DstIP[:], s.Mask.DstIP[:])
	case *verbs.FlowSpecTCP:
		m.addPorts(tcp, s.Val, s.Mask)
	case *verbs.FlowSpecUDP:
		m.addPorts(udp, s.Val, s.Mask)
	}
	return m
}

// add requires val at an offset, in the bits of mask.
func (m *matcher) add(at int, val, mask []byte) {
	for i := range mask {
		if mask[i] != 0 {
			m.bytes = append(m.bytes, byteAt{at + i, val[i] & mask[i], mask[i]})
		}
	}
}

func (m *matcher) addPorts(proto uint8, val, mask verbs.FlowTCPUDPFilter) {
	m.of, m.proto = ports, proto
	word := func(f verbs.FlowTCPUDPFilter) []byte {
		return binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, f.SrcPort), f.DstPort)
	}
	m.add(0, word(val), word(mask))
}

// match reports whether the headers match the spec.
func (m *matcher) match(h *headers) bool {
	switch m.of {
	case eth:
		return m.in(h.eth) && h.etherType&m.typeMask == m.etherType && h.vlan&m.vlanMask == m.vlan &&
			(h.tagged || m.vlanMask == 0)
	case ip4:
		return m.in(h.ip4)
	case ip6:
		return m.in(h.ip6)
	case ports:
		return h.proto == m.proto && m.in(h.ports)
	}
	return false
}

// in reports whether a header exists and has the required bytes.
func (m *matcher) in(header []byte) bool {
	if header == nil {
		return false
	}
	for _, b := range m.bytes {
		if header[b.at]&b.mask != b.val {
			return false
		}
	}
	return true
}
