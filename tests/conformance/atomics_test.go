package conformance

import (
	"encoding/binary"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/softrnic/softrnic/link/impair"
	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/verbs"
)

// TestAtomicsAddUp: many connections and local code add to one word over a bad network. Every
// addition counts once, and no two see the same value.
func TestAtomicsAddUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const qps, adds, depth = 8, 200, 4
		lan := new(pipe.Switch)
		bad := impair.Direction{Loss: 0.05, Duplicate: 0.1, Reorder: 0.05, Hold: 300 * time.Microsecond}
		var n [2]*node
		for i := range n {
			l := must(impair.New(lan.Port(), &impair.Config{Seed: uint64(i), Out: bad}))(t)
			n[i] = newNode(t, l, nil, fmt.Sprintf("10.0.0.%d/24", i+1))
		}
		word := make([]byte, 8)
		shared := n[1].reg(word, allAccess)
		var mu sync.Mutex
		seen := map[uint64]bool{}
		found := func(v uint64) {
			mu.Lock()
			defer mu.Unlock()
			if seen[v] {
				t.Errorf("two additions found %d", v)
			}
			seen[v] = true
		}
		var all sync.WaitGroup
		var ends []*endpoint
		for range qps {
			a, b := n[0].newEndpoint(smallCap), n[1].newEndpoint(smallCap)
			connect(a, b, defaultTerms())
			ends = append(ends, a, b)
			results := n[0].reg(make([]byte, 8*depth), verbs.AccessLocalWrite)
			all.Go(func() {
				for posted, done := 0, 0; done < adds; done++ {
					for ; posted < adds && posted-done < depth; posted++ {
						if err := a.qp.PostSend(&verbs.SendWR{WRID: uint64(posted), Opcode: verbs.AtomicFetchAndAdd,
							Flags: verbs.SendSignaled, CompareAdd: 1, SGList: []verbs.SGE{results.SGE(8*(posted%depth), 8)},
							RemoteAddr: shared.Addr(), RKey: shared.RKey()}); err != nil {
							t.Error(err)
							return
						}
					}
					var wc [1]verbs.WC
					if _, err := a.wait(t.Context(), wc[:]); err != nil || wc[0].Status != verbs.WCSuccess {
						t.Errorf("%+v, %v", wc[0], err)
						return
					}
					found(binary.NativeEndian.Uint64(results.Buf()[8*(wc[0].WRID%depth):]))
				}
				if err := results.Close(); err != nil {
					t.Error(err)
				}
			})
		}
		all.Go(func() {
			for range adds {
				found(atomic.AddUint64((*uint64)(unsafe.Pointer(&word[0])), 1) - 1)
				time.Sleep(time.Millisecond)
			}
		})
		all.Wait()
		if got := binary.NativeEndian.Uint64(word); got != (qps+1)*adds {
			t.Errorf("the sum is %d, want %d", got, (qps+1)*adds)
		}
		if n[1].counter("duplicate_request") == 0 {
			t.Error("no request was repeated: nothing was tested")
		}
		for _, e := range ends {
			e.destroy()
		}
		ok(t, shared.Close())
		n[0].close()
		n[1].close()
	})
}
