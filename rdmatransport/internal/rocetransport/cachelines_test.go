//go:build amd64 || arm64

package rocetransport

import (
	"runtime"
	"testing"
	"unsafe"
)

// No two QPs may share a cache line that different processors write. Objects of one size are
// adjacent, so a hundred of them suffice for the test. The fields that a peer in this process
// writes must not share a line with the send state.
func TestQPsShareNoCacheLine(t *testing.T) {
	const line = 64
	owners := make(map[uintptr]int)
	kept := make([]*qp, 100)
	for i := range kept {
		q := &qp{unreliable: new(unreliable)}
		q.count()
		kept[i] = q
		for what, b := range map[string]struct {
			p unsafe.Pointer
			n uintptr
		}{
			"QP":                    {unsafe.Pointer(q), unsafe.Sizeof(*q)},
			"counts":                {unsafe.Pointer(q.stats), unsafe.Sizeof(*q.stats)},
			"state of UC and of UD": {unsafe.Pointer(q.unreliable), unsafe.Sizeof(*q.unreliable)},
		} {
			for at := uintptr(b.p) / line; at <= (uintptr(b.p)+b.n-1)/line; at++ {
				if owner, taken := owners[at]; taken && owner != i {
					t.Fatalf("%s of %d bytes: QPs %d and %d share a cache line", what, b.n, owner, i)
				}
				owners[at] = i
			}
		}
	}
	runtime.KeepAlive(kept)
	var q qp
	if written, own := unsafe.Offsetof(q.mover), unsafe.Offsetof(q.sending); written/line >= own/line {
		t.Errorf("the fields that a peer writes end at %d, in the line where sending begins at %d", written, own)
	}
}
