package rdmatransport_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/rdmatransport"
	"github.com/softrnic/softrnic/rdmatransport/iwarp"
	"github.com/softrnic/softrnic/rdmatransport/roce"
	"github.com/softrnic/softrnic/stack"
	"github.com/softrnic/softrnic/stack/netstack"
	"github.com/softrnic/softrnic/verbs"
)

// bare is a host without interfaces.
type bare struct{ stack.Network }

func (bare) NICs() []stack.NIC { return nil }

func TestOpenRefuses(t *testing.T) {
	host := must(netstack.New(new(pipe.Switch).Port(), netstack.Addr("10.0.0.1/24")))(t)
	defer host.Close()
	for _, c := range []struct {
		host stack.Network
		opt  rdmatransport.Option
		want []string
	}{
		{host, rdmatransport.Name(""), []string{"name is empty"}},
		{host, rdmatransport.Rand(nil), []string{"random numbers is nil"}},
		{host, rdmatransport.IWARP(iwarp.Config{Revision: 3}), []string{"MPA revision 3", "1, 2, or 0"}},
		{host, rdmatransport.RoCE(roce.Config{DCQCN: &roce.DCQCN{CNPDSCP: 64}}), []string{"CNPDSCP 64", "63"}},
		{host, rdmatransport.RoCE(roce.Config{DCQCN: &roce.DCQCN{CNP802PPrio: 8}}), []string{"CNP802PPrio 8", "7"}},
		{host, rdmatransport.Rate(42, 0), []string{"42 Gbit/s", "100"}},
		{host, rdmatransport.Rate(0, 0), []string{"0 Gbit/s"}},
		{host, rdmatransport.Rate(100, 3), []string{"3 lanes", "100 Gbit/s"}},
		{host, rdmatransport.Rate(100, 12), []string{"12 lanes", "100 Gbit/s"}},
		{nil, rdmatransport.Name("rnic0"), []string{"host is nil"}},
		{bare{}, rdmatransport.Name("rnic0"), []string{"0 interfaces", "1 to 254"}},
	} {
		dev, err := rdmatransport.Open(c.host, c.opt)
		if !errors.Is(err, verbs.ErrInvalid) || dev != nil {
			t.Errorf("%v, %v; want an error that says %q", dev, err, c.want)
			continue
		}
		for _, w := range append(c.want, "open device: ") {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%v: want %q in it", err, w)
			}
		}
	}
	dev := must(rdmatransport.Open(host, rdmatransport.Name("rnic0")))(t)
	if dev.Name() != "rnic0" {
		t.Errorf("the device's name is %q, want rnic0", dev.Name())
	}
	if err := dev.Close(); err != nil {
		t.Error(err)
	}
	if err := dev.Shutdown(t.Context()); !errors.Is(err, verbs.ErrDestroyed) {
		t.Errorf("Shutdown of a closed device: %v, want ErrDestroyed", err)
	}
}

func TestRate(t *testing.T) {
	host := must(netstack.New(new(pipe.Switch).Port(), netstack.Addr("10.0.0.1/24")))(t)
	defer host.Close()
	for _, c := range []struct {
		opts  []rdmatransport.Option
		gbps  float64
		lanes int
	}{
		{nil, 40, 4},
		{[]rdmatransport.Option{rdmatransport.Rate(100, 0)}, 100, 4},
		{[]rdmatransport.Option{rdmatransport.Rate(100, 2)}, 100, 2},
		{[]rdmatransport.Option{rdmatransport.Rate(25, 0)}, 25, 1},
		{[]rdmatransport.Option{rdmatransport.Rate(56, 0)}, 56, 4},
		{[]rdmatransport.Option{rdmatransport.Rate(400, 0)}, 400, 4},
		{[]rdmatransport.Option{rdmatransport.Rate(800, 0)}, 800, 8},
		{[]rdmatransport.Option{rdmatransport.Rate(2.5, 1)}, 2.5, 1},
	} {
		dev := must(rdmatransport.Open(host, c.opts...))(t)
		p := must(dev.QueryPort(1))(t)
		if gbps, lanes := p.Rate(); gbps != c.gbps || lanes != c.lanes {
			t.Errorf("the port has %g Gbit/s over %d lanes, want %g over %d", gbps, lanes, c.gbps, c.lanes)
		}
		if err := dev.Close(); err != nil {
			t.Error(err)
		}
	}
}
