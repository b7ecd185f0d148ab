package fabric

import (
	"fmt"
	"math"
	"slices"
	"time"

	network "github.com/softrnic/softrnic/link/fabric"
)

// ideals computes the times that flows take in an empty network: the requester's packets leave
// without gaps, each switch sends one when it has it whole, and the last acknowledgement returns. A
// READ has a request before that, and no acknowledgement. Of several shortest ways it is the
// fastest. Many pairs of hosts have ways of the same cables, and so the same times.
type ideals struct {
	r       *run
	fastest map[int][]arrival
	ways    map[[2]int]int // between two switches: the index in hops
	hops    [][]hop        // different ways
	known   map[string]int // their indices
	times   map[idealKey]time.Duration
}

type hop struct{ perByte, delay float64 } // ns

func hopOf(p *network.Port) hop { return hop{8e9 / p.Rate(), float64(p.Delay())} }

type idealKey struct {
	way   int // index in hops
	ends  [2]hop
	bytes int64
	read  bool
}

func newIdeals(r *run) *ideals {
	return &ideals{r, map[int][]arrival{}, map[[2]int]int{}, nil, map[string]int{}, map[idealKey]time.Duration{}}
}

// Bytes of a packet on the wire besides its payload.
const (
	framing   = 8 + 14 + 4 + 12 // preamble, header, FCS and gap of Ethernet
	roceBytes = 20 + 8 + 12 + 4 // IPv4, UDP, BTH and ICRC
	rethBytes = 16
	ackBytes  = 4 // AETH
	minWire   = 60 + 8 + 4 + 12
)

func wire(transport int64) float64 { return float64(max(framing+roceBytes+transport, minWire)) }

// of returns the ideal time of a flow.
func (i *ideals) of(f *flow) time.Duration {
	from, to := i.r.nodes[f.from].h.Port(), i.r.nodes[f.to].h.Port()
	between := i.way(i.r.graph.index[from.Peer().Node()], i.r.graph.index[to.Peer().Node()])
	key := idealKey{between, [2]hop{hopOf(from), hopOf(to)}, f.bytes, f.read}
	t, ok := i.times[key]
	if !ok {
		t = i.flight(slices.Concat([]hop{key.ends[0]}, i.hops[between], []hop{key.ends[1]}), f)
		i.times[key] = t
	}
	return t
}

// flight computes a flow's time along a way.
func (i *ideals) flight(way []hop, f *flow) time.Duration {
	mtu, message := int64(i.r.cfg.RDMA.MTU), int64(i.r.cfg.RDMA.Message)
	free := make([]float64, len(way))
	at := 0.0 // when the packet is whole at the end of the way
	lanes := i.r.shares(f.bytes)
	left := slices.Clone(lanes)
	for more := true; more; {
		more = false
		for k := range left { // the adapter takes turns between QPs
			if left[k] == 0 {
				continue
			}
			done := lanes[k] - left[k]
			first, message := done%message == 0, min(message-done%message, left[k])
			payload := min(message, mtu)
			left[k] -= payload
			more = more || left[k] > 0
			extra := int64(0)
			switch {
			case first && !f.read:
				extra = rethBytes
			case f.read && (first || payload == message):
				extra = ackBytes
			}
			size := wire((payload+3)&^3 + extra)
			at = 0
			for k, h := range way {
				free[k] = max(free[k], at) + size*h.perByte
				at = free[k] + h.delay
			}
		}
	}
	other := wire(ackBytes)
	if f.read {
		other = wire(rethBytes)
	}
	for _, h := range way {
		at += other*h.perByte + h.delay
	}
	return time.Duration(math.Round(at))
}

// arrival is the last cable of the best way to a switch.
type arrival struct {
	hops int     // 0: none is known
	time float64 // of a full packet, ns
	from int
	via  *network.Port
}

// way returns the cables from one switch to another one, as an index in hops.
func (i *ideals) way(from, to int) int {
	if w, ok := i.ways[[2]int{from, to}]; ok {
		return w
	}
	best := i.fastest[from]
	if best == nil {
		best = i.search(from)
		i.fastest[from] = best
	}
	var way []hop
	for at := to; at != from && best[at].via != nil; at = best[at].from {
		way = append(way, hopOf(best[at].via))
	}
	slices.Reverse(way)
	name := fmt.Sprint(way)
	w, ok := i.known[name]
	if !ok {
		w = len(i.hops)
		i.hops, i.known[name] = append(i.hops, way), w
	}
	i.ways[[2]int{from, to}] = w
	return w
}

// search finds the ways from a switch to all others: the fewest cables, and then the least time.
func (i *ideals) search(from int) []arrival {
	g := i.r.graph
	best := make([]arrival, len(g.cables))
	for level, hops := []int{from}, 1; len(level) > 0; hops++ {
		var next []int
		for _, s := range level {
			for _, c := range g.cables[s] {
				h := hopOf(c.port)
				t := best[s].time + float64(i.r.cfg.RDMA.MTU)*h.perByte + h.delay
				switch b := &best[c.to]; {
				case c.to == from:
				case b.hops == 0:
					next = append(next, c.to)
					*b = arrival{hops, t, s, c.port}
				case b.hops == hops && t < b.time:
					*b = arrival{hops, t, s, c.port}
				}
			}
		}
		level = next
	}
	return best
}
