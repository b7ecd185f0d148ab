package conformance

import (
	"fmt"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/softrnic/softrnic/link/impair"
	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/rdmatransport"
	"github.com/softrnic/softrnic/rdmatransport/roce"
	"github.com/softrnic/softrnic/rdmatransport/trace"
	"github.com/softrnic/softrnic/verbs"
)

// crossing is flows from several hosts that meet in the queue of one switch port, on paths of 10 ms, in virtual time.
type crossing struct {
	flows   int
	rate    int64 // bits of frame a second
	config  roce.Config
	queue   impair.Counters
	share   float64     // of the rate that is user data, while it is measured
	jain    float64     // Jain's index of the flows' shares of that
	samples [][]float64 // Mbit/s of the first flows, each sampling period
}

// jain is 1 where all are equal, and 1/n where one has all.
func jain(x []float64) float64 {
	sum, squares := 0.0, 0.0
	for _, v := range x {
		sum += v
		squares += v * v
	}
	return sum * sum / float64(len(x)) / squares
}

func (c *crossing) run(t *testing.T, settle, measured time.Duration) {
	const size, depth, hosts, sample = 32 << 10, 500, 4, 20 * time.Millisecond
	bdp := int(c.rate / 8 / 100)
	synctest.Test(t, func(t *testing.T) {
		lan := new(pipe.Switch)
		options := []rdmatransport.Option{rdmatransport.RoCE(c.config)}
		meet := impair.Direction{Rate: c.rate, Queue: 2 * bdp, ECN: impair.ECN{Min: bdp / 20, Max: bdp / 2}, Delay: 5 * time.Millisecond, Limit: 1 << 20}
		back := impair.Direction{Delay: 5 * time.Millisecond, Limit: 1 << 20}
		port := must(impair.New(lan.Port(), impair.Config{Seed: 1, In: meet, Out: back}))(t)
		far := newNode(t, port, options, "10.0.0.100/24")
		var near []*node
		for i := range min(hosts, c.flows) {
			options := options
			if i == 0 && os.Getenv("TRC") != "" {
				options = append(options[:1:1], rdmatransport.Trace(func(e trace.Event) {
					fmt.Println(e.Time.UnixMicro()%100000000, e.QPN, e.Type, e.From, e.To, e.PSN, e.Packets, e.Duration, e.Detail)
				}))
			}
			n := newNode(t, cable{lan.Port()}, options, fmt.Sprintf("10.0.0.%d/24", i+1))
			n.findNeighbour(far.gids[1].GID.Addr())
			near = append(near, n)
		}
		from := near[0].reg(make([]byte, size), allAccess)
		_ = from
		regions := make([]*verbs.MR, len(near))
		regions[0] = from
		for i := 1; i < len(near); i++ {
			regions[i] = near[i].reg(make([]byte, size), allAccess)
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
		recent := make([]float64, c.flows)
		for i := range ends {
			ends[i] = [2]*endpoint{near[i%len(near)].newEndpoint(deep), far.newEndpoint(smallCap)}
			connect(ends[i][0], ends[i][1], terms)
		}
		start, result := time.Now(), make(chan error, c.flows)
		for i := range ends {
			go func() {
				time.Sleep(time.Duration(i) * settle / 2 / time.Duration(c.flows)) // they begin one after the other
				wr := verbs.SendWR{Opcode: verbs.RDMAWrite, Flags: verbs.SendSignaled, RemoteAddr: to.Addr(), RKey: to.RKey(),
					SGList: []verbs.SGE{regions[i%len(near)].SGE(0, size)}}
				result <- ends[i][0].keepBusy(&wr, depth, func() bool {
					at := time.Since(start)
					if recent[i] += size; at >= settle && at < settle+measured {
						got[i] += size
					}
					return at < settle+measured
				})
			}()
		}
		for time.Since(start) < settle+measured {
			time.Sleep(sample)
			row := make([]float64, c.flows)
			for i := range row {
				row[i], recent[i] = recent[i]*8/sample.Seconds()/1e6, 0
			}
			c.samples = append(c.samples, row)
		}
		for range ends {
			ok(t, <-result)
		}
		c.queue, _ = port.Counters()
		sum := 0.0
		for _, v := range got {
			sum += v
		}
		if os.Getenv("SMP") != "" { fmt.Println("GOT", got) }
		c.share, c.jain = sum*8/measured.Seconds()/float64(c.rate), jain(got)
		for i := range ends {
			for _, e := range ends[i] {
				e.toErr()
				drain(t, e)
				e.destroy()
			}
		}
		for i, n := range near {
			ok(t, regions[i].Dereg())
			n.close()
		}
		ok(t, to.Dereg())
		far.close()
	})
}

func TestFairness(t *testing.T) {
	for _, rate := range []int64{1e9, 10e9} {
		for _, flows := range []int{2, 10, 100} {
			for name, cfg := range map[string]roce.Config{
				"none":  {},
				"DCQCN": {DCQCN: &roce.DCQCN{RPGMaxRate: rate}},
				"Copa":  {Copa: &roce.Copa{}},
			} {
				t.Run(fmt.Sprintf("%s/%d Gbit/s/%d flows", name, rate/1e9, flows), func(t *testing.T) {
					c := crossing{flows: flows, rate: rate, config: cfg}
					c.config.SelectiveRepeat = true
					c.config.Window = int(2 * rate / 800)
					c.run(t, 3*time.Second, time.Second)
					t.Logf("share %.3f, Jain %.3f, queue at most %.2f ms, %+v", c.share, c.jain, float64(c.queue.LongestQueue)*8e3/float64(rate), c.queue)
					if os.Getenv("SMP") != "" {
						for i, r := range c.samples {
							fmt.Println(i*20, r[:min(len(r), 6)])
						}
					}
				})
			}
		}
	}
}
