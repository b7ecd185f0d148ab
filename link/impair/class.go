package impair

import (
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/softrnic/softrnic/link"
)

// Class returns a rule's Match for a class of packets by name: any, tcp, roce (any RoCEv2 packet),
// send, write, read-request, read-response, atomic, ack, nak, rnr-nak, atomic-ack, cnp, cm (sent to
// QP 1).
func Class(name string) (func(frame []byte) bool, error) {
	if m, ok := classes[name]; ok {
		return m, nil
	}
	return nil, fmt.Errorf("unknown class of packets %q: one of %s", name, strings.Join(slices.Sorted(maps.Keys(classes)), ", "))
}

var classes = map[string]func([]byte) bool{
	"any":           func([]byte) bool { return true },
	"tcp":           func(f []byte) bool { proto, _ := transport(f); return proto == 6 },
	"roce":          func(f []byte) bool { return bth(f) != nil },
	"send":          opcodes(0x00, 0x01, 0x02, 0x03, 0x04, 0x05, 0x16, 0x17),
	"write":         opcodes(0x06, 0x07, 0x08, 0x09, 0x0a, 0x0b),
	"read-request":  opcodes(0x0c),
	"read-response": opcodes(0x0d, 0x0e, 0x0f, 0x10),
	"atomic":        opcodes(0x13, 0x14),
	"atomic-ack":    opcodes(0x12),
	"ack":           acknowledge(0x00),
	"rnr-nak":       acknowledge(0x20),
	"nak":           acknowledge(0x60),
	"cnp":           func(f []byte) bool { b := bth(f); return b != nil && b[0] == 0x81 },
	"cm": func(f []byte) bool {
		b := bth(f)
		return b != nil && b[0]>>5 == 3 && [3]byte(b[5:8]) == [3]byte{0, 0, 1}
	},
}

// opcodes matches the lower five bits of the BTH opcode, which mean the same for RC, UC and UD
// (IBTA table 38).
func opcodes(of ...byte) func([]byte) bool {
	return func(f []byte) bool {
		b := bth(f)
		return b != nil && b[0]>>5 <= 3 && slices.Contains(of, b[0]&0x1f)
	}
}

// acknowledge matches an RC acknowledgement by the kind in its AETH syndrome, bits 6 and 5 (IBTA
// table 44).
func acknowledge(kind byte) func([]byte) bool {
	return func(f []byte) bool {
		b := bth(f)
		return len(b) > 12 && b[0] == 0x11 && b[12]&0x60 == kind
	}
}

// bth returns a RoCEv2 packet from its BTH on, or nil if f is not one.
func bth(f []byte) []byte {
	proto, segment := transport(f)
	if proto != 17 || len(segment) < 8+12 || binary.BigEndian.Uint16(segment[2:]) != 4791 {
		return nil
	}
	return segment[8:]
}

// transport returns the protocol and the bytes after the IP header.
func transport(f []byte) (proto byte, segment []byte) {
	if len(f) < link.EthernetHeaderLen {
		return 0, nil
	}
	n := link.NetworkOffset(f)
	ip := f[n:]
	switch binary.BigEndian.Uint16(f[n-2:]) {
	case 0x0800:
		if len(ip) >= 20 {
			if n := int(ip[0]&15) * 4; n >= 20 && n <= len(ip) {
				return ip[9], ip[n:]
			}
		}
	case 0x86dd:
		if len(ip) >= 40 {
			return ip[6], ip[40:]
		}
	}
	return 0, nil
}
