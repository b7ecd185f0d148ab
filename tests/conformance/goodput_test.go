package conformance

import (
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/softrnic/softrnic/link/impair"
	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/rdmatransport"
	"github.com/softrnic/softrnic/rdmatransport/roce"
	"github.com/softrnic/softrnic/tests/internal/gate"
	"github.com/softrnic/softrnic/verbs"
)

// lossy is a link of 10 Gbit/s and 100 µs that loses packets, in virtual time.
type lossy struct {
	size     int // of a message
	loss     float64
	goBackN  bool
	elapsed  time.Duration
	sent     atomic.Int64 // packets with data, of both ends
	counters [2]map[string]uint64
}

// run lets each end send 64 MiB to the other, or READ them from it.
func (l *lossy) run(t *testing.T, code verbs.WROpcode) {
	size := l.size
	count := 64 << 20 / size
	synctest.Test(t, func(t *testing.T) {
		lan := new(pipe.Switch)
		var ends [2]*endpoint
		var mr [2]*verbs.MR
		for i := range ends {
			bad := impair.Direction{Loss: l.loss, Delay: 100 * time.Microsecond, Rate: 10e9}
			for _, class := range []string{"write", "send", "read-response"} {
				bad.Rules = append(bad.Rules, see(t, class, func([]byte) { l.sent.Add(1) }))
			}
			bottom := must(impair.New(lan.Port(), &impair.Config{Seed: uint64(i) + 1, Out: bad}))(t)
			n := newNode(t, bottom, &rdmatransport.Config{RoCE: roce.Config{SelectiveRepeat: !l.goBackN}},
				fmt.Sprintf("10.0.0.%d/24", i+1))
			ends[i] = n.newEndpoint(smallCap)
			mr[i] = n.reg(make([]byte, 2*size), allAccess)
		}
		ends[0].findNeighbour(ends[1].gids[1].GID.Addr())
		c := defaultTerms()
		c.mtu = verbs.MTU4096
		connect(ends[0], ends[1], c)
		// With fewer, all posted messages would wait after a loss, since they complete in order.
		const depth = 16
		l.elapsed = streams(t, ends, mr, code, depth, count, size)
		for i, e := range ends {
			l.counters[i] = must(e.dev.HWCounters())(t)
		}
		for i, e := range ends {
			e.toErr()
			e.poll()
			ok(t, mr[i].Close())
			e.destroy()
			e.close()
		}
	})
	t.Logf("loss %v: %.2f Gbit/s each way, %d packets with data; %v", l.loss, float64(count*size*8)/1e3/float64(l.elapsed.Microseconds()),
		l.sent.Load(), l.counters)
}

// TestGoodput: the throughput lost to 1 % loss with selective repeat, and to 0.1 % loss with
// go-back-N.
func TestGoodput(t *testing.T) {
	for _, code := range []verbs.WROpcode{verbs.RDMAWrite, verbs.Send, verbs.RDMARead} {
		for _, goBackN := range []bool{false, true} {
			name, loss, repeated, least := "selective", 0.01, 1.05, 0.7
			if goBackN {
				// The loss of a last packet costs up to 20 ms (a probe) of 70 ms in total. Of some 70
				// losses one or two are of a last packet.
				name, loss, repeated, least = "go back N", 0.001, 1.2, 0.4
			}
			for _, size := range []int{64 << 10, 1 << 20} {
				if size > 64<<10 && (raceEnabled || !gate.InSystem()) {
					continue // no other code; with -race it takes a minute
				}
				t.Run(fmt.Sprintf("%v/%s/%d KiB", code, name, size>>10), func(t *testing.T) {
					t.Parallel()
					good, bad := lossy{size: size, goBackN: goBackN}, lossy{size: size, goBackN: goBackN, loss: loss}
					good.run(t, code)
					bad.run(t, code)
					if ratio := float64(good.elapsed) / float64(bad.elapsed); ratio < least {
						t.Errorf("goodput with %v lost is %.2f of that without, want %v", loss, ratio, least)
					}
					if ratio := float64(bad.sent.Load()) / float64(good.sent.Load()); ratio > repeated {
						t.Errorf("%.3f times the packets of a path without loss, want at most %v", ratio, repeated)
					}
				})
			}
		}
	}
}
