package wireguard_test

import (
	"context"
	"net"
	"net/netip"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/softrnic/softrnic/link/wireguard"
	"github.com/softrnic/softrnic/stack/netstack"
	"github.com/softrnic/softrnic/tests/interfaces"
)

// elsewhere runs a function in a network namespace, or in a new one for netns.None, and returns the
// namespace.
func elsewhere(t *testing.T, ns netns.NsHandle, f func() error) netns.NsHandle {
	t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // the thread ends with the goroutine
		var err error
		defer func() { done <- err }()
		if ns == netns.None() {
			if err = unix.Unshare(unix.CLONE_NEWNET); err == nil {
				ns, err = netns.Get()
			}
		} else {
			err = netns.Set(ns)
		}
		if err == nil {
			err = f()
		}
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	return ns
}

// twoPaths is two namespaces with two ways between them: this one with v0 and w0, and another with
// v1 and w1. Hosts are 1 here and 2 there. The other one has 10.200.0.2 and fd00:200::2 beside.
type twoPaths struct {
	t           *testing.T
	here, there *netlink.Handle
	other       netns.NsHandle
}

func newTwoPaths(t *testing.T) *twoPaths {
	interfaces.Namespace(t)
	// Without it, the first solicitations wait until the link-local address is known to be unique.
	noDAD := func() error { return os.WriteFile("/proc/sys/net/ipv6/conf/default/accept_dad", []byte("0"), 0) }
	if err := noDAD(); err != nil {
		t.Fatal(err)
	}
	p := &twoPaths{t: t, other: elsewhere(t, netns.None(), noDAD)}
	p.here, p.there = must(netlink.NewHandle())(t), must(netlink.NewHandleAt(p.other))(t)
	t.Cleanup(func() {
		p.here.Close()
		p.there.Close()
		_ = p.other.Close()
	})
	for _, name := range []string{"v", "w"} {
		v := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name + "0"}, PeerName: name + "1", PeerNamespace: netlink.NsFd(p.other)}
		p.check(p.here.LinkAdd(v))
	}
	for _, h := range []*netlink.Handle{p.here, p.there} {
		p.check(h.LinkSetUp(must(h.LinkByName("lo"))(t)))
	}
	for _, a := range []string{"10.98.0.1/24", "fd00:98::1/64"} {
		p.addr(p.here, "v0", a, true)
	}
	for _, a := range []string{"10.97.0.1/24", "fd00:97::1/64"} {
		p.addr(p.here, "w0", a, true)
	}
	for intf, addrs := range map[string][]string{"v1": {"10.98.0.2/24", "fd00:98::2/64"}, "w1": {"10.97.0.2/24", "fd00:97::2/64"},
		"lo": {"10.200.0.2/32", "fd00:200::2/128"}} {
		for _, a := range addrs {
			p.addr(p.there, intf, a, true)
		}
	}
	for h, names := range map[*netlink.Handle][]string{p.here: {"v0", "w0"}, p.there: {"v1", "w1"}} {
		for _, name := range names {
			p.check(h.LinkSetUp(must(h.LinkByName(name))(t)))
		}
	}
	return p
}

func (p *twoPaths) check(err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatal(err)
	}
}

// addr adds or removes an address.
func (p *twoPaths) addr(h *netlink.Handle, intf, addr string, add bool) {
	p.t.Helper()
	a := must(netlink.ParseAddr(addr))(p.t)
	change := h.AddrDel
	if add {
		change = h.AddrReplace
	}
	p.check(change(must(h.LinkByName(intf))(p.t), a))
}

// route makes the route to the other host lead through v or w.
func (p *twoPaths) route(to netip.Addr, name string) {
	p.t.Helper()
	via := map[string]string{"v4": "10.98.0.2", "w4": "10.97.0.2", "v6": "fd00:98::2", "w6": "fd00:97::2"}
	family := "4"
	if to.Is6() {
		family = "6"
	}
	p.check(p.here.RouteReplace(&netlink.Route{LinkIndex: must(p.here.LinkByName(name + "0"))(p.t).Attrs().Index,
		Dst: &net.IPNet{IP: to.AsSlice(), Mask: net.CIDRMask(to.BitLen(), to.BitLen())}, Gw: net.ParseIP(via[name+family])}))
}

// sent returns the bytes that an interface has sent, also for neighbour discovery.
func (p *twoPaths) sent(h *netlink.Handle, name string) uint64 {
	p.t.Helper()
	return must(h.LinkByName(name))(p.t).Attrs().Statistics.TxBytes
}

// TestRouteMoves: packets follow the route to a peer, and the peer's answers come from the address
// that it has in the configuration, also when a way is dead or an address is gone. The sockets join
// datagrams (UDP_GRO).
func TestRouteMoves(t *testing.T) {
	for _, to := range []netip.Addr{netip.MustParseAddr("10.200.0.2"), netip.MustParseAddr("fd00:200::2")} {
		t.Run(to.String(), func(t *testing.T) { routeMoves(t, to) })
	}
}

func routeMoves(t *testing.T, to netip.Addr) {
	p := newTwoPaths(t)
	p.route(to, "v")
	keys := [2]wireguard.SecretKey{wireguard.NewPrivateKey(), wireguard.NewPrivateKey()}
	var a, b *wireguard.Link
	elsewhere(t, p.other, func() (err error) {
		b, err = wireguard.Open(&wireguard.Config{PrivateKey: keys[1], Logger: logger(),
			Peers: []wireguard.PeerConfig{{PublicKey: keys[0].Public()}}})
		return err
	})
	at := netip.AddrPortFrom(to, b.Port())
	a = must(wireguard.Open(&wireguard.Config{PrivateKey: keys[0], Logger: logger(),
		Peers: []wireguard.PeerConfig{{PublicKey: keys[1].Public(), Endpoint: at.String()}}}))(t)
	hosts := [2]*netstack.Host{}
	for i, l := range []*wireguard.Link{a, b} {
		hosts[i] = must(netstack.New(l, &netstack.Config{Addrs: []string{l.PublicKey().Addr().String() + "/48"}}))(t)
		t.Cleanup(func() { _ = hosts[i].Close() })
	}
	const long = 1000 // bytes of pings that pass an interface, more than neighbour discovery sends meanwhile
	// passes checks that pings soon arrive, both ways by the interfaces of one name only. The
	// kernel repeats a lost solicitation after a second, and WireGuard a lost handshake after five.
	passes := func(what, name, other string) {
		t.Helper()
		for give := time.Now().Add(15 * time.Second); ; {
			before := [4]uint64{p.sent(p.here, name+"0"), p.sent(p.there, name+"1"), p.sent(p.here, other+"0"), p.sent(p.there, other+"1")}
			answered := 0
			for range 10 {
				ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
				if _, err := hosts[0].Ping(ctx, b.PublicKey().Addr()); err == nil {
					answered++
				}
				cancel()
			}
			after := [4]uint64{p.sent(p.here, name+"0"), p.sent(p.there, name+"1"), p.sent(p.here, other+"0"), p.sent(p.there, other+"1")}
			if answered == 10 && after[0]-before[0] >= long && after[1]-before[1] >= long && after[2]-before[2] < long &&
				after[3]-before[3] < long {
				break
			}
			if time.Now().After(give) {
				t.Errorf("%s: %d of 10 pings have an answer; bytes by %s0, %s1, %s0, %s1: %v, then %v", what, answered, name, name, other, other,
					before, after)
				break
			}
		}
		if s := a.Peers(); s[0].Endpoint != at {
			t.Errorf("%s: the peer's answers come from %v, want %v", what, s[0].Endpoint, at)
		}
	}
	passes("at first", "v", "w")
	p.route(to, "w")
	passes("the route has moved", "w", "v")
	v1 := must(p.there.LinkByName("v1"))(t)
	p.check(p.there.LinkSetDown(v1))
	passes("the former way is dead", "w", "v")
	p.check(p.there.LinkSetUp(v1))
	if to.Is6() { // gone with the interface
		p.addr(p.there, "v1", "fd00:98::2/64", true)
	}
	p.route(to, "v")
	passes("the route has moved back", "v", "w")
	gone, here := "10.98.0.1/24", "10.98.0.3/24"
	if to.Is6() {
		gone, here = "fd00:98::1/64", "fd00:98::3/64"
	}
	p.addr(p.here, "v0", gone, false)
	p.addr(p.here, "v0", here, true)
	p.route(to, "v")
	passes("the local address has changed", "v", "w")
	p.route(to, "w")
	p.check(p.there.LinkSetDown(v1))
	passes("the route has moved, and the former way is dead at once", "w", "v")
}
