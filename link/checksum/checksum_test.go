package checksum

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"
)

// same reports whether two one's complement sums are equal; 0 and 0xffff are.
func same(a, b uint16) bool { return a%0xffff == b%0xffff }

func FuzzSum(f *testing.F) {
	f.Add([]byte{}, uint16(0))
	f.Add(bytes.Repeat([]byte{0xff}, 40), uint16(0xffff))
	f.Add([]byte{1, 2, 3, 4, 5, 6, 7, 8, 9}, uint16(7))
	f.Fuzz(func(t *testing.T, b []byte, sum uint16) {
		if got, want := Sum(b, sum), checksum.Checksum(b, sum); !same(got, want) {
			t.Errorf("sum of %x and %#x: %#x, gVisor has %#x", b, sum, got, want)
		}
	})
}

func TestSum(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	b := make([]byte, 200)
	for range 20000 {
		for i := range b {
			b[i] = byte(r.Uint32() | -(r.Uint32() >> 31)) // half of the bytes are 0xff
		}
		b, sum := b[:r.IntN(len(b))], uint16(r.Uint32())
		if got, want := Sum(b, sum), checksum.Checksum(b, sum); !same(got, want) {
			t.Fatalf("sum of %x and %#x: %#x, gVisor has %#x", b, sum, got, want)
		}
	}
}

func TestPutIPv4(t *testing.T) {
	h := header.IPv4{0x46, 0, 0, 60, 1, 2, 0x40, 0, 64, 17, 0xff, 0xff, 10, 0, 0, 1, 10, 0, 0, 2, 1, 1, 1, 0}
	if PutIPv4(h); !h.IsChecksumValid() {
		t.Errorf("checksum of % x", []byte(h))
	}
}
