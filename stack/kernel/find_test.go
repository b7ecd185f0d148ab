package kernel

import (
	"net"
	"net/netip"
	"slices"
	"testing"
)

// TestRank checks the order: the interface of the best default route with a global address, others
// with a global address, those with a link-local address, the loopback. Interfaces that are down or
// have no address are excluded.
func TestRank(t *testing.T) {
	up := net.FlagUp
	all := []net.Interface{
		{Name: "lo", Flags: up | net.FlagLoopback}, {Name: "dummy0", Flags: up}, {Name: "eth0", Flags: up}, {Name: "eth1", Flags: up},
		{Name: "eth2", Flags: up}, {Name: "down0"}, {Name: "bare0", Flags: up}, {Name: "eth3", Flags: up},
	}
	addrs := map[string][]string{
		"lo": {"127.0.0.1/8", "::1/128"}, "dummy0": {"fe80::1/64"}, "eth0": {"fe80::2/64", "10.0.0.2/24"}, "eth1": {"192.168.7.2/24"},
		"eth2": {"fd00::2/64"}, "down0": {"10.9.0.1/24"}, "eth3": {"169.254.3.3/16"},
	}
	prefixes := func(i *net.Interface) (have []netip.Prefix, err error) {
		for _, a := range addrs[i.Name] {
			have = append(have, netip.MustParsePrefix(a))
		}
		return have, nil
	}
	for _, c := range []struct {
		defaults, want []string
		why            string
	}{
		{[]string{"eth1", "eth2"}, []string{"eth1", "eth2", "eth0", "dummy0", "eth3", "lo"}, whyDefault},
		{[]string{"dummy0", "eth2"}, []string{"eth2", "eth0", "eth1", "dummy0", "eth3", "lo"}, whyDefault},
		{[]string{"eth3", "down0"}, []string{"eth0", "eth1", "eth2", "dummy0", "eth3", "lo"}, whyGlobal},
		{nil, []string{"eth0", "eth1", "eth2", "dummy0", "eth3", "lo"}, whyGlobal},
	} {
		var got []string
		ranked := rank(all, prefixes, c.defaults)
		for _, r := range ranked {
			got = append(got, r.iface.Name)
		}
		if !slices.Equal(got, c.want) || ranked[0].why != c.why {
			t.Errorf("default routes over %v: %v, %s; want %v, %s", c.defaults, got, ranked[0].why, c.want, c.why)
		}
	}
	addrs = map[string][]string{"lo": addrs["lo"], "dummy0": addrs["dummy0"]}
	if got := rank(all, prefixes, nil); got[0].iface.Name != "dummy0" || got[0].why != whyLinkLocal {
		t.Errorf("without a global address: %s, %s", got[0].iface.Name, got[0].why)
	}
	delete(addrs, "dummy0")
	if got := rank(all, prefixes, nil); len(got) != 1 || got[0].why != whyLoopback {
		t.Errorf("the loopback alone: %v", got)
	}
}

// TestInterfaces checks that New chooses the first interface of the list.
func TestInterfaces(t *testing.T) {
	names, err := Interfaces()
	if err != nil {
		t.Skip(err)
	}
	h, err := New(&Config{Unopened: true})
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	if got := h.NICs()[0].Name(); got != names[0] || h.Why() == "" {
		t.Errorf("the host is on %s, which is %q; the interfaces are %v", got, h.Why(), names)
	}
}
