package rtnetlink

import (
	"net"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/softrnic/softrnic/tests/interfaces"
)

// paths is a network namespace in which v0 has addresses and a default route, and v1 a route for
// packets with mark 5.
func paths(t *testing.T) (v0, v1 int) {
	interfaces.Namespace(t)
	interfaces.Veth(t, 1500)
	v0, v1 = interfaces.ByName(t, "v0").Attrs().Index, interfaces.ByName(t, "v1").Attrs().Index
	for _, text := range []string{"192.0.2.1/24", "2001:db8::1/64"} {
		a, err := netlink.ParseAddr(text)
		if err != nil {
			t.Fatal(err)
		}
		a.Flags = unix.IFA_F_NODAD // without duplicate address detection
		check(t, netlink.AddrReplace(interfaces.ByName(t, "v0"), a))
	}
	for _, text := range []string{"0.0.0.0/0", "::/0"} {
		_, to, _ := net.ParseCIDR(text)
		check(t, netlink.RouteAdd(&netlink.Route{LinkIndex: v0, Dst: to}))
		check(t, netlink.RouteAdd(&netlink.Route{LinkIndex: v1, Dst: to, Table: 100}))
		rule := netlink.NewRule()
		rule.Family, rule.Mark, rule.Table = netlink.FAMILY_V4, 5, 100
		if to.IP.To4() == nil {
			rule.Family = netlink.FAMILY_V6
		}
		check(t, netlink.RuleAdd(rule))
	}
	return v0, v1
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestThrough: Through follows the mark, and has no route from a foreign address for IPv4 only.
// Home is 0 for a foreign address, though a default route leads to it.
func TestThrough(t *testing.T) {
	v0, v1 := paths(t)
	l, err := ListenRoutes()
	if err != nil {
		t.Fatal(err)
	}
	// The kernel makes an IPv6 address usable a moment after it was added.
	for give := time.Now().Add(10 * time.Second); time.Now().Before(give); runtime.Gosched() {
		if home, _ := l.Home(netip.MustParseAddr("2001:db8::1")); home != 0 {
			break
		}
	}
	for _, c := range []struct {
		own, foreign, dst  string
		throughFromForeign int
	}{{"192.0.2.1", "203.0.113.1", "198.51.100.1", 0}, {"2001:db8::1", "2001:db8:1::1", "2001:db8:2::1", v0}} {
		own, foreign, dst := netip.MustParseAddr(c.own), netip.MustParseAddr(c.foreign), netip.MustParseAddr(c.dst)
		for _, q := range []struct {
			src  netip.Addr
			mark uint32
			want int
		}{{own, 0, v0}, {own, 5, v1}, {foreign, 0, c.throughFromForeign}} {
			if got, err := l.Through(q.src, dst, q.mark); got != q.want || err != nil {
				t.Errorf("from %v to %v with mark %d: interface %d, %v; want %d", q.src, dst, q.mark, got, err, q.want)
			}
		}
		for addr, want := range map[netip.Addr]int{own: v0, foreign: 0, dst: 0} {
			if got, err := l.Home(addr); got != want || err != nil {
				t.Errorf("%v is at interface %d, %v; want %d", addr, got, err, want)
			}
		}
	}
	l.Close()
	if _, err := l.Home(netip.MustParseAddr("192.0.2.1")); err == nil {
		t.Error("Home answers after Close")
	}
}

// TestListenRoutes: changes of routes and rules are reported, for both IP versions. Without Routes
// they are passed over.
func TestListenRoutes(t *testing.T) {
	v0, _ := paths(t)
	for _, to := range []string{"198.51.100.0/24", "2001:db8:2::/64"} {
		_, dst, _ := net.ParseCIDR(to)
		family := netlink.FAMILY_V4
		if dst.IP.To4() == nil {
			family = netlink.FAMILY_V6
		}
		rule := netlink.NewRule()
		rule.Family, rule.Mark, rule.Table = family, 6, 100
		route := &netlink.Route{LinkIndex: v0, Dst: dst}
		for _, change := range []struct {
			name string
			do   func() error
		}{
			{"a route is added", func() error { return netlink.RouteAdd(route) }},
			{"a route is removed", func() error { return netlink.RouteDel(route) }},
			{"a rule is added", func() error { return netlink.RuleAdd(rule) }},
			{"a rule is removed", func() error { return netlink.RuleDel(rule) }},
		} {
			changed := make(chan struct{}, 100)
			on := Events{Link: func(*netlink.LinkAttrs, bool) {}, Addrs: func(int) {}, Missed: func() {}}
			endDeaf := listens(t, on)
			on.Routes = func() { changed <- struct{}{} }
			end := listens(t, on)
			check(t, change.do())
			select {
			case <-changed:
			case <-time.After(10 * time.Second):
				t.Errorf("%s for %s: Routes was not called", change.name, to)
			}
			end()
			endDeaf()
		}
	}
}

// listens runs a listener, and returns what ends it.
func listens(t *testing.T, on Events) (end func()) {
	l, err := ListenRoutes()
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		l.Run(on)
		close(ended)
	}()
	return func() {
		l.Close()
		<-ended
	}
}
