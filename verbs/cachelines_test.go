//go:build amd64 || arm64

package verbs

import (
	"runtime"
	"testing"
	"unsafe"
)

// QPs and their queues, unless these are short, share no cache line: a write of one processor would
// slow down another. Objects of one size are adjacent, so that a hundred of them suffice for the
// test.
func TestQPsShareNoCacheLine(t *testing.T) {
	const line = 64
	owners := make(map[uintptr]int)
	kept := make([]*QP, 100)
	for i := range kept {
		qp := &QP{sq: newSendQueue(&QPCap{MaxSendWR: 128, MaxSendSGE: 4, MaxInlineData: 64}), rq: newRecvQueue(128, 4)}
		kept[i] = qp
		for what, b := range map[string]struct {
			p unsafe.Pointer
			n uintptr
		}{
			"QP":              {unsafe.Pointer(qp), unsafe.Sizeof(*qp)},
			"send queue":      {unsafe.Pointer(&qp.sq.slots[0]), 128 * unsafe.Sizeof(SendWR{})},
			"receive queue":   {unsafe.Pointer(&qp.rq.slots[0]), 128 * unsafe.Sizeof(RecvWR{})},
			"SGEs to send":    {unsafe.Pointer(&qp.sq.slots[0].SGList[0]), 512 * unsafe.Sizeof(SGE{})},
			"SGEs to receive": {unsafe.Pointer(&qp.rq.slots[0].SGList[0]), 512 * unsafe.Sizeof(SGE{})},
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
}
