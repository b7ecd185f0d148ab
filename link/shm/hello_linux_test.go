package shm

import (
	"bytes"
	"testing"

	"github.com/softrnic/softrnic/link/ring"
)

// FuzzHello: what is taken from an arbitrary message is what a process can say of itself, and no
// part of the message is ignored.
func FuzzHello(f *testing.F) {
	own := hello{ring: ring.MinLen, mac: [6]byte{2, 1, 1, 1, 1, 1}, id: id{1, 2, 3}, isSwitch: true}
	f.Add(own.encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := decodeHello(b)
		if err != nil {
			return
		}
		if h.ring < ring.MinLen || h.ring > ring.MaxLen || h.mac[0]&1 != 0 {
			t.Errorf("%+v", h)
		}
		if b[helloLen-1] &= 1; !bytes.Equal(h.encode(), b) {
			t.Errorf("%x becomes %x", b, h.encode())
		}
	})
}
