package rdmatransport_test

import (
	"errors"
	"net"
	"strings"
	"testing"
	"time"

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
	host := must(netstack.New(new(pipe.Switch).Port(), &netstack.Config{Addrs: []string{"10.0.0.1/24"}}))(t)
	defer host.Close()
	type config = rdmatransport.Config
	dcqcn := func(d roce.DCQCN) *config { return &config{RoCE: roce.Config{DCQCN: &d}} }
	for _, c := range []struct {
		host stack.Network
		cfg  *config
		want string // the field and its value
		help string // what to give
	}{
		{host, &config{IWARP: iwarp.Config{Revision: 3}}, "IWARP.Revision 3", "1 or 2, or 0"},
		{host, &config{RoCE: roce.Config{Window: -1}}, "RoCE.Window -1", "power of two"},
		{host, &config{RoCE: roce.Config{Window: 64 << 10}}, "RoCE.Window 65536", "131072"},
		{host, &config{RoCE: roce.Config{Window: 32 << 20}}, "RoCE.Window 33554432", "16777216"},
		{host, &config{RoCE: roce.Config{Window: 1000000}}, "RoCE.Window 1000000", "power of two"},
		{host, &config{RoCE: roce.Config{ByDelay: &roce.ByDelay{Queued: -1}}}, "RoCE.ByDelay.Queued -1", "1 to 16384"},
		{host, &config{RoCE: roce.Config{ByDelay: &roce.ByDelay{Queued: 16385}}}, "RoCE.ByDelay.Queued 16385", "1 to 16384"},
		{host, dcqcn(roce.DCQCN{RPGMaxRate: -1}), "RoCE.DCQCN.RPGMaxRate -1", "0 for the default"},
		{host, dcqcn(roce.DCQCN{RPGMinRate: 2e9, RPGMaxRate: 1e9}), "RoCE.DCQCN.RPGMinRate 2000000000", "at most RPGMaxRate, 1000000000"},
		{host, dcqcn(roce.DCQCN{RPGMinRate: 50e9}), "RoCE.DCQCN.RPGMinRate 50000000000", "at most RPGMaxRate, 40000000000"},
		{host, dcqcn(roce.DCQCN{RPGMaxRate: 1e5}), "RoCE.DCQCN.RPGMaxRate 100000", "at least RPGMinRate, 1000000"},
		{host, dcqcn(roce.DCQCN{RPGAIRate: -1}), "RoCE.DCQCN.RPGAIRate -1", "1 to"},
		{host, dcqcn(roce.DCQCN{RPGHAIRate: -1}), "RoCE.DCQCN.RPGHAIRate -1", "1 to"},
		{host, dcqcn(roce.DCQCN{RPGTimeReset: -time.Second}), "RoCE.DCQCN.RPGTimeReset -1s", "1h0m0s"},
		{host, dcqcn(roce.DCQCN{RPGByteReset: -1}), "RoCE.DCQCN.RPGByteReset -1", "1 to"},
		{host, dcqcn(roce.DCQCN{RPGThreshold: -1}), "RoCE.DCQCN.RPGThreshold -1", "1 to"},
		{host, dcqcn(roce.DCQCN{RPGGD: -1}), "RoCE.DCQCN.RPGGD -1", "1 to"},
		{host, dcqcn(roce.DCQCN{RPGMinDecFac: 101}), "RoCE.DCQCN.RPGMinDecFac 101", "1 to 100"},
		{host, dcqcn(roce.DCQCN{DCETCPG: 1025}), "RoCE.DCQCN.DCETCPG 1025", "1 to 1024"},
		{host, dcqcn(roce.DCQCN{DCETCPRTT: -1}), "RoCE.DCQCN.DCETCPRTT -1ns", "must be 1ns to 1h0m0s"},
		{host, dcqcn(roce.DCQCN{RateReduceMonitorPeriod: -1}), "RoCE.DCQCN.RateReduceMonitorPeriod -1ns", "1ns to 1h0m0s"},
		{host, dcqcn(roce.DCQCN{InitialAlphaValue: 1025}), "RoCE.DCQCN.InitialAlphaValue 1025", "1 to 1024"},
		{host, dcqcn(roce.DCQCN{RateToSetOnFirstCNP: -1}), "RoCE.DCQCN.RateToSetOnFirstCNP -1", "1 to"},
		{host, &config{RoCE: roce.Config{TrimmedDSCP: 64}}, "RoCE.TrimmedDSCP 64", "1 to 63"},
		{host, dcqcn(roce.DCQCN{CNPDSCP: 64}), "RoCE.DCQCN.CNPDSCP 64", "1 to 63"},
		{host, dcqcn(roce.DCQCN{CNP802PPrio: 8}), "RoCE.DCQCN.CNP802PPrio 8", "1 to 7"},
		{host, dcqcn(roce.DCQCN{MinTimeBetweenCNPs: -1}), "RoCE.DCQCN.MinTimeBetweenCNPs -1ns", "1ns to 1h0m0s"},
		{host, &config{Rate: rdmatransport.Rate{Gbps: 42}}, "Rate: ", "42 Gbit/s"},
		{host, &config{Rate: rdmatransport.Rate{Gbps: -40}}, "Rate: ", "-40 Gbit/s"},
		{host, &config{Rate: rdmatransport.Rate{Lanes: 4}}, "Rate: ", "0 Gbit/s"},
		{host, &config{Rate: rdmatransport.Rate{Gbps: 100, Lanes: 3}}, "Rate: 3 lanes", "100 Gbit/s"},
		{host, &config{Rate: rdmatransport.Rate{Gbps: 100, Lanes: 12}}, "Rate: 12 lanes", "100 Gbit/s"},
		{nil, nil, "host is nil", "netstack.Host"},
		{bare{}, nil, "0 interfaces", "1 to 254"},
	} {
		dev, err := rdmatransport.Open(c.host, c.cfg)
		if !errors.Is(err, verbs.ErrInvalid) || dev != nil {
			t.Errorf("%v, %v; want an error with %q", dev, err, c.want)
			continue
		}
		for _, w := range []string{c.want, c.help, "open device: "} {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%v: want %q in it", err, w)
			}
		}
	}
	dev := must(rdmatransport.Open(host, &rdmatransport.Config{Name: "rnic0"}))(t)
	if dev.Name() != "rnic0" {
		t.Errorf("the device's name is %q, want rnic0", dev.Name())
	}
	if err := dev.Close(); err != nil {
		t.Error(err)
	}
	if err := dev.Shutdown(t.Context()); !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("Shutdown of a closed device: %v, want ErrClosed", err)
	}
}

func TestRate(t *testing.T) {
	host := must(netstack.New(new(pipe.Switch).Port(), &netstack.Config{Addrs: []string{"10.0.0.1/24"}}))(t)
	defer host.Close()
	for _, c := range []struct {
		rate  rdmatransport.Rate
		gbps  float64
		lanes int
	}{
		{rdmatransport.Rate{}, 40, 4},
		{rdmatransport.Rate{Gbps: 100, Lanes: 0}, 100, 4},
		{rdmatransport.Rate{Gbps: 100, Lanes: 2}, 100, 2},
		{rdmatransport.Rate{Gbps: 25, Lanes: 0}, 25, 1},
		{rdmatransport.Rate{Gbps: 56, Lanes: 0}, 56, 4},
		{rdmatransport.Rate{Gbps: 400, Lanes: 0}, 400, 4},
		{rdmatransport.Rate{Gbps: 800, Lanes: 0}, 800, 4}, // XDR
		{rdmatransport.Rate{Gbps: 800, Lanes: 8}, 800, 8}, // NDR
		{rdmatransport.Rate{Gbps: 1600, Lanes: 0}, 1600, 8},
		{rdmatransport.Rate{Gbps: 2.5, Lanes: 1}, 2.5, 1},
	} {
		dev := must(rdmatransport.Open(host, &rdmatransport.Config{Rate: c.rate}))(t)
		p := must(dev.QueryPort(1))(t)
		if gbps, lanes := p.Rate(); gbps != c.gbps || lanes != c.lanes {
			t.Errorf("the port has %g Gbit/s over %d lanes, want %g over %d", gbps, lanes, c.gbps, c.lanes)
		}
		if err := dev.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestGUID: the GUID is given, or made from the MAC address as in IPv6 (RFC 4291 appendix A).
func TestGUID(t *testing.T) {
	lan := must(pipe.New(nil))(t)
	port := must(lan.PortWithMAC(net.HardwareAddr{0x00, 0x11, 0x22, 0x33, 0x44, 0x55}))(t)
	host := must(netstack.New(port, &netstack.Config{Addrs: []string{"10.0.0.1/24"}}))(t)
	t.Cleanup(func() { _ = host.Close() })
	for given, want := range map[verbs.GUID]string{0: "0211:22ff:fe33:4455", 0x0002_c903_0012_3456: "0002:c903:0012:3456"} {
		dev := must(rdmatransport.Open(host, &rdmatransport.Config{GUID: given}))(t)
		if a := dev.QueryDevice(); a.NodeGUID.String() != want || a.SysImageGUID != a.NodeGUID {
			t.Errorf("given %v: node GUID %v, system image GUID %v, want %s", given, a.NodeGUID, a.SysImageGUID, want)
		}
		if err := dev.Close(); err != nil {
			t.Error(err)
		}
	}
}
