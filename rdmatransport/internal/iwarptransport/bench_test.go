package iwarptransport_test

import (
	"runtime"
	"testing"

	"github.com/softrnic/softrnic/rdmatransport/iwarp"
	"github.com/softrnic/softrnic/verbs"
)

// The layers above TCP, with both ends of a stream in memory: no allocation per message.
func BenchmarkSend(b *testing.B)   { benchmark(b, verbs.Send, iwarp.Config{}) }
func BenchmarkWrite(b *testing.B)  { benchmark(b, verbs.RDMAWrite, iwarp.Config{}) }
func BenchmarkRead(b *testing.B)   { benchmark(b, verbs.RDMARead, iwarp.Config{}) }
func BenchmarkAtomic(b *testing.B) { benchmark(b, verbs.AtomicFetchAndAdd, iwarp.Config{}) }

func BenchmarkSendMarkers(b *testing.B) { benchmark(b, verbs.Send, iwarp.Config{Markers: true}) }

func benchmark(b *testing.B, op verbs.WROpcode, cfg iwarp.Config) {
	for name, size := range map[string]int{"8": 8, "1KiB": 1 << 10, "64KiB": 1 << 16} {
		if op == verbs.AtomicFetchAndAdd && size != 8 {
			continue
		}
		b.Run(name, func(b *testing.B) {
			n := &network{buffer: 1 << 20}
			x := newNode(b, n, nodeAddr, 1<<17, cfg)
			y := newNode(b, n, peerAddr, 1<<17, cfg)
			s, o := pair(x, y)
			wr := &verbs.SendWR{
				Opcode: op, Flags: verbs.SendSignaled, SGList: []verbs.SGE{x.mr.SGE(0, size)},
				RKey: y.mr.RKey(), RemoteAddr: y.mr.Addr(),
			}
			rwr := &verbs.RecvWR{SGList: []verbs.SGE{y.mr.SGE(0, size)}}
			var wcs [64]verbs.WC
			wait := func(cq *verbs.CQ) {
				for {
					n, err := cq.Poll(wcs[:1])
					if err != nil {
						b.Fatal(err)
					}
					if n == 1 {
						if wcs[0].Status != verbs.WCSuccess {
							b.Fatal(wcs[0].Status)
						}
						return
					}
					runtime.Gosched()
				}
			}
			// The first posts and completions are not measured, as queues grow.
			once := func() {
				if op == verbs.Send {
					if err := o.qp.PostRecv(rwr); err != nil {
						b.Fatal(err)
					}
				}
				if err := s.qp.PostSend(wr); err != nil {
					b.Fatal(err)
				}
				wait(x.scq)
				if op == verbs.Send {
					wait(y.rcq)
				}
			}
			for range 300 {
				once()
			}
			b.SetBytes(int64(size))
			b.ReportAllocs()
			b.ResetTimer()
			for range b.N {
				once()
			}
			b.StopTimer()
		})
	}
}
