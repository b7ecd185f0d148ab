package wire_test

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"github.com/softrnic/softrnic/rdmatransport/wire"
)

// bitwise computes the ICRC from its definition, bit by bit. masked lists the bytes that have bits
// which count as ones, and these bits.
func bitwise(header, b []byte) uint32 {
	masked := map[int]byte{len(header) + 4: 0xff}
	if len(header) != wire.GRHLen { // the UDP checksum
		masked[len(header)-2], masked[len(header)-1] = 0xff, 0xff
	}
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

// headerLens are the lengths of IPv4 and UDP, of IPv6 and UDP, and of a GRH.
var headerLens = []int{28, 48, wire.GRHLen}

// datagram returns a header of h bytes with every field set, and a SEND Only with n bytes of
// payload.
func datagram(h, n int) (header, payload []byte) {
	header = make([]byte, h)
	for i := range header {
		header[i] = byte(i*37 + 11)
	}
	header[0] = 0x45
	if h != 28 {
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
	for _, h := range headerLens {
		for n := range 200 {
			header, b := datagram(h, n)
			want := bitwise(header, b[:len(b)-4])
			if got := binary.LittleEndian.Uint32(b[len(b)-4:]); got != want {
				t.Fatalf("header of %d, payload %d: ICRC %08x, want %08x", h, n, got, want)
			}
		}
	}
}

// TestICRCCovers flips every bit of a packet. Bits that routers may change must not matter, and all
// others must.
func TestICRCCovers(t *testing.T) {
	free := map[int]map[int]byte{
		28:          {1: 0xff, 8: 0xff, 10: 0xff, 11: 0xff, 26: 0xff, 27: 0xff, 28 + 4: 0xff},
		48:          {0: 0x0f, 1: 0xff, 2: 0xff, 3: 0xff, 7: 0xff, 46: 0xff, 47: 0xff, 48 + 4: 0xff},
		wire.GRHLen: {0: 0x0f, 1: 0xff, 2: 0xff, 3: 0xff, 7: 0xff, 40 + 4: 0xff},
	}
	for _, h := range headerLens {
		header, payload := datagram(h, 61)
		all := append(header, payload...)
		for i := range all {
			for bit := byte(1); bit != 0; bit <<= 1 {
				all[i] ^= bit
				ok := wire.CheckICRC(all[:h], all[h:])
				if ok != (free[h][i]&bit != 0) {
					t.Errorf("header of %d: byte %d bit %#02x flipped: CheckICRC %v", h, i, bit, ok)
				}
				all[i] ^= bit
			}
		}
	}
}

func TestCheckICRCOfNonsense(t *testing.T) {
	header, b := datagram(28, 8)
	for n := range 16 {
		if wire.CheckICRC(header, b[:n]) {
			t.Errorf("%d bytes have a valid ICRC", n)
		}
	}
	for n := range header {
		if wire.CheckICRC(header[:n], b) {
			t.Errorf("valid after a header of %d bytes", n)
		}
	}
}

// TestRunICRC checks that packets with a common header have the same ICRCs as single packets, in
// any order of opcodes and QPs.
func TestRunICRC(t *testing.T) {
	for _, h := range headerLens {
		r := rand.New(rand.NewPCG(1, uint64(h)))
		var run wire.Run
		header, b := datagram(h, 300)
		for i := range 2000 {
			n := len(b) - 4
			switch r.IntN(8) {
			case 0:
				// Another opcode, flag or QP; or the byte that counts as ones.
				b[r.IntN(8)] ^= byte(r.Uint32())
			case 1:
				n = wire.BTHLen + r.IntN(n-wire.BTHLen+1)
			}
			putLengths(header, n+4)
			if h == 28 {
				binary.BigEndian.PutUint16(header[4:], uint16(r.Uint32()))
			}
			binary.BigEndian.PutUint32(b[8:], r.Uint32())
			want := bitwise(header, b[:n])
			if got := run.ICRC(header, b[:n]); got != want {
				t.Fatalf("header of %d, packet %d: ICRC %08x, want %08x", h, i, got, want)
			}
			pkt := append(bytes.Clone(b[:n]), 0, 0, 0, 0)
			wire.PutSum(pkt, want)
			if !run.Check(header, pkt) {
				t.Fatalf("header of %d, packet %d: Check rejects it", h, i)
			}
			pkt[r.IntN(4)+8] ^= 1 << r.IntN(8)
			if run.Check(header, pkt) {
				t.Fatalf("header of %d, packet %d: Check accepts another PSN", h, i)
			}
			if run.Check(header, pkt[:r.IntN(wire.BTHLen+4)]) {
				t.Fatalf("header of %d, packet %d: Check accepts a packet that is too short", h, i)
			}
		}
	}
}

// putLengths sets the header's length fields for n bytes of payload.
func putLengths(header []byte, n int) {
	switch len(header) {
	case 28:
		binary.BigEndian.PutUint16(header[2:], uint16(28+n))
		binary.BigEndian.PutUint16(header[24:], uint16(8+n))
	case 48:
		binary.BigEndian.PutUint16(header[4:], uint16(8+n))
		binary.BigEndian.PutUint16(header[44:], uint16(8+n))
	default:
		binary.BigEndian.PutUint16(header[4:], uint16(n))
	}
}
