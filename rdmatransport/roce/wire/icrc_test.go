package wire_test

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/softrnic/softrnic/rdmatransport/roce/wire"
)

// bitwise is the ICRC straight from its definition, one bit at a time: masked lists the bytes, and which of their
// bits, that count as ones.
func bitwise(header, b []byte) uint32 {
	masked := map[int]byte{len(header) - 2: 0xff, len(header) - 1: 0xff, len(header) + 4: 0xff}
	if len(header) == 28 {
		for _, i := range []int{1, 8, 10, 11} {
			masked[i] = 0xff
		}
	} else {
		masked[0] = 0x0f
		for _, i := range []int{1, 2, 3, 7} {
			masked[i] = 0xff
		}
	}
	all := append(bytes.Clone(header), b...)
	for i, m := range masked {
		all[i] |= m
	}
	crc := ^uint32(0)
	for _, x := range append(bytes.Repeat([]byte{0xff}, 8), all...) {
		crc ^= uint32(x)
		for range 8 {
			crc = crc>>1 ^ 0xedb88320&-(crc&1)
		}
	}
	return ^crc
}

// datagram makes an IP and UDP header with something in every field, and a SEND Only of n payload bytes.
func datagram(ip, n int) (header, payload []byte) {
	header = make([]byte, ip+8)
	for i := range header {
		header[i] = byte(i*37 + 11)
	}
	header[0] = 0x45
	if ip == 40 {
		header[0] = 0x63
	}
	p := wire.Packet{BTH: wire.BTH{
		Opcode: wire.RCSendOnly, PKey: wire.DefaultPKey, DestQP: 0x123456, PSN: 0xfffffe, AckReq: true, Pad: wire.PadLen(n),
	}}
	p.Payload = make([]byte, n)
	for i := range p.Payload {
		p.Payload[i] = byte(i * 7)
	}
	payload = make([]byte, p.Size())
	p.Encode(header, payload)
	return header, payload
}

func TestICRCOfEveryLength(t *testing.T) {
	for _, ip := range []int{20, 40} {
		for n := range 200 {
			header, b := datagram(ip, n)
			want := bitwise(header, b[:len(b)-4])
			if got := binary.LittleEndian.Uint32(b[len(b)-4:]); got != want {
				t.Fatalf("IP header %d, payload %d: ICRC %08x, want %08x", ip, n, got, want)
			}
		}
	}
}

// TestICRCCovers flips every bit of a packet: those that routers may change must not matter, all others must.
func TestICRCCovers(t *testing.T) {
	free := map[int]map[int]byte{
		20: {1: 0xff, 8: 0xff, 10: 0xff, 11: 0xff, 26: 0xff, 27: 0xff, 28 + 4: 0xff},
		40: {0: 0x0f, 1: 0xff, 2: 0xff, 3: 0xff, 7: 0xff, 46: 0xff, 47: 0xff, 48 + 4: 0xff},
	}
	for _, ip := range []int{20, 40} {
		header, payload := datagram(ip, 61)
		all := append(header, payload...)
		for i := range all {
			for bit := byte(1); bit != 0; bit <<= 1 {
				all[i] ^= bit
				ok := wire.CheckICRC(all[:ip+8], all[ip+8:])
				if ok != (free[ip][i]&bit != 0) {
					t.Errorf("IP header %d: byte %d bit %#02x flipped: CheckICRC %v", ip, i, bit, ok)
				}
				all[i] ^= bit
			}
		}
	}
}

func TestCheckICRCOfNonsense(t *testing.T) {
	header, b := datagram(20, 8)
	for n := range 16 {
		if wire.CheckICRC(header, b[:n]) {
			t.Errorf("%d bytes have a valid ICRC", n)
		}
	}
	for n := range header {
		if wire.CheckICRC(header[:n], b) {
			t.Errorf("valid behind a header of %d bytes", n)
		}
	}
}
