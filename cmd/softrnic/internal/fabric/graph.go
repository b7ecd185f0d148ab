package fabric

import (
	"math/bits"
	"time"

	network "github.com/softrnic/softrnic/link/fabric"
)

// graph has the switches and the cables between them.
type graph struct {
	index  map[string]int             // of a switch, by name
	names  []string                   // of the switches
	ports  map[string][]*network.Port // of a switch, to hosts too
	cables [][]half                   // by the index of a switch
}

// half is a cable from one of its ends.
type half struct {
	to   int // the index of the switch at the other end
	port *network.Port
}

// newGraph returns the graph of the switches' ports, which are together for each switch.
func newGraph(ports []*network.Port) *graph {
	g := &graph{index: map[string]int{}, ports: map[string][]*network.Port{}}
	for _, p := range ports {
		if _, ok := g.index[p.Node()]; !ok {
			g.index[p.Node()] = len(g.names)
			g.names = append(g.names, p.Node())
		}
		g.ports[p.Node()] = append(g.ports[p.Node()], p)
	}
	g.cables = make([][]half, len(g.names))
	for s, name := range g.names {
		for _, p := range g.ports[name] {
			if to, ok := g.index[p.Peer().Node()]; ok {
				g.cables[s] = append(g.cables[s], half{to, p})
			}
		}
	}
	return g
}

// shortest returns the shortest delay of a cable between switches, or 0 if there is none.
func (g *graph) shortest() (delay time.Duration) {
	for _, cables := range g.cables {
		for _, c := range cables {
			if d := c.port.Delay(); delay == 0 || d < delay {
				delay = d
			}
			if delay == 0 {
				return 0
			}
		}
	}
	return delay
}

// distances writes the number of cables from each switch to one; -1 means that there is no way.
func (g *graph) distances(to int, distance []int) {
	for i := range distance {
		distance[i] = -1
	}
	distance[to] = 0
	for queue := []int{to}; len(queue) > 0; queue = queue[1:] {
		for _, c := range g.cables[queue[0]] {
			if distance[c.to] < 0 {
				distance[c.to] = distance[queue[0]] + 1
				queue = append(queue, c.to)
			}
		}
	}
}

// imbalances returns the groups of ways of equal length that have been used. The ways of a group
// lead to the same switches with hosts.
func (r *run) imbalances() (all []imbalance) {
	g := r.graph
	ends := make([]bool, len(g.names))
	for _, n := range r.nodes {
		ends[g.index[n.h.Port().Peer().Node()]] = true
	}
	leads := make([][]uint64, len(g.names)) // hashes of the switches to which a cable is on a shortest way; 0: none
	for s := range leads {
		leads[s] = make([]uint64, len(g.cables[s]))
	}
	distance := make([]int, len(g.names))
	for end, is := range ends {
		if !is {
			continue
		}
		g.distances(end, distance)
		for s := range g.cables {
			for k, c := range g.cables[s] {
				if distance[s] > 0 && distance[c.to] == distance[s]-1 {
					leads[s][k] = bits.RotateLeft64(leads[s][k]^uint64(end+1), 29)*0x9e3779b97f4a7c15 | 1
				}
			}
		}
	}
	for s, name := range g.names {
		groups := map[uint64][]*network.Port{}
		var hashes []uint64
		for k, c := range g.cables[s] {
			hash := leads[s][k]
			if groups[hash] == nil {
				hashes = append(hashes, hash)
			}
			groups[hash] = append(groups[hash], c.port)
		}
		for _, hash := range hashes {
			sum, most := uint64(0), groups[hash][0]
			for _, p := range groups[hash] {
				sum += p.Counters().Bytes
				if p.Counters().Bytes > most.Counters().Bytes {
					most = p
				}
			}
			if n := len(groups[hash]); n > 1 && sum > 0 && hash != 0 {
				all = append(all, imbalance{name, n, most.Peer().Node(), float64(most.Counters().Bytes)*float64(n)/float64(sum) - 1})
			}
		}
	}
	return all
}
