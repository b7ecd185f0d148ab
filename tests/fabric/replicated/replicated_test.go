package replicated

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/softrnic/softrnic/link/fabric"
)

var (
	oneSeed = flag.Uint64("seed", 0, "the only seed of TestFailures; 0: all")
	seeds   = flag.Uint64("seeds", 200, "the number of seeds")
)

const (
	nodes    = 5
	troubled = 15 * time.Millisecond // during which failures begin
	longest  = 4 * time.Millisecond  // of a failure
	calm     = 15 * time.Millisecond // at the end, in which all nodes must catch up
)

// record has the values that nodes have committed.
type record struct {
	values  []uint64 // by index, as of the first node that has committed it
	by      []int    // that node
	commits [nodes]int
	err     error // the first contradiction
}

func (r *record) commit(node, index int, value uint64) {
	switch r.commits[node] = index; {
	case index == len(r.values)+1:
		r.values, r.by = append(r.values, value), append(r.by, node)
	case r.values[index-1] != value && r.err == nil:
		r.err = fmt.Errorf("at index %d, node %d has committed %d, and node %d before it %d",
			index, node, value, r.by[index-1], r.values[index-1])
	}
}

// result is the result of a run.
type result struct {
	entries int // that are committed
	lost    uint64
	digest  string
	err     error
}

// run has five nodes in five racks, with two ways between each two. Cables are cut, switches fail
// and bits are wrong for a while. All of it follows from the seed.
func run(t *testing.T, seed uint64, votesBlindly bool) (r result) {
	f, err := fabric.New(&fabric.Config{Seed: seed, Topology: fabric.LeafSpine(nodes, 1, 2)})
	if err != nil {
		t.Fatal(err)
	}
	var got record
	var hosts []*Host
	for i, h := range f.Hosts() {
		host, err := Open(f, h, func(index int, value uint64) { got.commit(i, index, value) })
		if err != nil {
			t.Fatal(err)
		}
		host.Node.votesBlindly = votesBlindly
		hosts = append(hosts, host)
	}
	defer func() {
		f.Close()
		for _, h := range hosts {
			if err := h.Close(); err != nil {
				t.Error(err)
			}
		}
	}()
	last := uint64(0)
	for _, h := range hosts { // a client at each node
		h.h.Go(func(p *fabric.Process) {
			for {
				p.Sleep(200 * time.Microsecond)
				if h.Node.Propose(p.Now(), last+1) {
					last++
				}
			}
		})
	}
	fail(f, rand.New(rand.NewPCG(seed, 1)))

	f.Run(troubled + longest)
	before := len(got.values)
	f.Run(calm)
	for i, n := range got.commits {
		if got.err == nil && n <= before {
			got.err = fmt.Errorf("node %d has %d entries: all nodes together had %d when the last failure ended", i, n, before)
		}
	}
	return result{len(got.values), f.Counters().Lost, f.Digest(), got.err}
}

// fail starts failures.
func fail(f *fabric.Fabric, random *rand.Rand) {
	for range 10 {
		var cables []*fabric.Port
		switch leaf, spine := fmt.Sprint("leaf", random.IntN(nodes)), fmt.Sprint("spine", random.IntN(2)); random.IntN(4) {
		case 0: // a host's cable
			cables = append(cables, f.Hosts()[random.IntN(nodes)].Port())
		case 1: // a cable between switches
			cables = append(cables, f.Port(leaf, spine))
		case 2: // a spine
			for i := range nodes {
				cables = append(cables, f.Port(fmt.Sprint("leaf", i), spine))
			}
		case 3: // two nodes at once: three are still a majority
			one := random.IntN(nodes)
			cables = append(cables, f.Hosts()[one].Port(), f.Hosts()[(one+1+random.IntN(nodes-1))%nodes].Port())
		}
		at, takes := time.Duration(random.Int64N(int64(troubled))), time.Duration(random.Int64N(int64(longest)))
		onlyBits := random.IntN(4) == 0
		set := func(broken bool) {
			for _, c := range cables {
				if !onlyBits {
					c.SetDown(broken)
					continue
				}
				rate := 0.0
				if broken {
					rate = 1e-4
				}
				check(c.SetBitErrors(rate))
			}
		}
		f.Hosts()[0].Go(func(p *fabric.Process) {
			p.Sleep(at)
			set(true)
			p.Sleep(takes)
			set(false)
		})
	}
}

// TestFailures: whatever fails, no two nodes ever have different entries at the same index, and all
// go on when nothing fails any more.
func TestFailures(t *testing.T) {
	from, to := uint64(1), *seeds
	if *oneSeed != 0 {
		from, to = *oneSeed, *oneSeed
	}
	begun, entries, lost := time.Now(), 0, uint64(0)
	for seed := from; seed <= to; seed++ {
		r := run(t, seed, false)
		if r.err != nil {
			t.Errorf("seed %d: %v: repeat it with -seed %[1]d", seed, r.err)
		}
		entries, lost = entries+r.entries, lost+r.lost
	}
	if entries == 0 || lost == 0 {
		t.Errorf("%d entries, %d lost packets", entries, lost)
	}
	t.Logf("%d seeds: %d entries, %d lost packets, in %v", to-from+1, entries, lost, time.Since(begun).Round(time.Millisecond))
}

// TestPlantedFault: a node that votes for candidates without its entries loses committed ones. One
// of the seeds finds it, and finds it again.
func TestPlantedFault(t *testing.T) {
	for seed := uint64(1); seed <= *seeds; seed++ {
		r := run(t, seed, true)
		if r.err == nil {
			continue
		}
		again := run(t, seed, true)
		if again.err == nil || again.err.Error() != r.err.Error() || again.digest != r.digest {
			t.Errorf("seed %d: %v, digest %s; and again: %v, digest %s", seed, r.err, r.digest, again.err, again.digest)
		}
		t.Logf("seed %d: %v", seed, r.err)
		return
	}
	t.Errorf("none of %d seeds has found the fault", *seeds)
}
