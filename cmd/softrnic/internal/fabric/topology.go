package fabric

import (
	"errors"
	"fmt"
	"strings"
	"time"

	network "github.com/softrnic/softrnic/link/fabric"
)

// topology is the table topology of a file.
type topology struct {
	Kind        string   `toml:"kind"`
	Hosts       int      `toml:"hosts"` // of a star; of each leaf; of each side of a dumbbell
	Leaves      int      `toml:"leaves"`
	Spines      int      `toml:"spines"`
	K           int      `toml:"k"`
	UplinkRate  rate     `toml:"uplink_rate"`
	UplinkDelay duration `toml:"uplink_delay"`
	// Of kind "cables".
	Attach []string `toml:"attach"` // the switch of each host
	Cables []cable  `toml:"cable"`

	given given
}

type cable struct {
	A     string   `toml:"a"`
	B     string   `toml:"b"`
	Rate  rate     `toml:"rate"`
	Delay duration `toml:"delay"`

	given given
}

// topologies are the keys that each kind needs, and the number of hosts.
var topologies = map[string]struct {
	needs []string
	hosts func(t *topology) int
	build func(t *topology) network.Topology
}{
	"star": {[]string{"hosts"}, func(t *topology) int { return t.Hosts },
		func(t *topology) network.Topology { return network.Star(t.Hosts) }},
	"dumbbell": {[]string{"hosts"}, func(t *topology) int { return 2 * t.Hosts },
		func(t *topology) network.Topology { return network.Dumbbell(t.Hosts) }},
	"leaf-spine": {[]string{"leaves", "hosts", "spines"}, func(t *topology) int { return t.Leaves * t.Hosts },
		func(t *topology) network.Topology { return network.LeafSpine(t.Leaves, t.Hosts, t.Spines) }},
	"fat-tree": {[]string{"k"}, func(t *topology) int { return t.K * t.K * t.K / 4 },
		func(t *topology) network.Topology { return network.FatTree(t.K) }},
	"cables": {nil, func(t *topology) int { return len(t.Attach) }, (*topology).fromCables},
}

// build returns the topology.
func (t *topology) build() (network.Topology, error) {
	var none network.Topology
	kind, ok := topologies[t.Kind]
	if !ok {
		return none, fmt.Errorf("topology.kind is %q: it must be star, dumbbell, leaf-spine, fat-tree or cables", t.Kind)
	}
	keys := map[string]int{"hosts": t.Hosts, "leaves": t.Leaves, "spines": t.Spines, "k": t.K}
	var checks []check
	for _, name := range []string{"hosts", "leaves", "spines", "k"} {
		if strings.Contains(" "+strings.Join(kind.needs, " ")+" ", " "+name+" ") {
			checks = append(checks, check{"topology." + name, float64(keys[name]), 1, 1 << 12})
		} else if t.given[name] {
			return none, fmt.Errorf("topology.%s: a topology of kind %s has no such key", name, t.Kind)
		}
	}
	if t.Kind == "fat-tree" {
		checks = append(checks, check{"topology.k", float64(t.K), 2, 40})
	} else if t.Kind == "leaf-spine" {
		checks = append(checks, check{"topology.leaves times topology.spines", float64(t.Leaves * t.Spines), 1, maxCables})
	}
	if t.UplinkRate != 0 {
		checks = append(checks, check{"topology.uplink_rate", float64(t.UplinkRate), 1e6, 8e12})
	}
	checks = append(checks, check{"topology.uplink_delay", time.Duration(t.UplinkDelay).Seconds(), 0, 1})
	for i, c := range t.Cables {
		if c.Rate != 0 {
			checks = append(checks, check{fmt.Sprintf("topology.cable[%d].rate", i), float64(c.Rate), 1e6, 8e12})
		}
		checks = append(checks, check{fmt.Sprintf("topology.cable[%d].delay", i), time.Duration(c.Delay).Seconds(), 0, 1})
	}
	if err := runChecks(checks); err != nil {
		return none, err
	}
	switch n := kind.hosts(t); {
	case t.Kind == "fat-tree" && t.K%2 != 0:
		return none, fmt.Errorf("topology.k is %d: it must be even", t.K)
	case t.Kind != "cables" && (t.Attach != nil || t.Cables != nil):
		return none, errors.New("topology.attach and topology.cable are for kind cables")
	case n < 2 || n > maxHosts:
		return none, fmt.Errorf("topology has %d hosts: there must be 2 to %d", n, maxHosts)
	case len(t.Cables) > maxCables:
		return none, fmt.Errorf("topology has %d cables: there must be at most %d", len(t.Cables), maxCables)
	}
	n := kind.build(t)
	if len(n.Switches) > maxSwitches {
		return none, fmt.Errorf("topology has %d switches: there must be at most %d", len(n.Switches), maxSwitches)
	}
	for _, name := range n.Switches {
		if name == "" || strings.HasPrefix(name, "host") || strings.ContainsAny(name, ":=, \t\r\n") {
			return none, fmt.Errorf("topology has a switch %q: its name must not begin with host, be empty, or have spaces and any of :=,", name)
		}
	}
	seen := map[[2]string]bool{}
	for i := range n.Cables {
		c := &n.Cables[i]
		if c.Link.Rate == 0 {
			c.Link.Rate = float64(t.UplinkRate)
		}
		if c.Link.Delay == 0 {
			c.Link.Delay = orNone(time.Duration(t.UplinkDelay), t.given["uplink_delay"])
		}
		if seen[[2]string{c.A, c.B}] || seen[[2]string{c.B, c.A}] || c.A == c.B {
			return none, fmt.Errorf("topology.cable[%d] is from %q to %q: two switches have one cable at most", i, c.A, c.B)
		}
		seen[[2]string{c.A, c.B}] = true
	}
	return n, nil
}

// fromCables has the switches that hosts and cables name, in that order.
func (t *topology) fromCables() (n network.Topology) {
	known := map[string]bool{}
	add := func(name string) {
		if !known[name] {
			known[name] = true
			n.Switches = append(n.Switches, name)
		}
	}
	for _, s := range t.Attach {
		add(s)
		n.Hosts = append(n.Hosts, s)
	}
	for _, c := range t.Cables {
		add(c.A)
		add(c.B)
		n.Cables = append(n.Cables, network.Cable{A: c.A, B: c.B, Link: network.Link{Rate: float64(c.Rate),
			Delay: orNone(time.Duration(c.Delay), c.given["delay"])}})
	}
	return n
}
