package fabric_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/softrnic/softrnic/link/fabric"
	"github.com/softrnic/softrnic/rdmatransport/roce"
	"github.com/softrnic/softrnic/tests/stacktest"
	"github.com/softrnic/softrnic/verbs"
)

// flows starts WRITEs between random hosts at random times (Poisson) for a duration. Each has QPs
// of its own. Half are of up to 1 KB, 15 % of 200 KB to 1 MB, and the others between. It returns
// the times that they took.
func flows(t testing.TB, f *fabric.Fabric, cfg roce.Config, rate, load float64, d time.Duration, seed uint64) (took []time.Duration) {
	var nodes []*node
	for _, h := range f.Hosts() {
		n := onStatic(t, f, h, cfg)
		n.timeout = 6 // 262 µs
		nodes = append(nodes, n)
	}
	x := rand.New(rand.NewPCG(seed, 0))
	between := func(a, b int) int { return a + x.IntN(b-a) }
	const mean = 0.5*0.5e3 + 0.35*100e3 + 0.15*600e3
	gap := mean * 8 / (load * rate * float64(len(nodes))) // s
	n, left := 0, 0
	for at := 0.0; at < d.Seconds(); at += -gap * math.Log(1-x.Float64()) {
		size := 0
		switch p := x.Float64(); {
		case p < 0.5:
			size = between(32, 1000)
		case p < 0.85:
			size = between(1000, 200e3)
		default:
			size = between(200e3, 1e6)
		}
		from := x.IntN(len(nodes))
		to := (from + between(1, len(nodes))) % len(nodes)
		n++
		left++
		f.Hosts()[from].Clock().AfterFunc(time.Duration(at*1e9), func() {
			begin := f.Now()
			a, b := connect(nodes[from], nodes[to], verbs.MTU1024)
			a.write(b, size, 1).done = func() {
				took = append(took, f.Now()-begin)
				left--
			}
		})
	}
	for f.Run(d); left > 0 && f.Now() < 20*d; {
		f.Run(d / 10)
	}
	if left > 0 {
		t.Errorf("%d of %d flows have not ended", left, n)
	}
	slices.Sort(took)
	return took
}

// TestSelectiveRepeat: without PFC, and with windows of about the bandwidth-delay product, flows
// that retransmit only what was lost are faster than those that go back (Mittal et al., SIGCOMM
// 2018). The mean was 0.65 ms with timeouts for software on a scheduler, 0.50 ms with the first
// loss of a flow treated like others, 0.33 ms with timeouts by the round trip only, and is 0.24 ms.
// Adapters that are full do not change that, but flows that go back take a tenth less with them.
func TestSelectiveRepeat(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes long with the race detector")
	}
	d := time.Duration(stacktest.Size(1, 1, 20)) * time.Millisecond
	var means [2]time.Duration
	for i, selective := range []bool{false, true} {
		f := newFabric(t, &fabric.Config{Topology: fabric.FatTree(4), Seed: 1, Link: fabric.Link{Rate: 40e9, Delay: 2 * time.Microsecond},
			Switch: fabric.Switch{Queue: 120e3}})
		took := flows(t, f, roce.Config{SelectiveRepeat: selective, Window: 128 << 10}, 40e9, 0.7, d, 1)
		for _, t := range took {
			means[i] += t / time.Duration(len(took))
		}
		t.Logf("result: selective repeat %t: %d flows, mean %v, 99 %% %v, %.2f %% lost", selective, len(took), means[i],
			took[len(took)*99/100], 100*float64(f.Counters().Dropped)/float64(f.Counters().Sent))
	}
	if means[1] > means[0]*4/5 || means[1] > 300*time.Microsecond {
		t.Errorf("flows take %v, and %v if they go back", means[1], means[0])
	}
}

// TestNoProbes: nothing is sent twice on a connection without loss, also if a rate delays packets
// and their acknowledgements.
func TestNoProbes(t *testing.T) {
	f := newFabric(t, &fabric.Config{Topology: fabric.Star(2)})
	x, y := connect(onStatic(t, f, f.Hosts()[0], roce.Config{}), onStatic(t, f, f.Hosts()[1], roce.Config{}), verbs.MTU1024)
	const kbits, size, count = 100e3, 64 << 10, 4
	s := x.write(y, size, count)
	f.Run(time.Second) // the round trip is known
	ok(t, x.qp.Modify(&verbs.QPAttr{QPState: verbs.StateRTS, RateLimit: kbits}, verbs.QPAttrState|verbs.QPAttrRateLimit))
	s.left = count
	s.post()
	s.post()
	f.Run(time.Second)
	if n := f.Hosts()[0].Port().Counters().Packets; s.bytes != 2*size*count || n != 2*size*count/1024 {
		t.Errorf("%d packets for %d bytes", n, s.bytes)
	}
}
