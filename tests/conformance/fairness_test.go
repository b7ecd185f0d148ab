package conformance

import (
	"fmt"
	"image/color"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"

	"github.com/softrnic/softrnic/link/impair"
	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/rdmatransport"
	"github.com/softrnic/softrnic/rdmatransport/roce"
	"github.com/softrnic/softrnic/tests/internal/gate"
	"github.com/softrnic/softrnic/verbs"
)

// crossing is a set of flows from several hosts through the queue of one switch port, on paths of
// 10 ms, in virtual time. The flows begin one after the other.
type crossing struct {
	flows   int
	rate    int64 // bits of frames per second
	config  roce.Config
	queue   impair.Counters
	share   float64     // share of user data in the rate, during the measurement
	jain    float64     // Jain's index of the flows' shares
	samples [][]float64 // Mbit/s of each flow in each sampling period
	lost    uint64      // packets that overflowed the queue, during the measurement
	err     error       // of a flow that failed
}

// jain returns 1 if all values are equal, and 1/n if all but one are zero.
func jain(x []float64) float64 {
	sum, squares := 0.0, 0.0
	for _, v := range x {
		sum += v
		squares += v * v
	}
	return sum * sum / float64(len(x)) / squares
}

const (
	crossingSettle   = 3 * time.Second
	crossingMeasured = time.Second
	crossingSample   = 50 * time.Millisecond
)

func (c *crossing) run(t *testing.T) {
	const size, depth, hosts = 32 << 10, 500, 4
	const settle, measured, sample = crossingSettle, crossingMeasured, crossingSample
	bdp := bdp(c.rate)
	synctest.Test(t, func(t *testing.T) {
		lan := new(pipe.Switch)
		options := &rdmatransport.Config{RoCE: c.config}
		queued := impair.Direction{Rate: c.rate, Queue: 2 * bdp, ECN: impair.ECN{Min: bdp / 20, Max: bdp / 2}, Delay: 5 * time.Millisecond,
			Limit: 1 << 20}
		back := impair.Direction{Delay: 5 * time.Millisecond, Limit: 1 << 20}
		port := must(impair.New(lan.Port(), &impair.Config{Seed: 1, In: queued, Out: back}))(t)
		far := newNode(t, port, options, "10.0.0.100/24")
		var senders []*node
		for i := range min(hosts, c.flows) {
			n := newNode(t, cable{lan.Port()}, options, fmt.Sprintf("10.0.0.%d/24", i+1))
			n.findNeighbour(far.gids[1].GID.Addr())
			senders = append(senders, n)
		}
		regions := make([]*verbs.MR, len(senders))
		for i, n := range senders {
			regions[i] = n.reg(make([]byte, size), allAccess)
		}
		to := far.reg(make([]byte, size), allAccess)
		terms := defaultTerms()
		terms.mtu = verbs.MTU4096
		for i := range terms.sides {
			terms.sides[i].timeout = 17
		}
		deep := smallCap
		deep.MaxSendWR = depth
		ends := make([][2]*endpoint, c.flows)
		got := make([]float64, c.flows)
		recent := make([]atomic.Int64, c.flows)
		for i := range ends {
			ends[i] = [2]*endpoint{senders[i%len(senders)].newEndpoint(deep), far.newEndpoint(smallCap)}
			connect(ends[i][0], ends[i][1], terms)
		}
		start, result := time.Now(), make(chan error, c.flows)
		for i := range ends {
			go func() {
				// They begin one after the other.
				time.Sleep(time.Duration(i) * settle / 2 / time.Duration(c.flows))
				wr := verbs.SendWR{Opcode: verbs.RDMAWrite, Flags: verbs.SendSignaled, RemoteAddr: to.Addr(), RKey: to.RKey(),
					SGList: []verbs.SGE{regions[i%len(senders)].SGE(0, size)}}
				result <- ends[i][0].keepBusy(&wr, depth, func() bool {
					at := time.Since(start)
					if recent[i].Add(size); at >= settle && at < settle+measured {
						got[i] += size
					}
					return at < settle+measured
				})
			}()
		}
		var began uint64
		for time.Since(start) < settle+measured {
			if in, _ := port.Counters(); time.Since(start) <= settle {
				began = in.Overflowed
			}
			time.Sleep(sample)
			row := make([]float64, c.flows)
			for i := range row {
				row[i] = float64(recent[i].Swap(0)) * 8 / sample.Seconds() / 1e6
			}
			c.samples = append(c.samples, row)
		}
		for range ends {
			if err := <-result; err != nil {
				c.err = err
			}
		}
		c.queue, _ = port.Counters()
		c.lost = c.queue.Overflowed - began
		sum := 0.0
		for _, v := range got {
			sum += v
		}
		c.share, c.jain = sum*8/measured.Seconds()/float64(c.rate), jain(got)
		for i := range ends {
			for _, e := range ends[i] {
				e.toErr()
				drain(t, e)
				e.destroy()
			}
		}
		for i, n := range senders {
			ok(t, regions[i].Close())
			n.close()
		}
		ok(t, to.Close())
		far.close()
	})
}

// TestFairness: connections that control congestion by delay get equal shares of a queue on a long
// path, and do not overflow it. The results of other controls are reported.
func TestFairness(t *testing.T) {
	controls := []control{byDelay}
	if gate.InLong() {
		controls = []control{byWindow, byMarks, byDelay}
	}
	report := newReport(t, "| control | rate | flows | of the rate | Jain's index | longest queue | lost there "+
		"|\n|---|---|---|---|---|---|---|\n")
	var plots [][]*plot.Plot
	for _, c := range controls {
		var row []*plot.Plot
		for _, rate := range []int64{1e9, 10e9} {
			for _, flows := range []int{2, 10, 100} {
				inSystem := rate == 1e9 && !raceEnabled
				usual := rate == 1e9 && (flows == 10 && !raceEnabled || flows == 2 && raceEnabled)
				if !usual && !gate.InLong() && (!inSystem || !gate.InSystem()) {
					continue
				}
				t.Run(fmt.Sprintf("%s/%d Gbit/s/%d flows", c.name, rate/1e9, flows), func(t *testing.T) {
					x := crossing{flows: flows, rate: rate, config: c.config(rate)}
					x.run(t)
					report.printf("| %s | %d Gbit/s | %d", c.name, rate/1e9, flows)
					if x.err != nil {
						report.printf(" | %v ||||\n", x.err)
					} else {
						report.printf(" | %.3f | %.3f | %.1f ms | %d |\n", x.share, x.jain, float64(x.queue.LongestQueue)*8e3/float64(rate),
							x.queue.Overflowed)
					}
					t.Logf("%.3f of the rate, Jain's index %.3f, %+v, %v", x.share, x.jain, x.queue, x.err)
					if c.name == byDelay.name && (x.err != nil || x.jain < 0.95 || x.share < 0.9 || x.lost > 0) {
						t.Error("want equal shares of all of it, and nothing lost")
					}
					if rate == 1e9 {
						row = append(row, x.plot(t, fmt.Sprintf("%s, %d flows", c.name, flows)))
					}
				})
			}
		}
		plots = append(plots, row)
	}
	report.write(t, "fairness.md")
	report.draw(t, "fairness.svg", plots)
}

// plot draws the rate of each flow over time.
func (c *crossing) plot(t *testing.T, title string) *plot.Plot {
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text, p.Y.Min = title, "s", "Mbit/s", 0
	for flow := range min(c.flows, 20) {
		line := make(plotter.XYs, len(c.samples))
		for i, s := range c.samples {
			line[i] = plotter.XY{X: (time.Duration(i) * crossingSample).Seconds(), Y: s[flow]}
		}
		l := must(plotter.NewLine(line))(t)
		l.Color = color.RGBA{uint8(37 * flow), uint8(90 + 53*flow), uint8(200 - 61*flow), 255}
		p.Add(l)
	}
	return p
}
