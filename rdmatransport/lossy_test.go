package rdmatransport_test

import (
	"fmt"
	"testing"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/impair"
	"github.com/softrnic/softrnic/rdmatransport"
	"github.com/softrnic/softrnic/rdmatransport/roce"
	"github.com/softrnic/softrnic/verbs"
)

// BenchmarkLossyWrite keeps 16 WRITEs posted over a link that loses packets in both directions. It
// reports goodput and allocations. All allocations are the link's: impair copies each packet.
func BenchmarkLossyWrite(b *testing.B) {
	const size, depth = 64 << 10, 16
	for _, c := range []struct {
		loss      float64
		selective bool
	}{{0, false}, {0.001, false}, {0.001, true}, {0.01, true}} {
		b.Run(fmt.Sprintf("%v selective %v", c.loss, c.selective), func(b *testing.B) {
			wrap := func(l link.Link) link.Link {
				bad, err := impair.New(l, &impair.Config{Seed: 1, Out: impair.Direction{Loss: c.loss}})
				if err != nil {
					b.Fatal(err)
				}
				return bad
			}
			e := newEnds(b, setting{transport: verbs.RoCEv2, devices: 2, wrap: wrap,
				cfg: &rdmatransport.Config{RoCE: roce.Config{SelectiveRepeat: c.selective}}}, workingSet)
			wr := &verbs.SendWR{Opcode: verbs.RDMAWrite, Flags: verbs.SendSignaled, RKey: e.side[1].mr.RKey(),
				SGList: make([]verbs.SGE, 1)}
			posted := 0
			write := func(n int) {
				for at := 0; n > 0; n, at = n-1, (at+size)%workingSet {
					wr.SGList[0], wr.RemoteAddr = e.side[0].mr.SGE(at, size), e.side[1].mr.Addr()+uint64(at)
					e.side[0].post(b, wr)
					if posted++; posted == depth {
						posted -= e.side[0].take(b)
					}
				}
				for posted > 0 {
					posted -= e.side[0].take(b)
				}
			}
			write(200) // fills pools
			packets := func() uint64 { return must(e.devs[0].HWCounters())(b)["sent_pkts"] }
			sent := packets()
			b.SetBytes(size)
			b.ReportAllocs()
			b.ResetTimer()
			write(b.N)
			b.ReportMetric(float64(packets()-sent)/float64(b.N), "packets/op")
		})
	}
}
