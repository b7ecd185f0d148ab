package kernel_test

import (
	"net/netip"
	"os"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/softrnic/softrnic/stack/kernel"
	"github.com/softrnic/softrnic/tests/interfaces"
)

// TestIndicesSurvive checks that GIDs keep their indices while the interface goes down, which takes
// its IPv6 addresses away, and while addresses are removed and added in another order.
func TestIndicesSurvive(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	check(os.WriteFile("/proc/sys/net/ipv6/conf/default/accept_dad", []byte("0"), 0))
	interfaces.Veth(t, 1500)
	v0 := interfaces.ByName(t, "v0")
	parse := func(cidr string) *netlink.Addr { return must(netlink.ParseAddr(cidr))(t) }
	add := func(cidrs ...string) {
		for _, c := range cidrs {
			check(netlink.AddrAdd(v0, parse(c)))
		}
	}
	add("10.7.0.1/24", "fd07::1/64", "fd07::2/64")
	linkLocal := func() (a netip.Addr) {
		for give := time.Now().Add(10 * time.Second); time.Now().Before(give); time.Sleep(time.Millisecond) {
			usable := 0
			for _, at := range must(netlink.AddrList(v0, netlink.FAMILY_V6))(t) {
				if at.Flags&syscall.IFA_F_TENTATIVE != 0 {
					continue // for a moment, also without duplicate address detection
				}
				usable++
				if at.IP.IsLinkLocalUnicast() {
					a, _ = netip.AddrFromSlice(at.IP)
				}
			}
			if usable == 3 && a.IsValid() {
				return a
			}
		}
		t.Fatal("no link-local address, or not the others")
		return a
	}()
	h := must(kernel.New(&kernel.Config{Interface: "v0"}))(t)
	t.Cleanup(func() { h.Close() })
	n := h.NICs()[0]
	before := n.GIDs()
	if len(before) != 4 || before[0] != linkLocal || slices.Contains(before[1:], linkLocal) {
		t.Fatalf("the GIDs are %v; the link-local address is %v", before, linkLocal)
	}
	expect := func(what string, want []netip.Addr, direct ...netip.Addr) {
		t.Helper()
		ok := func() bool {
			for _, a := range direct { // its sockets are open again
				if src, _, err := n.Source(a); err != nil || src != a {
					return false
				}
			}
			return slices.Equal(n.GIDs(), want)
		}
		for give := time.Now().Add(10 * time.Second); !ok(); time.Sleep(time.Millisecond) {
			if time.Now().After(give) {
				t.Fatalf("%s: the GIDs are %v, want %v", what, n.GIDs(), want)
			}
		}
	}
	at := func(a string) int { return slices.Index(before, netip.MustParseAddr(a)) }
	gone := func(addrs ...string) []netip.Addr {
		g := slices.Clone(before)
		for _, a := range addrs {
			g[at(a)] = netip.Addr{}
		}
		return g
	}
	for range 2 {
		check(netlink.LinkSetDown(v0))
		expect("the interface is down", gone("fd07::1", "fd07::2"))
		check(netlink.LinkSetUp(v0))
		add("fd07::2/64", "fd07::1/64")
		expect("it is up again", before, before...)
	}
	for _, a := range []string{"10.7.0.1/24", "fd07::1/64"} {
		check(netlink.AddrDel(v0, parse(a)))
	}
	expect("two addresses are removed", gone("10.7.0.1", "fd07::1"))
	add("fd07::1/64", "10.7.0.1/24")
	expect("they are back", before, before...)
	check(netlink.AddrDel(v0, parse("fd07::1/64")))
	expect("one is removed", gone("fd07::1"))
	add("fd07::3/64")
	want := gone()
	want[at("fd07::1")] = netip.MustParseAddr("fd07::3")
	expect("a new one takes its place", want)
	add("fd07::1/64")
	expect("the removed one comes back too late", append(want, netip.MustParseAddr("fd07::1")))
}
