package wire_test

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/softrnic/softrnic/rdmatransport/wire"
)

// rxeFlush returns a header of h bytes, and an RC FLUSH with the ICRC of rxe, computed bit by bit
// from what rxe_icrc.c covers: the masked headers, and then all bytes from the BTH on.
func rxeFlush(h int) (header, pkt []byte) {
	header, _ = datagram(h, 0)
	p := wire.Packet{BTH: wire.BTH{Opcode: wire.RCFlush, PKey: wire.DefaultPKey, DestQP: 0x123456, PSN: 0xfffffe, AckReq: true},
		FETH: wire.FETH{Placement: wire.FlushGlobal}, RETH: wire.RETH{Addr: 0x1122334455667788, RKey: 0xaabbccdd, Length: 4096}}
	pkt = make([]byte, p.Size())
	p.Encode(header, pkt)
	pkt[4] = 0x40 // BECN, which the second pass covers
	b := pkt[:len(pkt)-4]
	binary.LittleEndian.PutUint32(pkt[len(b):], bitwise(header, append(bytes.Clone(b), b...)))
	return header, pkt
}

func TestRxeFlushICRC(t *testing.T) {
	for _, h := range headerLens {
		header, pkt := rxeFlush(h)
		if len(pkt) != 36 {
			t.Fatalf("a FLUSH has %d bytes", len(pkt))
		}
		if !wire.CheckRxeFlushICRC(header, pkt) || wire.CheckICRC(header, pkt) {
			t.Errorf("header of %d bytes: the ICRC of rxe is wrong, or that of the standard", h)
		}
		for i := range pkt {
			pkt[i] ^= 0x10
			if wire.CheckRxeFlushICRC(header, pkt) {
				t.Errorf("header of %d bytes: byte %d is not covered", h, i)
			}
			pkt[i] ^= 0x10
		}
		wire.PutICRC(header, pkt)
		if wire.CheckRxeFlushICRC(header, pkt) {
			t.Errorf("header of %d bytes: the ICRC of the standard counts as rxe's", h)
		}
		for n := range len(pkt) {
			if wire.CheckRxeFlushICRC(header, pkt[:n]) {
				t.Errorf("%d bytes are a FLUSH", n)
			}
		}
	}
	// Other requests have the ICRC of the standard with rxe too.
	header, pkt := datagram(28, 20)
	binary.LittleEndian.PutUint32(pkt[32:], bitwise(header, append(bytes.Clone(pkt[:32]), pkt[:32]...)))
	if wire.CheckRxeFlushICRC(header, pkt) {
		t.Error("a SEND of the same length counts as a FLUSH")
	}
	if _, ok := wire.SolveRxeFlushID(header, pkt); ok {
		t.Error("an identification is found for a SEND")
	}
}

func TestSolveRxeFlushID(t *testing.T) {
	header, pkt := rxeFlush(28)
	want := wire.ID(header)
	for _, guess := range []uint16{want, 0, 1, 0xffff, want ^ 0x8000} {
		binary.BigEndian.PutUint16(header[4:], guess)
		if id, ok := wire.SolveRxeFlushID(header, pkt); !ok || id != want {
			t.Errorf("guess %#x: %#x, %t, want %#x", guess, id, ok, want)
		}
	}
	pkt[20] ^= 1
	if id, ok := wire.SolveRxeFlushID(header, pkt); ok && id == want {
		t.Error("a damaged packet has the same identification")
	}
	pkt[20] ^= 1
	if _, ok := wire.SolveRxeFlushID(header, pkt[:35]); ok {
		t.Error("an identification is found for a part")
	}
	longer, pkt := rxeFlush(48)
	if _, ok := wire.SolveRxeFlushID(longer, pkt); ok {
		t.Error("an identification is found in an IPv6 header")
	}
}
