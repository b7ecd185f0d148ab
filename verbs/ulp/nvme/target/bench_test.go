package target_test

import (
	"fmt"
	"testing"

	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/ulp/nvme"
)

// BenchmarkCommands measures Reads and Writes of a namespace in memory, with a queue of 16
// commands. The target allocates no memory for a command. What is reported is allocated by the
// host.
func BenchmarkCommands(b *testing.B) {
	for _, transport := range []verbs.Transport{verbs.RoCEv2, verbs.IWARP} {
		for _, op := range []nvme.Opcode{nvme.Read, nvme.Write} {
			for _, size := range []int{4 << 10, 64 << 10, 1 << 20} {
				b.Run(fmt.Sprintf("%v/%s/%d", transport, op.Name(false), size), func(b *testing.B) { commands(b, transport, op, size) })
			}
		}
	}
}

func commands(b *testing.B, transport verbs.Transport, op nvme.Opcode, size int) {
	const depth = 16
	q := newLab(b, transport, nil).associate(1, 0).io[0]
	c := rw(op, 0, uint32(size/512))
	c.SGL = q.keyed(0, size)
	raw := c.Append(nil)
	b.SetBytes(int64(size))
	b.ReportAllocs()
	b.ResetTimer()
	sent := 0
	for done := 0; done < b.N; {
		for sent < b.N && sent-done < depth {
			ok(b, q.sendRaw(raw))
			sent++
		}
		r, err := q.response()
		ok(b, err)
		ok(b, r.Status.Err())
		done++
	}
}
