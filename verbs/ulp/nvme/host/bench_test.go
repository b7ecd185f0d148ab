package host_test

import (
	"fmt"
	"testing"

	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/ulp/nvme"
	"github.com/softrnic/softrnic/verbs/ulp/nvme/host"
)

const benchSize = 4 << 10

// BenchmarkReadAt measures Reads of 4 KiB, one after another, through the memory of a slot. Neither
// host nor target nor the devices allocate anything for a command.
func BenchmarkReadAt(b *testing.B) {
	for _, transport := range []verbs.Transport{verbs.RoCEv2, verbs.IWARP} {
		b.Run(transport.String(), func(b *testing.B) {
			l := newLab(b, transport, nil)
			ns := l.namespace(l.dial(&host.Config{IOQueues: 1}), 1)
			p := make([]byte, benchSize)
			b.SetBytes(benchSize)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := ns.ReadAt(p, 0); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkQueue measures Reads of 4 KiB into registered memory, with 32 of them outstanding.
// Nothing is allocated for a command, except with windows: the device allocates for each BindMW.
func BenchmarkQueue(b *testing.B) {
	for _, transport := range []verbs.Transport{verbs.RoCEv2, verbs.IWARP} {
		for _, windows := range []bool{false, true} {
			b.Run(fmt.Sprintf("%v/windows=%v", transport, windows), func(b *testing.B) { readQueue(b, transport, windows) })
		}
	}
}

func readQueue(b *testing.B, transport verbs.Transport, windows bool) {
	const depth = 32
	l := newLab(b, transport, nil)
	c := l.dial(&host.Config{Windows: windows, IOQueues: 1})
	ns := l.namespace(c, 1)
	q := must(c.OpenQueue(b.Context(), depth))(b)
	m := must(c.Register(make([]byte, depth*benchSize)))(b)
	var ops [depth]host.Op
	var done [depth]*host.Op
	idle := make([]*host.Op, 0, depth)
	for i := range ops {
		ops[i] = host.Op{Opcode: nvme.Read, Namespace: ns, Offset: int64(i * benchSize), Len: benchSize, Memory: m, At: i * benchSize}
		idle = append(idle, &ops[i])
	}
	b.SetBytes(benchSize)
	b.ReportAllocs()
	b.ResetTimer()
	for posted, finished := 0, 0; finished < b.N; {
		for len(idle) > 0 && posted < b.N {
			ok(b, q.Post(idle[len(idle)-1]))
			idle = idle[:len(idle)-1]
			posted++
		}
		n, err := q.Wait(b.Context(), done[:])
		ok(b, err)
		for _, op := range done[:n] {
			ok(b, op.Err)
		}
		idle = append(idle, done[:n]...)
		finished += n
	}
	b.StopTimer()
	ok(b, q.Close())
	ok(b, m.Close())
}
