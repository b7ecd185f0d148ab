package prefetch

import (
	"bytes"
	"testing"
)

// TestNowhere checks that prefetching addresses that are not mapped does no harm, and that memory
// does not change.
func TestNowhere(t *testing.T) {
	b := bytes.Repeat([]byte{7}, 4096)
	for _, ahead := range []int{0, 64, 1 << 20, 1 << 30, -1 << 30} {
		for _, n := range []int{0, 1, 511, 512, 513, 4096} {
			Write(b[:n], ahead)
			Read(b[:n], ahead)
		}
	}
	if !bytes.Equal(b, bytes.Repeat([]byte{7}, 4096)) {
		t.Error("memory was changed")
	}
}
