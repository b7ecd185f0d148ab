package memory_test

import (
	"fmt"
	"testing"

	"github.com/softrnic/softrnic/verbs"
)

// BenchmarkCopy copies between a frame, which is in the caches, and user memory, which is not.
func BenchmarkCopy(b *testing.B) {
	const total = 32 << 20
	r, pd, _ := setup(b, nil)
	user, frame := make([]byte, total), pattern(64<<10)
	for i := range user {
		user[i] = byte(i)
	}
	mr, err := pd.RegMR(user, verbs.AccessLocalWrite)
	if err != nil {
		b.Fatal(err)
	}
	for _, n := range []int{1 << 10, 4 << 10, 64 << 10} {
		sgl := []verbs.SGE{mr.SGE(0, total)}
		pass := func(b *testing.B, move func(off uint64) verbs.WCStatus) {
			b.SetBytes(int64(n))
			b.ReportAllocs()
			off := 0
			for b.Loop() {
				if status := move(uint64(off)); status != verbs.WCSuccess {
					b.Fatal(status)
				}
				if off += n; off == total {
					off = 0
				}
			}
		}
		b.Run(fmt.Sprintf("Scatter/%d", n), func(b *testing.B) {
			pass(b, func(off uint64) verbs.WCStatus { return r.Scatter(frame[:n], pd, sgl, off) })
		})
		b.Run(fmt.Sprintf("Gather/%d", n), func(b *testing.B) {
			pass(b, func(off uint64) verbs.WCStatus { return r.Gather(frame[:n], pd, sgl, off, nil) })
		})
	}
}
