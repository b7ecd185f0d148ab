package fabric_test

import (
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/softrnic/softrnic/link/fabric"
	"github.com/softrnic/softrnic/rdmatransport/roce"
	"github.com/softrnic/softrnic/verbs"
)

// BenchmarkPackets has the packets that hosts send in a second of real time, acknowledgements
// included, on one processor: an incast, and a permutation, in which each host writes to another.
func BenchmarkPackets(b *testing.B) {
	for _, c := range []struct {
		name        string
		topology    fabric.Topology
		permutation bool
		mtu         verbs.MTU
	}{
		{"incast/star16/4096", fabric.Star(16), false, verbs.MTU4096},
		{"incast/star16/1024", fabric.Star(16), false, verbs.MTU1024},
		{"permutation/star16/4096", fabric.Star(16), true, verbs.MTU4096},
		{"permutation/star16/1024", fabric.Star(16), true, verbs.MTU1024},
		{"permutation/fattree54/4096", fabric.FatTree(6), true, verbs.MTU4096},
		{"permutation/fattree54/1024", fabric.FatTree(6), true, verbs.MTU1024},
		{"permutation/fattree250/1024", fabric.FatTree(10), true, verbs.MTU1024},
	} {
		b.Run(c.name, func(b *testing.B) {
			f := newFabric(b, &fabric.Config{Topology: c.topology, Switch: fabric.Switch{
				ECN: fabric.ECN{Min: 100e3, Max: 400e3, P: 0.2}, PFC: fabric.PFC{Classes: 1, Xoff: 500e3}}})
			cfg := roce.Config{DCQCN: &roce.DCQCN{RPGMaxRate: 100e9}}
			if c.permutation {
				var nodes []*node
				for _, h := range f.Hosts() {
					nodes = append(nodes, onStatic(b, f, h, cfg))
				}
				for i, n := range nodes {
					x, y := connect(n, nodes[(i+len(nodes)/2)%len(nodes)], c.mtu)
					x.write(y, 256<<10, -1)
				}
			} else {
				incast(b, f, cfg, 15, c.mtu)
			}
			f.Run(100 * time.Microsecond)
			b.ResetTimer()
			start, began := f.Counters().Sent, f.Now()
			for range b.N {
				for until := f.Counters().Sent + 1000; f.Counters().Sent < until; {
					f.Run(time.Microsecond)
				}
			}
			sent := float64(f.Counters().Sent - start)
			b.ReportMetric(sent/b.Elapsed().Seconds()/1e3, "kpackets/s")
			b.ReportMetric(float64(f.Now()-began)/float64(b.Elapsed()), "virtual/real")
		})
	}
}

// BenchmarkWorkers has the real time that two workers take for a permutation, as a share of that of
// one, in turns. It is of tenth percentiles of short runs: most long runs are disturbed by other
// programs. It also has the events of a lookahead, and the busiest worker's share of those of a
// run: two workers take at least that share of one's time.
func BenchmarkWorkers(b *testing.B) {
	for _, c := range []struct {
		name     string
		topology fabric.Topology
	}{
		{"leafspine32", fabric.LeafSpine(4, 8, 4)}, {"leafspine64", fabric.LeafSpine(8, 8, 8)},
		{"fattree54", fabric.FatTree(6)}, {"fattree128", fabric.FatTree(8)},
	} {
		b.Run(c.name, func(b *testing.B) {
			var all [2]*fabric.Fabric
			for i := range all {
				f := newFabric(b, &fabric.Config{Topology: c.topology, Workers: 1 + i, Switch: fabric.Switch{
					ECN: fabric.ECN{Min: 100e3, Max: 400e3, P: 0.2}, PFC: fabric.PFC{Classes: 1, Xoff: 500e3}}})
				all[i] = f
				var nodes []*node
				for _, h := range f.Hosts() {
					nodes = append(nodes, onStatic(b, f, h, roce.Config{DCQCN: &roce.DCQCN{RPGMaxRate: 100e9}}))
				}
				for i, n := range nodes {
					x, y := connect(n, nodes[(i+len(nodes)/2)%len(nodes)], verbs.MTU4096)
					x.write(y, 256<<10, -1)
				}
				f.Run(100 * time.Microsecond)
			}
			var took [2][]time.Duration
			b.ReportAllocs()
			b.ResetTimer()
			for range b.N {
				for i, f := range all {
					began := time.Now()
					f.Run(20 * time.Microsecond)
					took[i] = append(took[i], time.Since(began))
				}
			}
			if a, b := all[0].Digest(), all[1].Digest(); a != b {
				panic(a + " is not " + b)
			}
			events, most := all[1].Work()
			lookaheads := float64(all[1].Now() / all[1].Lookahead())
			for i := range took {
				slices.Sort(took[i])
			}
			b.ReportMetric(took[1][b.N/10].Seconds()/took[0][b.N/10].Seconds(), "2workers/1worker")
			b.ReportMetric(float64(events)/lookaheads, "events/lookahead")
			b.ReportMetric(float64(most)/float64(events), "least")
		})
	}
}

// BenchmarkHosts has the time and the memory of a host with a device and 16 QPs.
func BenchmarkHosts(b *testing.B) {
	const hosts = 1000
	for range b.N {
		start, each := startHosts(b, hosts)
		b.ReportMetric(start.Seconds(), "s/1000hosts")
		b.ReportMetric(each/1024, "KiB/host")
	}
}

// TestHostMemory: a host with a device and 16 QPs takes less than a MiB.
func TestHostMemory(t *testing.T) {
	if _, each := startHosts(t, 200); each > 1<<20 {
		t.Errorf("a host takes %.0f KiB", each/1024)
	}
}

// startHosts starts hosts with a device each, and then connects each to 8 others by a QP. It
// returns the time until all are idle, and the bytes of a host, without the region that its program
// has.
func startHosts(tb testing.TB, hosts int) (start time.Duration, each float64) {
	memory := func() float64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return float64(m.HeapAlloc + m.StackInuse)
	}
	before, begun := memory(), time.Now()
	f := newFabric(tb, &fabric.Config{Topology: fabric.LeafSpine(hosts/40, 40, 10)})
	var nodes []*node
	for _, h := range f.Hosts() {
		nodes = append(nodes, onStatic(tb, f, h, roce.Config{}))
	}
	f.Run(time.Millisecond)
	start = time.Since(begun)
	for i, n := range nodes {
		for k := range 8 {
			connect(n, nodes[(i+k+1)%hosts], verbs.MTU4096)
		}
	}
	each = (memory()-before)/float64(hosts) - regionSize
	runtime.KeepAlive(nodes)
	return start, each
}
