package fabric

import (
	"fmt"
	"math"
	"math/bits"
	"math/rand/v2"
	"strings"
	"sync/atomic"
)

// Topology says which switches there are, and what is connected to what.
type Topology struct {
	// Switches are the names of the switches.
	Switches []string
	// Hosts has the name of each host's switch. The hosts are called host0, host1 and so on.
	Hosts []string
	// Cables connect switches.
	Cables []Cable
}

// Cable connects two switches.
type Cable struct {
	A, B string
	// Link overrides Config.Link where it is not zero.
	Link Link
}

const (
	// maxHosts is as many as there are addresses below 10.0.0.0/8 and ports in a packet's fields.
	maxHosts = 1 << 20
	// maxSwitches bounds the memory of the routes, which is twice its square.
	maxSwitches = 1 << 12
	// tooMany hosts and more are an error of New. No topology has more.
	tooMany = maxHosts + 1
)

// Star has all hosts at one switch, "switch".
func Star(hosts int) Topology {
	t := Topology{Switches: []string{"switch"}}
	for range min(hosts, tooMany) {
		t.Hosts = append(t.Hosts, "switch")
	}
	return t
}

// Dumbbell has two switches, "left" and "right", with as many hosts each and one cable between
// them. The hosts of the left one come first.
func Dumbbell(hosts int) Topology {
	t := Topology{Switches: []string{"left", "right"}, Cables: []Cable{{A: "left", B: "right"}}}
	for _, s := range t.Switches {
		for range min(hosts, tooMany) {
			t.Hosts = append(t.Hosts, s)
		}
	}
	return t
}

// LeafSpine has hosts at each of the switches leaf0, leaf1 and so on, which all have a cable to
// each of spine0, spine1 and so on.
func LeafSpine(leaves, hosts, spines int) Topology {
	var t Topology
	leaves, spines = min(leaves, maxSwitches), min(spines, maxSwitches)
	for l := range leaves {
		leaf := fmt.Sprint("leaf", l)
		t.Switches = append(t.Switches, leaf)
		for range min(hosts, tooMany-len(t.Hosts)) {
			t.Hosts = append(t.Hosts, leaf)
		}
		for s := 0; s < spines && leaves+spines <= maxSwitches; s++ {
			t.Cables = append(t.Cables, Cable{A: leaf, B: fmt.Sprint("spine", s)})
		}
	}
	for s := range spines {
		t.Switches = append(t.Switches, fmt.Sprint("spine", s))
	}
	return t
}

// FatTree has k pods of k/2 edge and k/2 aggregation switches, k²/4 core switches and k³/4 hosts
// (Al-Fares et al., SIGCOMM 2008). An odd k counts as the even number below. The switches are
// called edge0, aggregation0 and core0, and so on.
func FatTree(k int) Topology {
	var t Topology
	half := min(max(k, 0), 60) / 2 // 60 already needs too many switches
	for i := range 2 * half * half {
		edge, aggregation := fmt.Sprint("edge", i), fmt.Sprint("aggregation", i)
		t.Switches = append(t.Switches, edge, aggregation)
		for j := range half {
			t.Hosts = append(t.Hosts, edge)
			t.Cables = append(t.Cables,
				Cable{A: edge, B: fmt.Sprint("aggregation", i/half*half+j)},
				Cable{A: aggregation, B: fmt.Sprint("core", i%half*half+j)})
		}
	}
	for i := range half * half {
		t.Switches = append(t.Switches, fmt.Sprint("core", i))
	}
	return t
}

// build makes switches, hosts and cables.
func (f *Fabric) build(t *Topology) error {
	switch {
	case len(t.Hosts) == 0 || len(t.Hosts) > maxHosts:
		return fmt.Errorf("fabric: Topology has %d hosts: there must be 1 to %d", len(t.Hosts), maxHosts)
	case len(t.Switches) > maxSwitches:
		return fmt.Errorf("fabric: Topology has %d switches: there must be at most %d", len(t.Switches), maxSwitches)
	}
	byName := map[string]*node{}
	for i, name := range t.Switches {
		switch n, isHost := strings.CutPrefix(name, "host"); {
		case name == "":
			return fmt.Errorf("fabric: Topology.Switches[%d] has no name", i)
		case byName[name] != nil:
			return fmt.Errorf("fabric: Topology.Switches[%d]: a second switch is called %q", i, name)
		case isHost && strings.Trim(n, "0123456789") == "":
			return fmt.Errorf("fabric: Topology.Switches[%d] is %q, which is a host's name", i, name)
		}
		s := &node{f: f, origin: originOf(1 + len(t.Hosts) + i), name: name, index: i, random: rand.New(f.newRandom(ofSwitches + uint64(i)))}
		s.salt = s.random.Uint32()
		byName[name] = s
		f.switches = append(f.switches, s)
	}
	for i, name := range t.Hosts {
		s := byName[name]
		if s == nil {
			return fmt.Errorf("fabric: Topology.Hosts[%d]: there is no switch %q", i, name)
		}
		h := f.newHost(i)
		f.hosts = append(f.hosts, h)
		f.connect(&Port{f: f, node: h.name, host: h, of: &h.origin}, s.newPort(), f.cfg.Link)
		f.edges = append(f.edges, h.port.peer)
	}
	for i, c := range t.Cables {
		a, b := byName[c.A], byName[c.B]
		switch {
		case a == nil:
			return fmt.Errorf("fabric: Topology.Cables[%d]: there is no switch %q", i, c.A)
		case b == nil:
			return fmt.Errorf("fabric: Topology.Cables[%d]: there is no switch %q", i, c.B)
		case a == b:
			return fmt.Errorf("fabric: Topology.Cables[%d]: both ends are at %q", i, c.A)
		}
		l := f.cfg.Link
		if c.Link.Rate != 0 {
			l.Rate = c.Link.Rate
		}
		l.Delay = orDefault(c.Link.Delay, l.Delay)
		if err := l.check(fmt.Sprintf("Topology.Cables[%d].Link", i)); err != nil {
			return err
		}
		f.connect(a.newPort(), b.newPort(), l)
	}
	f.routes = make([]atomic.Pointer[[]uint16], len(f.switches))
	f.forgetRoutes()
	first := f.hosts[0].port.peer.sw
	for _, h := range f.hosts {
		if s := h.port.peer.sw; s != first && len(s.ways(first)) == 0 {
			return fmt.Errorf("fabric: Topology: there is no way from %s to %s", f.hosts[0].name, h.name)
		}
	}
	f.divide()
	return nil
}

func (s *node) newPort() *Port {
	p := &Port{f: s.f, node: s.name, sw: s, index: int32(len(s.ports)), of: &s.origin}
	s.ports = append(s.ports, p)
	return p
}

func (f *Fabric) connect(a, b *Port, l Link) {
	for _, p := range []*Port{a, b} {
		p.rate, p.delay = uint64(math.Round(l.Rate)), instant(l.Delay)*nanosecond
		p.number = f.ends
		f.ends++
		// The packet that exceeds Xoff, the one before the pause frame, the frame, both ways, and the
		// packet that the neighbour has begun.
		high, low := bits.Mul64(uint64(2*p.delay), p.rate)
		onCable, _ := bits.Div64(high, low, bitTime)
		p.headroom = orDefault(f.cfg.Switch.PFC.Headroom, 3*(f.maxFrame()+overhead)+pauseFrame+int(onCable))
		if p.host != nil {
			p.host.port = p
		}
	}
	a.peer, b.peer = b, a
}

// Port returns the port of a switch or host to a neighbour, by their names, the first of several.
// It returns nil if there is none.
func (f *Fabric) Port(of, to string) *Port {
	for _, s := range f.switches {
		if s.name == of {
			for _, p := range s.ports {
				if p.peer.node == to {
					return p
				}
			}
		}
	}
	for _, h := range f.hosts {
		if h.name == of && h.port.peer.node == to {
			return h.port
		}
	}
	return nil
}
