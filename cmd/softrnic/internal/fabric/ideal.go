package fabric

import (
	"math"
	"slices"
	"time"

	network "github.com/softrnic/softrnic/link/fabric"
)

// ideals computes the times that flows take in an empty network: the requester's packets leave
// without gaps, each switch sends one when it has it whole, and the last acknowledgement returns. A
// READ has a request before that, and no acknowledgement. Of several shortest ways it is the
// fastest.
type ideals struct {
	r     *run
	ways  map[[2]*network.Port][]hop // between the ports of switches to two hosts
	times map[idealKey]time.Duration
}

type hop struct{ perByte, delay float64 } // ns

type idealKey struct {
	ends  [2]*network.Port
	bytes int64
	read  bool
}

func newIdeals(r *run) *ideals {
	return &ideals{r, map[[2]*network.Port][]hop{}, map[idealKey]time.Duration{}}
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
	key := idealKey{[2]*network.Port{from, to}, f.bytes, f.read}
	t, ok := i.times[key]
	if !ok {
		way := i.way(from, to)
		t = i.flight(way, f)
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

// way returns the cables from one host to another.
func (i *ideals) way(from, to *network.Port) []hop {
	key := [2]*network.Port{from.Peer(), to.Peer()}
	if w, ok := i.ways[key]; ok {
		return w
	}
	one := func(p *network.Port) hop { return hop{8e9 / p.Rate(), float64(p.Delay())} }
	// Breadth first, by hops and then by the time of a full packet.
	type state struct {
		hops int
		time float64
		via  *network.Port
	}
	ports := map[string][]*network.Port{}
	for _, p := range i.r.ports[len(i.r.nodes):] {
		ports[p.Node()] = append(ports[p.Node()], p)
	}
	start, end := from.Peer().Node(), to.Peer().Node()
	best := map[string]state{start: {}}
	for level, hops := []string{start}, 1; len(level) > 0; hops++ {
		var next []string
		for _, node := range level {
			for _, p := range ports[node] {
				h := one(p)
				peer := p.Peer().Node()
				t := best[node].time + float64(i.r.cfg.RDMA.MTU)*h.perByte + h.delay
				if b, ok := best[peer]; !ok && len(ports[peer]) > 0 {
					next = append(next, peer)
					best[peer] = state{hops, t, p}
				} else if ok && b.hops == hops && t < b.time {
					best[peer] = state{hops, t, p}
				}
			}
		}
		level = next
	}
	way := []hop{one(to)}
	for at := end; at != start; {
		via := best[at].via
		if via == nil { // there is no way
			return nil
		}
		way = append([]hop{one(via)}, way...)
		at = via.Node()
	}
	way = append([]hop{one(from)}, way...)
	i.ways[key] = way
	return way
}
