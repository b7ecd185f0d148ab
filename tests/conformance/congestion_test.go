package conformance

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/softrnic/softrnic/link/impair"
	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/rdmatransport"
	"github.com/softrnic/softrnic/rdmatransport/roce"
	"github.com/softrnic/softrnic/verbs"
)

// bottleneck is a switch port of 1 Gbit/s with a queue, to which two hosts of 1 Gbit/s send, in
// virtual time.
type bottleneck struct {
	control *roce.DCQCN
	got     [2]int // bytes of each flow
	queue   impair.Counters
	cnps    uint64
}

const bottleneckRate = 1e9

var bottleneckQueue = impair.Direction{
	Rate: bottleneckRate, Queue: 400e3, ECN: impair.ECN{Min: 20e3, Max: 200e3}, Delay: 10 * time.Microsecond,
}

// inFlight is the number of outstanding messages of each flow. The smaller number is enough for
// half of the link. But in a queue that overflows, flows of unequal size lose unequal shares.
var inFlight = [2]int{16, 3}

// run lets both hosts WRITE to the third, or lets the third READ from both, as long as both are
// active. The second begins late.
func (b *bottleneck) run(t *testing.T, code verbs.WROpcode) {
	const late, settle, measured, size = 20 * time.Millisecond, 100 * time.Millisecond, 200 * time.Millisecond, 64 << 10
	synctest.Test(t, func(t *testing.T) {
		lan := new(pipe.Switch)
		options := &rdmatransport.Config{RoCE: roce.Config{DCQCN: b.control, SelectiveRepeat: true}}
		port := must(impair.New(lan.Port(), &impair.Config{Seed: 1, In: bottleneckQueue}))(t)
		third := newNode(t, port, options, "10.0.0.3/24")
		var nodes [2]*node
		var flows [2][2]*endpoint // the poster, and its peer
		var mr [2][2]*verbs.MR
		begin := time.Now()
		result := make(chan error, 2)
		for i := range nodes {
			nodes[i] = newNode(t, cable{lan.Port()}, options, fmt.Sprintf("10.0.0.%d/24", i+1))
			nodes[i].findNeighbour(third.gids[1].GID.Addr())
			poster, peer := nodes[i], third
			if code == verbs.RDMARead {
				poster, peer = third, nodes[i]
			}
			for j, n := range []*node{poster, peer} {
				flows[i][j] = n.newEndpoint(smallCap)
				mr[i][j] = n.reg(make([]byte, size), allAccess)
			}
			connect(flows[i][0], flows[i][1], defaultTerms())
		}
		for i := range flows {
			go func() {
				time.Sleep(time.Duration(i) * late)
				wr := verbs.SendWR{Opcode: code, Flags: verbs.SendSignaled, RemoteAddr: mr[i][1].Addr(), RKey: mr[i][1].RKey(),
					SGList: []verbs.SGE{mr[i][0].SGE(0, size)}}
				result <- flows[i][0].keepBusy(&wr, inFlight[i], func() bool {
					now := time.Since(begin)
					if now >= settle && now < settle+measured {
						b.got[i] += size
					}
					return now < settle+measured
				})
			}()
		}
		ok(t, <-result)
		ok(t, <-result)
		b.queue, _ = port.Counters()
		b.cnps = third.counter("np_cnp_sent")
		for i := range flows {
			for j := range flows[i] {
				flows[i][j].toErr()
				flows[i][j].poll()
				ok(t, mr[i][j].Close())
				flows[i][j].destroy()
			}
			nodes[i].close()
		}
		third.close()
	})
	t.Logf("control %v: %d and %d bytes, %+v, %d CNPs", b.control != nil, b.got[0], b.got[1], b.queue, b.cnps)
}

// share returns the first flow's share of the total throughput.
func (b *bottleneck) share() float64 { return float64(b.got[0]) / float64(b.got[0]+b.got[1]) }

// keepBusy keeps n requests like wr in flight until more returns false, which is called for each
// completion. It then waits for the remaining requests.
func (e *endpoint) keepBusy(wr *verbs.SendWR, n int, more func() bool) error {
	var wcs [16]verbs.WC
	for posted, done, stop := 0, 0, false; !stop || done < posted; {
		for ; !stop && posted-done < n; posted++ {
			if err := e.qp.PostSend(wr); err != nil {
				return err
			}
		}
		k, err := e.wait(context.Background(), wcs[:])
		if err != nil {
			return err
		}
		for _, wc := range wcs[:k] {
			if wc.Status != verbs.WCSuccess {
				return fmt.Errorf("completion with %v", wc.Status)
			}
			done++
			stop = stop || !more()
		}
	}
	return nil
}

// TestCongestion: two connections through one queue share its throughput fairly and do not overflow
// it, with congestion control. Without it the queue overflows and the shares are unequal.
func TestCongestion(t *testing.T) {
	for _, code := range []verbs.WROpcode{verbs.RDMAWrite, verbs.RDMARead} {
		t.Run(code.String(), func(t *testing.T) {
			with, without := bottleneck{control: &roce.DCQCN{RPGMaxRate: bottleneckRate}}, bottleneck{}
			with.run(t, code)
			without.run(t, code)
			if c := with.queue; c.Overflowed != 0 || c.Marked == 0 || with.cnps == 0 {
				t.Errorf("the queue of those that control congestion: %+v; %d CNPs", c, with.cnps)
			}
			if share := with.share(); share < 0.475 || share > 0.525 {
				t.Errorf("the first has a share of %.3f, want shares within 10 %% of each other", share)
			}
			if used := float64(with.got[0]+with.got[1]) * 8 / 0.2 / bottleneckRate; used < 0.8 {
				t.Errorf("they use %.2f of the link", used)
			}
			if share := without.share(); share > 0.4 && share < 0.6 {
				t.Errorf("without congestion control, the first has a share of %.3f", share)
			}
			if c := without.queue; c.Overflowed == 0 || c.Marked != 0 || without.cnps != 0 {
				t.Errorf("the queue of those that do not: %+v; %d CNPs", c, without.cnps)
			}
		})
	}
}
