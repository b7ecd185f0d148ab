package link

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"
)

// same reports whether two one's complement sums are equal; 0 and 0xffff are.
func same(a, b uint16) bool { return a%0xffff == b%0xffff }

func FuzzSum16(f *testing.F) {
	f.Add([]byte{}, uint16(0))
	f.Add(bytes.Repeat([]byte{0xff}, 40), uint16(0xffff))
	f.Add([]byte{1, 2, 3, 4, 5, 6, 7, 8, 9}, uint16(7))
	f.Fuzz(func(t *testing.T, b []byte, sum uint16) {
		if got, want := sum16(b, sum), checksum.Checksum(b, sum); !same(got, want) {
			t.Errorf("sum of %x and %#x: %#x, gVisor has %#x", b, sum, got, want)
		}
	})
}

func TestSum16(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	b := make([]byte, 200)
	for range 20000 {
		for i := range b {
			b[i] = byte(r.Uint32() | -(r.Uint32() >> 31)) // half of the bytes are 0xff
		}
		b, sum := b[:r.IntN(len(b))], uint16(r.Uint32())
		if got, want := sum16(b, sum), checksum.Checksum(b, sum); !same(got, want) {
			t.Fatalf("sum of %x and %#x: %#x, gVisor has %#x", b, sum, got, want)
		}
	}
}

func TestTransportChecksum(t *testing.T) {
	src, dst := [4]byte{10, 0, 0, 1}, [4]byte{10, 0, 0, 2}
	segment := bytes.Repeat([]byte{0xab, 3}, 30)
	want := ^checksum.Checksum(segment, header.PseudoHeaderChecksum(17, tcpip.AddrFrom4(src), tcpip.AddrFrom4(dst), uint16(len(segment))))
	if got := transportChecksum(append(src[:], dst[:]...), 17, segment); got != want {
		t.Errorf("%#x, want %#x", got, want)
	}
	if got := transportChecksum(make([]byte, 8), 0, []byte{0xff, 0xfd}); got != 0xffff {
		t.Errorf("checksum of a sum of 0xffff: %#x, want 0xffff", got)
	}
}
