package conformance

import (
	"context"
	"fmt"
	"maps"
	"math/bits"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"

	"github.com/softrnic/softrnic/link/impair"
	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/rdmatransport"
	"github.com/softrnic/softrnic/rdmatransport/roce"
	"github.com/softrnic/softrnic/tests/internal/gate"
	"github.com/softrnic/softrnic/verbs"
)

// longPath is a path with a round trip of 10 ms, in virtual time.
type longPath struct {
	rate   int64 // bits of frames per second
	loss   float64
	mtu    verbs.MTU
	code   verbs.WROpcode
	config roce.Config
	share  float64 // share of user data in the rate
}

// bdp returns the bandwidth-delay product of such a path in bytes.
func bdp(rate int64) int { return int(rate / 8 / 100) }

// windowOf returns the largest window that RoCE's configuration takes of at most n bytes, or the
// smallest of all.
func windowOf(n int) int { return 1 << (bits.Len(uint(min(max(n, 128<<10), 16<<20))) - 1) }

// run lets one end move data for a second, after a tenth of a second in which the connection
// starts.
func (l *longPath) run(t *testing.T) {
	const size, depth = 1 << 20, 32
	const begin, measured = 100 * time.Millisecond, time.Second
	synctest.Test(t, func(t *testing.T) {
		lan := new(pipe.Switch)
		var ends [2]*endpoint
		var mr [2]*verbs.MR
		for i := range ends {
			way := impair.Direction{Loss: l.loss, Delay: 5 * time.Millisecond, Rate: l.rate, Queue: 32 << 20, Limit: 1 << 20}
			bottom := must(impair.New(lan.Port(), &impair.Config{Seed: uint64(i) + 1, Out: way}))(t)
			n := newNode(t, bottom, &rdmatransport.Config{RoCE: l.config},
				fmt.Sprintf("10.0.0.%d/24", i+1))
			ends[i] = n.newEndpoint(smallCap)
			mr[i] = n.reg(make([]byte, 2*size), allAccess)
		}
		ends[0].findNeighbour(ends[1].gids[1].GID.Addr())
		c := defaultTerms()
		c.mtu = l.mtu
		for i := range c.sides {
			c.sides[i].rd, c.sides[i].timeout = 32, 17 // 537 ms
		}
		connect(ends[0], ends[1], c)
		for range depth {
			ok(t, ends[1].qp.PostRecv(&verbs.RecvWR{SGList: []verbs.SGE{mr[1].SGE(size, size)}}))
		}
		wr := verbs.SendWR{Opcode: l.code, Flags: verbs.SendSignaled, RemoteAddr: mr[1].Addr(), RKey: mr[1].RKey(),
			SGList: []verbs.SGE{mr[0].SGE(0, size)}}
		ctx, cancel := context.WithCancel(context.Background())
		received := make(chan error, 1)
		go func() { received <- ends[1].receive(ctx, mr[1].SGE(size, size)) }()
		start, moved := time.Now(), 0
		ok(t, ends[0].keepBusy(&wr, depth, func() bool {
			at := time.Since(start)
			if at >= begin && at < begin+measured {
				moved += size
			}
			return at < begin+measured
		}))
		cancel()
		<-received
		l.share = 8 * float64(moved) / measured.Seconds() / float64(l.rate)
		for i, e := range ends {
			e.toErr()
			drain(t, e)
			ok(t, mr[i].Close())
			e.destroy()
			e.close()
		}
	})
}

// receive posts a receive request for each completed one.
func (e *endpoint) receive(ctx context.Context, to verbs.SGE) error {
	var wcs [16]verbs.WC
	for {
		n, err := e.wait(ctx, wcs[:])
		if err != nil {
			return err
		}
		for range n {
			if err := e.qp.PostRecv(&verbs.RecvWR{SGList: []verbs.SGE{to}}); err != nil {
				return err
			}
		}
	}
}

// drain takes the completions of a QP that has ended.
func drain(t *testing.T, e *endpoint) {
	var wcs [64]verbs.WC
	for must(e.cq.Poll(wcs[:]))(t) > 0 {
	}
}

// control is a way for a connection to determine its window.
type control struct {
	name   string
	config func(rate int64) roce.Config
}

var (
	// byWindow is a window of twice the bandwidth-delay product.
	byWindow = control{"window", func(rate int64) roce.Config {
		return roce.Config{SelectiveRepeat: true, Window: windowOf(2 * bdp(rate))}
	}}
	byDelay = control{"delay", func(int64) roce.Config {
		return roce.Config{SelectiveRepeat: true, Window: 16 << 20, ByDelay: &roce.ByDelay{}}
	}}
	byMarks = control{"DCQCN", func(rate int64) roce.Config {
		return roce.Config{SelectiveRepeat: true, Window: windowOf(2 * bdp(rate)), DCQCN: &roce.DCQCN{RPGMaxRate: rate}}
	}}
)

// TestLongPath: a connection fills a path of 10 ms, with and without loss, with a configured or a
// computed window.
func TestLongPath(t *testing.T) {
	report := newReport(t, "By delay, a connection that loses a packet while it begins goes on more slowly: at 10 Gbit/s and path MTU "+
		"1024 that takes most of the second that is\nmeasured, and no share is asked for in these rows.\n\n"+
		"| operation | rate | path MTU | loss | window of twice the path's | by delay |\n|---|---|---|---|---|---|\n")
	var plots [][]*plot.Plot
	for _, code := range []verbs.WROpcode{verbs.RDMAWrite, verbs.Send, verbs.RDMARead} {
		var row []*plot.Plot
		for _, rate := range []int64{1e9, 10e9} {
			shares := map[string]plotter.XYs{} // share of the rate for each of losses
			for _, mtu := range []verbs.MTU{verbs.MTU1024, verbs.MTU4096} {
				for i, loss := range losses {
					inSystem := mtu == verbs.MTU4096 && rate == 1e9 ||
						// Maximum number of packets.
						mtu == verbs.MTU1024 && rate == 10e9 && loss == 0.001 && code == verbs.RDMAWrite
					usual := mtu == verbs.MTU4096 && rate == 1e9 && loss == 0.001 && (code == verbs.RDMAWrite || !raceEnabled)
					if !usual && !gate.InLong() && (!inSystem || !gate.InSystem() || raceEnabled) {
						continue
					}
					report.printf("| %v | %d Gbit/s | %v | %v %%", code, rate/1e9, mtu, loss*100)
					for _, c := range []control{byWindow, byDelay} {
						t.Run(fmt.Sprintf("%v/%d Gbit/s/%v/loss %v/%s", code, rate/1e9, mtu, loss, c.name), func(t *testing.T) {
							l := longPath{rate: rate, loss: loss, mtu: mtu, code: code, config: c.config(rate)}
							l.run(t)
							t.Logf("%.3f of the rate", l.share)
							report.printf(" | %.2f", l.share)
							line := fmt.Sprintf("%s, path MTU %v", c.name, mtu)
							shares[line] = append(shares[line], plotter.XY{X: float64(i), Y: l.share})
							// The window needs most of the second to grow: the first loss ends its
							// doubling.
							growing := c.name == byDelay.name && mtu == verbs.MTU1024 && rate == 10e9 && loss > 0
							if least := map[float64]float64{0: 0.9, 0.0001: 0.8, 0.001: 0.8}[loss]; l.share < least && !growing {
								t.Errorf("%.3f of the rate, want %v", l.share, least)
							}
						})
					}
					report.printf(" |\n")
				}
			}
			row = append(row, plotShares(t, fmt.Sprintf("%v, %d Gbit/s", code, rate/1e9), shares))
		}
		plots = append(plots, row)
	}
	report.write(t, "longpath.md")
	report.draw(t, "longpath.svg", plots)
}

var losses = []float64{0, 0.0001, 0.001, 0.01}

// plotShares draws the used share of the rate against the loss.
func plotShares(t *testing.T, title string, shares map[string]plotter.XYs) *plot.Plot {
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text, p.Y.Min, p.Y.Max = title, "loss", "of the rate", 0, 1
	p.Legend.XOffs, p.Legend.Left = vg.Centimeter/2, true
	var names []string
	for _, loss := range losses {
		names = append(names, fmt.Sprintf("%v %%", loss*100))
	}
	p.NominalX(names...)
	for i, name := range slices.Sorted(maps.Keys(shares)) {
		l, points, err := plotter.NewLinePoints(shares[name])
		ok(t, err)
		l.Color, points.Color = plotutil.Color(i), plotutil.Color(i)
		p.Add(l, points)
		p.Legend.Add(name, l, points)
	}
	return p
}
