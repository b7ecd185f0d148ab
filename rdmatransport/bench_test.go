package rdmatransport_test

import (
	"fmt"
	"testing"

	"github.com/softrnic/softrnic/verbs"
)

// The cost of each message between two QPs of one process, compared with a plain copy of as much
// memory. 0 allocs/op.

func everywhere(b *testing.B, f func(b *testing.B, transport verbs.Transport, devices int)) {
	for _, transport := range []verbs.Transport{verbs.RoCEv2, verbs.IWARP} {
		for devices, name := range []string{1: "one device", 2: "two nodes"} {
			if devices > 0 {
				b.Run(fmt.Sprintf("%v/%s", transport, name), func(b *testing.B) { f(b, transport, devices) })
			}
		}
	}
}

// workingSet is the amount of memory that BenchmarkDirectWrite and BenchmarkCopy use in turn on
// either side.
const workingSet = 4 << 20

func BenchmarkCopy(b *testing.B) {
	for _, size := range []int{64 << 10, 1 << 20} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			dst, src := touched(workingSet), touched(workingSet)
			b.SetBytes(int64(size))
			for at := 0; b.Loop(); at = (at + size) % workingSet {
				copy(dst[at:at+size], src[at:at+size])
			}
		})
	}
}

// BenchmarkDirectWrite keeps 64 WRITEs posted.
func BenchmarkDirectWrite(b *testing.B) {
	for _, size := range []int{8, 64 << 10, 1 << 20} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			everywhere(b, func(b *testing.B, transport verbs.Transport, devices int) {
				const depth = 64
				e := &newEnds(b, setting{transport: transport, devices: devices}, workingSet).side
				wr := &verbs.SendWR{Opcode: verbs.RDMAWrite, Flags: verbs.SendSignaled, RKey: e[1].mr.RKey(), SGList: make([]verbs.SGE, 1)}
				at, posted := 0, 0
				post := func() {
					wr.SGList[0], wr.RemoteAddr = e[0].mr.SGE(at, size), e[1].mr.Addr()+uint64(at)
					at = (at + size) % workingSet
					e[0].post(b, wr)
					posted++
				}
				for range 100 {
					post()
					posted -= e[0].take(b)
				}
				b.SetBytes(int64(size))
				b.ReportAllocs()
				b.ResetTimer()
				for range b.N {
					post()
					if posted == depth {
						posted -= e[0].take(b)
					}
				}
				for posted > 0 {
					posted -= e[0].take(b)
				}
			})
		})
	}
}

// BenchmarkDirectPingPong exchanges 8 bytes by SEND in both directions. Each side polls on its own
// goroutine. An op is two messages.
func BenchmarkDirectPingPong(b *testing.B) {
	everywhere(b, func(b *testing.B, transport verbs.Transport, devices int) {
		e := &newEnds(b, setting{transport: transport, devices: devices}, 64).side
		var recv [2]verbs.RecvWR
		for i := range e {
			recv[i].SGList = []verbs.SGE{e[i].mr.SGE(8, 8)}
			for range 64 {
				if err := e[i].QP().PostRecv(&recv[i]); err != nil {
					b.Fatal(err)
				}
			}
		}
		run := func(i, n int) {
			wr := &verbs.SendWR{Opcode: verbs.Send, SGList: []verbs.SGE{e[i].mr.SGE(0, 8)}}
			for round := range n {
				if i == 0 || round > 0 {
					e[i].post(b, wr)
				}
				e[i].take(b)
				if err := e[i].QP().PostRecv(&recv[i]); err != nil {
					b.Fatal(err)
				}
			}
			if i == 1 {
				e[i].post(b, wr)
			}
		}
		both := func(n int) {
			done := make(chan struct{})
			go func() {
				defer close(done)
				run(1, n)
			}()
			run(0, n)
			<-done
		}
		both(300)
		b.ReportAllocs()
		b.ResetTimer()
		both(b.N)
	})
}
