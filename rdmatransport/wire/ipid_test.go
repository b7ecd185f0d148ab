package wire_test

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/softrnic/softrnic/rdmatransport/wire"
)

// TestSolveIDOfCaptures checks that SolveID finds the identification of each IPv4 packet in the
// captures of rxe. It finds it for any guess, and for any values of the fields that the ICRC does
// not cover.
func TestSolveIDOfCaptures(t *testing.T) {
	solved := 0
	for _, file := range captureFiles(t) {
		for _, f := range captured(t, file) {
			if len(f.header) != 28 {
				if _, ok := wire.SolveID(f.header, f.payload); ok {
					t.Errorf("%s: found an identification in an IPv6 header", file)
				}
				continue
			}
			want := binary.BigEndian.Uint16(f.header[4:])
			for _, guess := range []uint16{0, 1, want, ^want} {
				h := bytes.Clone(f.header)
				binary.BigEndian.PutUint16(h[4:], guess)
				h[1], h[8], h[10], h[11], h[26], h[27] = 7, 9, 1, 2, 3, 4
				if id, ok := wire.SolveID(h, f.payload); !ok || id != want {
					t.Fatalf("%s: guess %#x: %#x, %t, want %#x", file, guess, id, ok, want)
				}
			}
			solved++
		}
	}
	if solved < 100 {
		t.Fatalf("only %d IPv4 packets in the captures", solved)
	}
	t.Logf("%d packets", solved)
}

// ipv4Header returns the header of a datagram of n bytes.
func ipv4Header(n int, id uint16) []byte {
	h := make([]byte, 28)
	h[0], h[6], h[9] = 0x45, 0x40, 17
	copy(h[12:], []byte{10, 0, 0, 1, 10, 0, 0, 2})
	binary.BigEndian.PutUint16(h[2:], uint16(28+n))
	binary.BigEndian.PutUint16(h[4:], id)
	binary.BigEndian.PutUint16(h[20:], 49152)
	binary.BigEndian.PutUint16(h[22:], 4791)
	binary.BigEndian.PutUint16(h[24:], uint16(8+n))
	return h
}

// TestSolveIDOfEachLength checks all lengths, from the shortest packet to the longest that IPv4
// carries.
func TestSolveIDOfEachLength(t *testing.T) {
	lengths := []int{16, 17, 18, 19, 20, 243, 244, 245, 499, 500, 501, 1040, 4112, 9000, 65503, 65506, 65507}
	for _, n := range lengths {
		pkt := bytes.Repeat([]byte{0x5a, 0, 0xff}, n)[:n]
		for _, id := range []uint16{0, 1, 0x80, 0x100, 0x8000, 0xffff} {
			wire.PutICRC(ipv4Header(n, id), pkt)
			if got, ok := wire.SolveID(ipv4Header(n, 0), pkt); !ok || got != id {
				t.Errorf("%d bytes, ID %#x: found %#x, %t", n, id, got, ok)
			}
		}
	}
	for _, n := range []int{0, 3, 4, 15, 65508, 1 << 17} {
		if id, ok := wire.SolveID(ipv4Header(n, 0), make([]byte, n)); ok {
			t.Errorf("%d bytes, too few for a packet: ID %#x", n, id)
		}
	}
}

// TestSolveIDOfDamage checks that a packet with one flipped bit is valid under no identification.
func TestSolveIDOfDamage(t *testing.T) {
	const n = 80
	pkt := make([]byte, n)
	wire.PutICRC(ipv4Header(n, 0x1234), pkt)
	damaged := 0
	for bit := 0; bit < 8*n; bit++ {
		if bit/8 == 4 {
			continue // not covered by the ICRC
		}
		pkt[bit/8] ^= 1 << (bit % 8)
		if _, ok := wire.SolveID(ipv4Header(n, 0), pkt); ok {
			damaged++
		}
		pkt[bit/8] ^= 1 << (bit % 8)
	}
	if damaged > 0 {
		t.Errorf("%d packets with a flipped bit are valid under some identification", damaged)
	}
}

// FuzzSolveID checks that an identification that SolveID finds makes the ICRC valid, and that
// SolveID finds it where there is one.
func FuzzSolveID(f *testing.F) {
	f.Add(uint16(0), uint16(0x1234), []byte("twelve bytes, and some"), uint32(0))
	f.Add(uint16(7), uint16(7), make([]byte, 12), uint32(1))
	f.Add(uint16(0xffff), uint16(0), []byte("short"), uint32(0))
	f.Fuzz(func(t *testing.T, guess, id uint16, body []byte, damage uint32) {
		if len(body) > 65507-wire.ICRCLen {
			return
		}
		pkt := append(bytes.Clone(body), 0, 0, 0, 0)
		h := ipv4Header(len(pkt), id)
		if len(body) >= wire.BTHLen {
			wire.PutICRC(h, pkt)
		}
		sum := pkt[len(body):]
		binary.LittleEndian.PutUint32(sum, binary.LittleEndian.Uint32(sum)^damage)
		binary.BigEndian.PutUint16(h[4:], guess)
		got, ok := wire.SolveID(h, pkt)
		binary.BigEndian.PutUint16(h[4:], got)
		switch {
		case ok && !wire.CheckICRC(h, pkt):
			t.Fatalf("the ICRC is wrong under ID %#x, which SolveID found", got)
		case len(body) >= wire.BTHLen && damage == 0 && (!ok || got != id):
			t.Fatalf("found %#x, %t, want %#x", got, ok, id)
		}
	})
}

func BenchmarkSolveID(b *testing.B) {
	const n = 1040
	pkt := make([]byte, n)
	wire.PutICRC(ipv4Header(n, 0x1234), pkt)
	h := ipv4Header(n, 0)
	b.ReportAllocs()
	for b.Loop() {
		if id, ok := wire.SolveID(h, pkt); !ok || id != 0x1234 {
			b.Fatal(id, ok)
		}
	}
}
