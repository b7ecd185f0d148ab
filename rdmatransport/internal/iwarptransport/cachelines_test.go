//go:build amd64 || arm64

package iwarptransport

import (
	"runtime"
	"testing"
	"unsafe"
)

// No two QPs may share a cache line that different processors write. Objects of one size are
// adjacent, so a hundred of them suffice for the test.
func TestQPsShareNoCacheLine(t *testing.T) {
	const line = 64
	owners := make(map[uintptr]int)
	kept := make([]*qp, 100)
	for i := range kept {
		q := new(qp)
		kept[i] = q
		at := uintptr(unsafe.Pointer(q))
		for l := at / line; l <= (at+unsafe.Sizeof(*q)-1)/line; l++ {
			if owner, taken := owners[l]; taken {
				t.Fatalf("QPs of %d bytes: %d and %d share a cache line", unsafe.Sizeof(*q), owner, i)
			}
			owners[l] = i
		}
	}
	runtime.KeepAlive(kept)
}
