package kernel_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/softrnic/softrnic/stack/kernel"
	"github.com/softrnic/softrnic/tests/interfaces"
)

// TestResolve checks what Resolve says of hosts that are there, absent, late, behind a router, and
// without a route. The peer is a second address of the far end, which answers ARP for it only as
// long as it has it.
func TestResolve(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	interfaces.Veth(t, 1500)
	v0 := interfaces.ByName(t, "v0")
	for _, cidr := range []string{"10.7.0.1/24", "fd07::1/64"} {
		a := must(netlink.ParseAddr(cidr))(t)
		a.Flags = syscall.IFA_F_NODAD
		check(netlink.AddrAdd(v0, a))
	}
	known := func(ip string) {
		t.Helper()
		check(netlink.NeighSet(&netlink.Neigh{LinkIndex: v0.Attrs().Index, IP: net.ParseIP(ip), State: netlink.NUD_REACHABLE,
			HardwareAddr: interfaces.ByName(t, "v1").Attrs().HardwareAddr}))
	}
	known("10.7.0.2")
	known("fd07::2")
	check(netlink.RouteAdd(&netlink.Route{Dst: must(netlink.ParseIPNet("10.8.0.0/24"))(t), Gw: net.ParseIP("10.7.0.2")}))
	check(netlink.RouteAdd(&netlink.Route{Dst: must(netlink.ParseIPNet("10.9.0.0/24"))(t), Gw: net.ParseIP("10.7.0.77")}))
	check(netlink.RouteAdd(&netlink.Route{Dst: must(netlink.ParseIPNet("10.10.0.0/24"))(t), Type: syscall.RTN_UNREACHABLE}))
	check(netlink.LinkSetUp(interfaces.ByName(t, "lo")))

	h := must(kernel.New(&kernel.Config{Interface: "v0", Addrs: []string{"10.7.0.1", "fd07::1"}}))(t)
	t.Cleanup(func() { h.Close() })
	n := h.NICs()[0]
	resolve := func(dst string, within time.Duration) error {
		ctx, cancel := context.WithTimeoutCause(t.Context(), within, syscall.ETIMEDOUT)
		defer cancel()
		src := netip.MustParseAddr("10.7.0.1")
		if netip.MustParseAddr(dst).Is6() {
			src = netip.MustParseAddr("fd07::1")
		}
		return n.Resolve(ctx, src, netip.MustParseAddr(dst))
	}
	for _, c := range []struct {
		name, dst string
		want      error
	}{
		{"itself", "10.7.0.1", nil},
		{"a known host", "10.7.0.2", nil},
		{"a known host, IPv6", "fd07::2", nil},
		{"behind a router", "10.8.0.1", nil},
		{"a group", "239.1.2.3", nil},
		{"an absent host", "10.7.0.99", syscall.ETIMEDOUT},
		{"an absent host, IPv6", "fd07::99", syscall.ETIMEDOUT},
		{"behind an absent router", "10.9.0.1", syscall.ETIMEDOUT},
		{"no route", "192.0.2.1", syscall.ENETUNREACH},
		{"a route that says unreachable", "10.10.0.1", syscall.EHOSTUNREACH},
	} {
		if err := resolve(c.dst, 100*time.Millisecond); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
	}
	late := make(chan error, 1)
	go func() { late <- resolve("10.7.0.50", 20*time.Second) }()
	searched := func() bool {
		return slices.ContainsFunc(must(netlink.NeighList(v0.Attrs().Index, netlink.FAMILY_V4))(t), func(n netlink.Neigh) bool {
			return n.IP.String() == "10.7.0.50" && n.State == netlink.NUD_INCOMPLETE
		})
	}
	for !searched() {
		select {
		case err := <-late:
			t.Fatalf("before the host is there: %v", err)
		case <-time.After(time.Millisecond):
		}
	}
	known("10.7.0.50")
	if err := <-late; err != nil {
		t.Errorf("a host that appears: %v", err)
	}
}
