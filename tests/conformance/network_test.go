package conformance

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/impair"
)

// network describes the impairments of a scenario's network in each direction.
type network struct {
	ways    [2]impair.Direction
	seed    uint64
	timeout uint8 // the matching local ACK timeout
	direct  bool  // no network: the memory of both nodes is in one process
}

// drawNetwork selects the impairments by seed: each one alone, and all together.
func drawNetwork(seed uint64, r *rand.Rand) network {
	n := network{seed: seed, timeout: 14}
	kind := seed % 8
	both := r.IntN(4) > 0 // otherwise one direction only
	for i := range n.ways {
		w := &n.ways[i]
		is := func(k uint64) bool { return kind == k || kind == 7 && r.IntN(3) == 0 }
		if is(1) {
			w.Loss = []float64{0.001, 0.01, 0.05, 0.2}[r.IntN(4)]
		}
		if is(2) {
			w.Burst = impair.Burst{Enter: 0.001 + 0.02*r.Float64(), Leave: 0.1 + 0.8*r.Float64()}
		}
		if is(3) {
			w.Duplicate = []float64{0.01, 0.1, 0.5, 1}[r.IntN(4)]
		}
		if is(4) {
			w.Reorder = []float64{0.001, 0.01, 0.1}[r.IntN(3)]
			w.Hold = time.Duration(1+r.IntN(2000)) * time.Microsecond
		}
		if is(5) {
			w.Corrupt = []float64{0.001, 0.01, 0.05}[r.IntN(3)]
		}
		if is(6) {
			w.Delay = time.Duration(1+r.IntN(5000)) * time.Microsecond
			w.Jitter = time.Duration(r.Int64N(int64(w.Delay)))
			if r.IntN(2) == 0 { // order kept
				w.Jitter = 0
			}
			if r.IntN(2) == 0 {
				w.Rate = []int64{100e6, 1e9, 10e9}[r.IntN(3)]
			}
			n.timeout = 16 // a window takes 43 ms at 100 Mbit/s
		}
		if i == 1 && !both {
			n.ways[r.IntN(2)] = impair.Direction{}
		}
	}
	if kind < 6 && kind != 4 && r.IntN(3) == 0 {
		n.timeout = uint8(1 + r.IntN(14))
	}
	return n
}

// impair applies the network's impairments to the packets that node i sends.
func (n *network) impair(t *testing.T, l link.Link, i int) link.Link {
	switch {
	case n.direct:
		return l
	case n.clean():
		return cable{l} // superframes arrive whole
	}
	return must(impair.New(l, &impair.Config{Seed: n.seed<<1 | uint64(i), Out: n.ways[i]}))(t)
}

func (n *network) clean() bool { return n.direct || n.seed%8 == 0 }

// harsh reports whether eight attempts in a row may fail.
func (n *network) harsh() bool {
	for _, w := range n.ways {
		if w.Loss+w.Corrupt >= 0.05 || w.Burst.Enter > 0 {
			return true
		}
	}
	return false
}

func (n *network) String() string {
	s := fmt.Sprintf("timeout %d", n.timeout)
	for i, w := range n.ways {
		s += fmt.Sprintf("; way %d: loss %v burst %v/%v dup %v reorder %v by %v corrupt %v delay %v±%v rate %d", i, w.Loss,
			w.Burst.Enter, w.Burst.Leave, w.Duplicate, w.Reorder, w.Hold, w.Corrupt, w.Delay, w.Jitter, w.Rate)
	}
	return s
}
