package trace

import (
	"encoding/binary"
)

// maxDepth is the most headers of tunnels and VLANs that are followed.
const maxDepth = 16

// enter reads a packet within another.
func (f *frame) enter(inner func()) {
	if f.point.depth++; f.point.depth > maxDepth {
		f.opaque("too many tunnels within each other")
		return
	}
	f.kind, f.rule, f.header, f.payload, f.counts, f.checksum = foreign, "", nil, nil, false, absent
	inner()
}

// UDP ports of tunnels.
const (
	portVXLAN      = 4789
	portLinuxVXLAN = 8472 // of Linux before the assignment, and of Flannel
	portGeneve     = 6081
)

// opaquePorts are UDP ports of tunnels that are not followed.
var opaquePorts = map[uint16]string{1701: "L2TP", 2152: "GTP-U", 3544: "Teredo", 4500: "IPsec in UDP, encrypted", 4790: "VXLAN-GPE",
	6080: "GUE", 6635: "MPLS in UDP", 51820: "WireGuard, encrypted"}

// tunnel reads the packet within a UDP datagram, if it is one of a tunnel.
func (f *frame) tunnel() {
	b := f.payload
	switch {
	case f.dstPort == portVXLAN || f.dstPort == portLinuxVXLAN: // RFC 7348
		if len(b) < 8 {
			f.short("a VXLAN header")
		} else if b[0] != 8 {
			f.opaque("VXLAN with flags that are not known")
		} else {
			f.enter(func() { f.ethernet(b[8:]) })
		}
	case f.dstPort == portGeneve: // RFC 8926
		if len(b) < 8 || len(b) < 8+int(b[0]&63)*4 {
			f.short("a Geneve header")
		} else if b[0]>>6 != 0 || b[1]&0x80 != 0 {
			f.opaque("Geneve of another version, or for its control")
		} else {
			f.enter(func() { f.bridged(binary.BigEndian.Uint16(b[2:]), b[8+int(b[0]&63)*4:]) })
		}
	case opaquePorts[f.dstPort] != "":
		f.opaque(opaquePorts[f.dstPort])
	case len(b) >= 32 && f.length%16 == 0 && binary.LittleEndian.Uint32(b) == 4:
		f.opaque("WireGuard, encrypted") // its data messages, on any port
	}
}

// bridged reads what follows a type that is an EtherType, or says that an Ethernet frame follows.
func (f *frame) bridged(t uint16, b []byte) {
	if t == etherBridge {
		f.ethernet(b)
	} else {
		f.etherType(t, b)
	}
}

// gre reads the packet within one of GRE (RFC 2784, RFC 2890).
func (f *frame) gre(b []byte) {
	if len(b) < 4 {
		f.short("a GRE header")
		return
	}
	n := 4
	for _, flag := range []byte{0x80, 0x20, 0x10} { // checksum, key, sequence number
		if b[0]&flag != 0 {
			n += 4
		}
	}
	t := binary.BigEndian.Uint16(b[2:])
	switch {
	case b[0]&0x4f != 0 || b[1] != 0: // source routes, another version
		f.opaque("GRE of another version")
	case len(b) < n:
		f.short("a GRE header")
	case t == 0x88be && n == 4:
		f.enter(func() { f.ethernet(b[n:]) }) // ERSPAN type I
	case t == 0x88be || t == 0x22eb:
		if t == 0x88be {
			n += 8
		} else if n += 12; len(b) >= n && b[n-1]&1 != 0 {
			n += 8
		}
		if len(b) < n {
			f.short("an ERSPAN header")
			return
		}
		f.enter(func() { f.ethernet(b[n:]) })
	default:
		f.enter(func() { f.bridged(t, b[n:]) })
	}
}

// authenticated reads what follows an IPsec authentication header (RFC 4302).
func (f *frame) authenticated(b []byte, n int) {
	if len(b) < 12 || len(b) < int(b[1])*4+8 {
		f.short("an authentication header")
		return
	}
	h := int(b[1])*4 + 8
	f.transport(b[0], nil, b[h:], n-h)
}

// mpls reads the packet behind a stack of labels (RFC 3032), which do not say what follows.
func (f *frame) mpls(b []byte) {
	for bottom := false; !bottom; b = b[4:] {
		if len(b) < 4 {
			f.short("an MPLS label")
			return
		}
		bottom = b[2]&1 != 0
	}
	if len(b) > 0 && (b[0]>>4 == 4 || b[0]>>4 == 6) {
		f.enter(func() { f.ip(b) })
		return
	}
	f.opaque("MPLS pseudowires")
}

// ppp reads the packet of a PPPoE session (RFC 2516).
func (f *frame) ppp(b []byte) {
	switch {
	case len(b) < 8:
		f.short("a PPPoE header")
	case binary.BigEndian.Uint16(b[6:]) == 0x0021 || binary.BigEndian.Uint16(b[6:]) == 0x0057:
		f.enter(func() { f.ip(b[8:]) })
	case b[6] >= 0xc0 || b[6] >= 0x80 && b[6] < 0x90:
		f.foreign("control of PPP")
	default:
		f.opaque("PPP of another protocol")
	}
}
