package netstack_test

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/stack"
	"github.com/softrnic/softrnic/stack/netstack"
)

func TestPing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := twoHosts(t)
		for _, dst := range []netip.Addr{b4, b6, a4, a6, b.NICs()[0].GIDs()[0]} {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			if _, err := a.Ping(ctx, dst); err != nil {
				t.Error(err)
			}
			cancel()
		}
		for dst, want := range map[string]string{
			"10.0.0.9":  "ping 10.0.0.9: no answer: context deadline exceeded",
			"192.0.2.1": "ping 192.0.2.1:",
			"224.0.0.1": "ping 224.0.0.1: want the address of a host",
		} {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			if _, err := a.Ping(ctx, netip.MustParseAddr(dst)); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("error %v, want %q", err, want)
			}
			cancel()
		}
	})
}

func TestGIDs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := twoHosts(t)
		n := a.Interfaces()[0]
		linkLocal := netip.MustParseAddr("fe80::53:52ff:fe00:1") // EUI-64 of 02:53:52:00:00:01
		c4 := netip.MustParseAddr("10.0.0.77")
		check := func(want ...netip.Addr) {
			t.Helper()
			if got := n.GIDs(); !slices.Equal(got, want) {
				t.Fatalf("GIDs %v, want %v", got, want)
			}
		}
		check(linkLocal, a4, a6)
		if err := n.AddAddr("10.0.0.77/24"); err != nil {
			t.Fatal(err)
		}
		check(linkLocal, a4, a6, c4)
		in := collect(a)
		toNew := newPath(t, b, stack.PathAttr{Src: b4, Dst: c4})
		send(t, b, toNew, 20)
		synctest.Wait()
		if len(in.packets) != 1 {
			t.Errorf("%d datagrams arrived at the new address, want 1", len(in.packets))
		}
		if err := n.RemoveAddr(a4); err != nil {
			t.Fatal(err)
		}
		check(linkLocal, netip.Addr{}, a6, c4)
		if err := n.RemoveAddr(c4); err != nil {
			t.Fatal(err)
		}
		send(t, b, toNew, 20)
		synctest.Wait()
		if len(in.packets) != 1 {
			t.Errorf("%d datagrams arrived, want none more at the removed address", len(in.packets))
		}
		for _, err := range []error{n.RemoveAddr(a4), n.RemoveAddr(linkLocal), n.AddAddr("2001:db8::1/64"), n.AddAddr("x")} {
			if err == nil {
				t.Error("no error")
			}
		}
		check(linkLocal, netip.Addr{}, a6)
		if _, err := n.Datagrams().Path(stack.PathAttr{Dst: b4}); err == nil {
			t.Error("a path from the hole")
		}
		d4 := netip.MustParseAddr("10.0.0.78")
		if err := n.AddAddr("10.0.0.78/24"); err != nil {
			t.Fatal(err)
		}
		check(linkLocal, d4, a6)
	})
}

func TestOptionErrors(t *testing.T) {
	group := newWire()
	group.mac = []byte{1, 0, 0, 0, 0, 1}
	for _, tc := range []struct {
		link link.Link
		cfg  netstack.Config
		want string
	}{
		{newWire(), netstack.Config{Addrs: []string{"10.0.0.1"}},
			`Addrs[0] "10.0.0.1": want an IP address with its prefix length, such as`},
		{newWire(), netstack.Config{Addrs: []string{"10.0.0.1/33"}}, "want an IP address with its prefix length"},
		{newWire(), netstack.Config{Addrs: []string{"10.0.0.0/24"}}, "is a network or broadcast address"},
		{newWire(), netstack.Config{Addrs: []string{"10.0.0.255/24"}}, "is a network or broadcast address"},
		{newWire(), netstack.Config{Addrs: []string{"224.0.0.1/24"}}, "want the address of a host"},
		{newWire(), netstack.Config{Addrs: []string{"::1/128"}}, "want the address of a host"},
		{newWire(), netstack.Config{Addrs: []string{"::ffff:10.0.0.1/120"}}, "write an IPv4 address as IPv4: 10.0.0.1"},
		{newWire(), netstack.Config{Addrs: []string{"fe80::ff:fe00:1/64"}}, "wire has it already"},
		{newWire(), netstack.Config{Gateways: []string{"10.0.0"}}, `Gateways[0] "10.0.0": want the IP address of a router`},
		{newWire(), netstack.Config{Gateways: []string{"10.0.0.254"}},
			"gateway 10.0.0.254: wire is not in its network, but in none of IPv4"},
		{newWire(), netstack.Config{Gateways: []string{"fe80::ff:fe00:1"}}, "that is the host's own address"},
		{newWire(), netstack.Config{NICs: []netstack.NICConfig{{}}}, "NICs[0].Link is nil"},
		{newWire(), netstack.Config{NICs: []netstack.NICConfig{{Link: newWire(), Addrs: []string{"x"}}}}, `NICs[0].Addrs[0] "x"`},
		{group, netstack.Config{Addrs: []string{"10.0.0.1/24"}}, `MAC address "01:00:00:00:00:01": want six bytes, not a group address`},
		{nil, netstack.Config{Addrs: []string{"10.0.0.1/24"}}, "Link is nil"},
	} {
		h, err := netstack.New(tc.link, &tc.cfg)
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("error %v, want %q", err, tc.want)
		}
		if err == nil {
			h.Close()
		}
	}
	if _, err := netstack.New(newWire(), &netstack.Config{Addrs: []string{"10.0.0.1/24"},
		Gateways: []string{"10.0.0.2", "10.0.0.3"}}); err == nil {
		t.Error("two IPv4 gateways were taken")
	}
}

// TestSecondNIC gives each NIC its own options.
func TestSecondNIC(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		one, two := new(pipe.Switch), new(pipe.Switch)
		second, err := two.PortWithMAC(net.HardwareAddr{2, 0, 0, 0, 0, 0x22})
		if err != nil {
			t.Fatal(err)
		}
		h := newHost(t, one.Port(), &netstack.Config{NICs: []netstack.NICConfig{{Link: second, Addrs: []string{"10.0.1.1/24"}}},
			Addrs: []string{"10.0.0.1/24"}})
		peer := newHost(t, two.Port(), &netstack.Config{Addrs: []string{"10.0.1.2/24"}})
		src, dst := netip.MustParseAddr("10.0.1.1"), netip.MustParseAddr("10.0.1.2")
		if g := h.NICs()[0].GIDs(); g[1] != a4 {
			t.Errorf("first NIC has %v", g)
		}
		in := collect(peer)
		p, err := h.NICs()[1].Datagrams().Path(stack.PathAttr{Src: src, Dst: dst})
		if err != nil {
			t.Fatal(err)
		}
		send(t, h, p, 20)
		synctest.Wait()
		if len(in.packets) != 1 {
			t.Errorf("%d datagrams arrived, want 1", len(in.packets))
		}
	})
}

// TestClosedHost checks that sending on a closed host does nothing.
func TestClosedHost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := twoHosts(t)
		remote := newPath(t, a, stack.PathAttr{Src: a4, Dst: b4})
		own := newPath(t, a, stack.PathAttr{Src: a4, Dst: a4})
		send(t, a, remote, 20)
		synctest.Wait() // the datagram has arrived
		a.Close()
		a.Close()
		in := collect(b)
		send(t, a, remote, 20)
		send(t, a, own, 20)
		time.Sleep(time.Minute)
		synctest.Wait()
		if len(in.packets) != 0 {
			t.Errorf("%d datagrams arrived", len(in.packets))
		}
		if _, err := a.NICs()[0].Datagrams().Path(stack.PathAttr{Src: a4, Dst: a4}); err == nil {
			t.Error("a closed host gave a path")
		}
	})
}
