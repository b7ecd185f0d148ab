package fabric

import (
	"math/rand/v2"
	"sync/atomic"
)

// node is a switch: output queues in a shared buffer.
type node struct {
	origin origin
	random *rand.Rand
	used   int // bytes of the buffer

	_ gap // the below is read in other shards too

	f     *Fabric
	shard *shard
	name  string
	index int
	salt  uint32 // of its hash, so that switches in turn choose independently
	ports []*Port

	sets  atomic.Pointer[[][]*Port] // of ports that are the ways to some switch; the first is empty
	known map[string]uint16         // the index of a set, by the indices of its ports

	_ gap
}

// receive forwards a packet.
func (s *node) receive(p *packet, in *Port) {
	if p.to >= 0 {
		s.forward(p, in)
		return
	}
	// The first switch makes a copy for each host that receives.
	for _, h := range s.f.hosts {
		if h.index != p.from && h.receives.Load() {
			c := s.shard.copyOf(p)
			c.to = h.index
			s.forward(c, in)
		}
	}
	s.shard.free(p)
}

func (s *node) forward(p *packet, in *Port) {
	to := s.f.edges[p.to]
	if to.sw != s {
		ways := s.ways(to.sw)
		switch n := uint32(len(ways)); {
		case n == 0:
			s.drop(p, in)
			return
		case n == 1:
			to = ways[0]
		case s.f.cfg.Switch.ECMP == Spray:
			to = ways[s.random.Uint32N(n)]
		default:
			to = ways[mix(p.hash^s.salt)%n]
		}
	}
	if to.down {
		s.drop(p, to)
		return
	}
	s.admit(p, in, to)
}

func (s *node) drop(p *packet, at *Port) {
	at.counters.Dropped++
	s.shard.counters.Dropped++
	s.shard.free(p)
}

// admit puts a packet into an output queue if there is room, or trims it.
func (s *node) admit(p *packet, in, to *Port) {
	cfg := &s.f.cfg.Switch
	if !s.fits(p, in, to) {
		if !s.trim(p) || !s.fits(p, in, to) {
			s.drop(p, to)
			return
		}
		to.counters.Trimmed++
		s.shard.counters.Trimmed++
	}
	if !cfg.ECN.AtDeparture {
		s.mark(p, to)
	}
	p.in = in.index
	in.stored[p.class] += int(p.size)
	s.used += int(p.size)
	if lossless := cfg.PFC.Classes>>p.class&1 != 0; lossless && in.stored[p.class] > cfg.PFC.Xoff {
		in.pause(p.class, true)
	}
	to.send(p)
}

// fits reports whether there is room for a packet in its output queue.
func (s *node) fits(p *packet, in, to *Port) bool {
	cfg, size := &s.f.cfg.Switch, int(p.size)
	if cfg.PFC.Classes>>p.class&1 != 0 {
		if in.stored[p.class]+size > cfg.PFC.Xoff+in.headroom {
			return false
		}
	} else {
		queued := to.queues[p.class].bytes + size
		if cfg.Queue > 0 && queued > cfg.Queue || cfg.Buffer > 0 && queued > int(cfg.Alpha*float64(cfg.Buffer-s.used)) {
			return false
		}
	}
	return cfg.Buffer == 0 || s.used+size <= cfg.Buffer
}

// mark marks a packet by the length of its output queue, without the packet.
func (s *node) mark(p *packet, to *Port) {
	e, queued := &s.f.cfg.Switch.ECN, to.queues[p.class].bytes
	if e.Max == 0 || queued <= e.Min {
		return
	}
	if queued >= e.Max || s.random.Float64() < e.P*float64(queued-e.Min)/float64(e.Max-e.Min) {
		if p.mark() {
			to.counters.Marked++
			s.shard.counters.Marked++
		}
	}
}

// release frees the room of a packet that leaves.
func (s *node) release(p *packet) {
	in, size := s.ports[p.in], int(p.size)
	in.stored[p.class] -= size
	s.used -= size
	if in.pausing>>p.class&1 != 0 && in.stored[p.class] <= s.f.cfg.Switch.PFC.Xon {
		in.pause(p.class, false)
	}
}
