package fabric

import (
	"encoding/binary"
	"sync"
)

// search is the room of a search for the shortest ways.
type search struct {
	mu       sync.Mutex
	distance []int32
	queue    []*node
	key      []byte
}

// ways returns the ports of a switch on the shortest ways to another one, over cables that are not
// down.
func (s *node) ways(to *node) []*Port {
	r := s.f.routes[to.index].Load()
	if r == nil {
		r = s.f.route(to)
	}
	return (*s.sets.Load())[(*r)[s.index]]
}

// forgetRoutes is called when a cable was cut or mended.
func (f *Fabric) forgetRoutes() {
	clear(f.routes)
	for _, s := range f.switches {
		s.sets.Store(&[][]*Port{nil})
		s.known = nil
	}
}

// route computes the shortest ways from all switches to one: for each the index of a set of ports.
// Switches have few sets and many destinations. Other shards may use ways meanwhile, or want the
// same.
func (f *Fabric) route(to *node) *[]uint16 {
	x := &f.search
	x.mu.Lock()
	defer x.mu.Unlock()
	if r := f.routes[to.index].Load(); r != nil {
		return r
	}
	if x.distance == nil {
		x.distance = make([]int32, len(f.switches))
	}
	for i := range x.distance {
		x.distance[i] = -1
	}
	x.distance[to.index] = 0
	x.queue = append(x.queue[:0], to)
	for i := 0; i < len(x.queue); i++ {
		s := x.queue[i]
		for _, p := range s.ports {
			if n := p.peer.sw; n != nil && !p.down && x.distance[n.index] < 0 {
				x.distance[n.index] = x.distance[s.index] + 1
				x.queue = append(x.queue, n)
			}
		}
	}
	r := make([]uint16, len(f.switches))
	for _, s := range x.queue[1:] {
		x.key = x.key[:0]
		for _, p := range s.ports {
			if n := p.peer.sw; n != nil && !p.down && x.distance[n.index] == x.distance[s.index]-1 {
				x.key = binary.BigEndian.AppendUint32(x.key, uint32(p.index))
			}
		}
		r[s.index] = s.set(x.key)
	}
	f.routes[to.index].Store(&r)
	return &r
}

// set returns the index of a set of ports, whose indices are the key.
func (s *node) set(key []byte) uint16 {
	i, ok := s.known[string(key)]
	if !ok {
		var ports []*Port
		for b := key; len(b) > 0; b = b[4:] {
			ports = append(ports, s.ports[binary.BigEndian.Uint32(b)])
		}
		sets := *s.sets.Load()
		i = uint16(len(sets))
		sets = append(sets, ports) // beyond what others see
		s.sets.Store(&sets)
		if s.known == nil {
			s.known = map[string]uint16{}
		}
		s.known[string(key)] = i
	}
	return i
}
