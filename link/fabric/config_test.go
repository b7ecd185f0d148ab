package fabric_test

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/softrnic/softrnic/link/fabric"
)

// TestConfig: what is wrong with a configuration is said.
func TestConfig(t *testing.T) {
	two := fabric.Topology{Switches: []string{"a", "b"}, Hosts: []string{"a", "b"}}
	cables := func(c ...fabric.Cable) fabric.Topology {
		t := two
		t.Cables = c
		return t
	}
	star, link := fabric.Star(2), fabric.Link{Rate: 1e9}
	for _, c := range []struct {
		cfg  fabric.Config
		says string // "": nothing is wrong
	}{
		{fabric.Config{Topology: star}, ""},
		{fabric.Config{Topology: cables(fabric.Cable{A: "a", B: "b"})}, ""},
		{fabric.Config{Topology: fabric.FatTree(4)}, ""},
		{fabric.Config{}, "Topology has 0 hosts"},
		{fabric.Config{Topology: fabric.Star(-1)}, "Topology has 0 hosts"},
		{fabric.Config{Topology: fabric.FatTree(1)}, "Topology has 0 hosts"},
		{fabric.Config{Topology: fabric.Star(math.MaxInt)}, "Topology has 1048577 hosts: there must be 1 to 1048576"},
		{fabric.Config{Topology: fabric.LeafSpine(math.MaxInt, 1, math.MaxInt)}, "Topology has 8192 switches: there must be at most 4096"},
		{fabric.Config{Topology: fabric.FatTree(math.MaxInt)}, "Topology has 4500 switches"},
		{fabric.Config{Topology: two}, "there is no way from host0 to host1"},
		{fabric.Config{Topology: cables(fabric.Cable{A: "a", B: "c"})}, `Topology.Cables[0]: there is no switch "c"`},
		{fabric.Config{Topology: cables(fabric.Cable{A: "a", B: "a"})}, `Topology.Cables[0]: both ends are at "a"`},
		{fabric.Config{Topology: cables(fabric.Cable{A: "a", B: "b", Link: fabric.Link{Rate: -1}})}, "Topology.Cables[0].Link.Rate is -1"},
		{fabric.Config{Topology: cables(fabric.Cable{A: "a", B: "b", Link: fabric.Link{Delay: -2}})}, "Topology.Cables[0].Link.Delay is -2ns"},
		{fabric.Config{Topology: fabric.Topology{Switches: []string{"a", "a"}, Hosts: []string{"a"}}}, `a second switch is called "a"`},
		{fabric.Config{Topology: fabric.Topology{Switches: []string{""}, Hosts: []string{""}}}, "Topology.Switches[0] has no name"},
		{fabric.Config{Topology: fabric.Topology{Switches: []string{"host7"}, Hosts: []string{"host7"}}}, `"host7", which is a host's name`},
		{fabric.Config{Topology: fabric.Topology{Switches: []string{"a"}, Hosts: []string{""}}}, `Topology.Hosts[0]: there is no switch ""`},
		{fabric.Config{Topology: star, MTU: 10}, "MTU is 10"},
		{fabric.Config{Topology: star, Link: fabric.Link{Rate: 1}}, "Link.Rate is 1"},
		{fabric.Config{Topology: star, Link: fabric.Link{Rate: math.NaN()}}, "Link.Rate is NaN"},
		{fabric.Config{Topology: star, Link: fabric.Link{Rate: math.Inf(1)}}, "Link.Rate is +Inf"},
		{fabric.Config{Topology: star, Link: fabric.Link{Delay: time.Hour}}, "Link.Delay is 1h"},
		{fabric.Config{Topology: star, Link: link, Switch: fabric.Switch{Alpha: math.NaN()}}, "Switch.Alpha is NaN"},
		{fabric.Config{Topology: star, Link: link, Switch: fabric.Switch{Buffer: -1}}, "Switch.Buffer is -1"},
		{fabric.Config{Topology: star, Link: link, Switch: fabric.Switch{Weights: [8]int{1, -1}}}, "Switch.Weights is -1"},
		{fabric.Config{Topology: star, Switch: fabric.Switch{Weights: [8]int{1, math.MaxInt}}}, "it must be 0 to 1000"},
		{fabric.Config{Topology: star, Switch: fabric.Switch{ECN: fabric.ECN{Min: 2, Max: 1}}}, "Switch.ECN.Max is 1: it must not be less"},
		{fabric.Config{Topology: star, Switch: fabric.Switch{ECN: fabric.ECN{P: math.NaN()}}}, "Switch.ECN.P is NaN"},
		{fabric.Config{Topology: star, Switch: fabric.Switch{PFC: fabric.PFC{Classes: 1}}}, "Switch.PFC.Xoff is 0"},
		{fabric.Config{Topology: star, Switch: fabric.Switch{PFC: fabric.PFC{Classes: 1, Xoff: 1, Xon: 2}}}, "Switch.PFC.Xon is 2"},
		{fabric.Config{Topology: star, Switch: fabric.Switch{PFC: fabric.PFC{Xon: -2}}}, "Switch.PFC.Xon is -2"},
		{fabric.Config{Topology: star, Switch: fabric.Switch{PFC: fabric.PFC{Headroom: -2}}}, "Switch.PFC.Headroom is -2"},
		{fabric.Config{Topology: star, Switch: fabric.Switch{Trim: fabric.Trim{DSCP: 64}}}, "Switch.Trim.DSCP is 64"},
		{fabric.Config{Topology: star, Switch: fabric.Switch{Trim: fabric.Trim{Size: 73}}}, "Switch.Trim.Size is 73: it must be 74 to 4096"},
		{fabric.Config{Topology: star, Switch: fabric.Switch{Trim: fabric.Trim{Size: 4097}}}, "Switch.Trim.Size is 4097"},
		{fabric.Config{Topology: star, Switch: fabric.Switch{ECMP: 3}}, "Switch.ECMP is 3"},
		{fabric.Config{Topology: star, Class: func(uint8) uint8 { return 8 }}, "Class(0) is 8"},
	} {
		f, err := fabric.New(&c.cfg)
		switch {
		case err == nil && c.says == "":
			f.Close()
		case err == nil || c.says == "" || !strings.Contains(err.Error(), c.says):
			t.Errorf("%v, want %q", err, c.says)
		}
	}
}
