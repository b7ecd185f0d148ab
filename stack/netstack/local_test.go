package netstack_test

import (
	"context"
	"io"
	"net/netip"
	"testing"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/capture"
	"github.com/softrnic/softrnic/link/impair"
	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/link/vlan"
	"github.com/softrnic/softrnic/stack"
	"github.com/softrnic/softrnic/stack/netstack"
)

// TestLocalNIC checks that LocalNIC is the interface of this process that a path leads to, as long
// as only memory is between the two.
func TestLocalNIC(t *testing.T) {
	lan := new(pipe.Switch)
	a := newHost(t, lan.Port(), &netstack.Config{Addrs: []string{"10.0.0.1/24"}, Gateways: []string{"10.0.0.9"}})
	port := lan.Port()
	b := newHost(t, port, &netstack.Config{Addrs: []string{"10.0.0.2/24", "10.1.0.2/24"}})
	to := func(dst string) stack.Path {
		t.Helper()
		return newPath(t, a, stack.PathAttr{Src: netip.MustParseAddr("10.0.0.1"), Dst: netip.MustParseAddr(dst)})
	}
	own, p, routed, third := to("10.0.0.1"), to("10.0.0.2"), to("10.1.0.2"), to("10.0.0.3")
	want := func(when string, p stack.Path, nic stack.NIC) {
		t.Helper()
		if got := p.LocalNIC(); got != nic {
			t.Errorf("%s: %v is %v, want %v", when, p.Ends().Dst, got, nic)
		}
	}
	nicA, nicB := a.NICs()[0], b.NICs()[0]
	want("to itself", own, nicA)
	want("on one switch", p, nicB)
	want("over a gateway", routed, nil)
	want("of an unknown address", third, nil)

	if err := b.Interfaces()[0].AddAddr("10.0.0.3/24"); err != nil {
		t.Fatal(err)
	}
	want("added", third, nicB)
	c := newHost(t, lan.Port(), &netstack.Config{Addrs: []string{"10.0.0.3/24"}})
	want("of two hosts", third, nil)
	if err := b.Interfaces()[0].RemoveAddr(netip.MustParseAddr("10.0.0.3")); err != nil {
		t.Fatal(err)
	}
	want("of the other host", third, c.NICs()[0])
	c.Close()
	want("of a closed host", third, nil)

	port.Close()
	want("over a closed link", p, nil)
	a.Close()
	want("on a closed host", own, nil)
}

// TestFramesOnly checks that hosts on a switch with FramesOnly are not local to each other; a host
// is still local to itself.
func TestFramesOnly(t *testing.T) {
	lan, err := pipe.New(&pipe.Config{FramesOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	a, b := newHost(t, lan.Port(), &netstack.Config{Addrs: []string{"10.0.0.1/24"}}),
		newHost(t, lan.Port(), &netstack.Config{Addrs: []string{"10.0.0.2/24"}})
	if got := newPath(t, a, stack.PathAttr{Src: a4, Dst: b4}).LocalNIC(); got != nil {
		t.Errorf("the other host is local: %v", got.Name())
	}
	if got := newPath(t, b, stack.PathAttr{Src: b4, Dst: b4}).LocalNIC(); got != b.NICs()[0] {
		t.Errorf("the host itself is %v", got)
	}
}

// TestLocalNICOfVLAN checks that hosts on one switch are local to each other only in the same VLAN.
func TestLocalNICOfVLAN(t *testing.T) {
	lan := new(pipe.Switch)
	host := func(id int, addr string) *netstack.Host {
		var l link.Link = lan.Port()
		if id != 0 {
			v, err := vlan.New(l, id)
			if err != nil {
				t.Fatal(err)
			}
			l = v
		}
		return newHost(t, l, &netstack.Config{Addrs: []string{addr}})
	}
	a, b := host(5, "10.0.0.1/24"), host(5, "10.0.0.2/24")
	host(6, "10.0.0.2/24")
	host(0, "10.0.0.2/24")
	host(6, "10.0.0.3/24")
	host(0, "10.0.0.3/24")
	for dst, want := range map[string]stack.NIC{"10.0.0.2": b.NICs()[0], "10.0.0.3": nil} {
		p := newPath(t, a, stack.PathAttr{Src: netip.MustParseAddr("10.0.0.1"), Dst: netip.MustParseAddr(dst)})
		if got := p.LocalNIC(); got != want {
			t.Errorf("%s is %v, want %v", dst, got, want)
		}
	}
}

// TestWrappedLinksAreNotLocal checks that hosts with a wrapped link exchange frames, because the
// wrapper records, drops or delays them.
func TestWrappedLinksAreNotLocal(t *testing.T) {
	for name, wrap := range map[string]func(link.Link) (link.Link, error){
		"capture": func(l link.Link) (link.Link, error) { return capture.New(l, io.Discard) },
		"impair":  func(l link.Link) (link.Link, error) { return impair.New(l, &impair.Config{}) },
	} {
		t.Run(name, func(t *testing.T) {
			lan := new(pipe.Switch)
			wrapped, err := wrap(lan.Port())
			if err != nil {
				t.Fatal(err)
			}
			lan2 := newHost(t, lan.Port(), &netstack.Config{Addrs: []string{"10.0.0.2/24"}})
			hosts := []*netstack.Host{newHost(t, wrapped, &netstack.Config{Addrs: []string{"10.0.0.1/24"}}), lan2}
			addrs := []netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")}
			for i, h := range hosts {
				p := newPath(t, h, stack.PathAttr{Src: addrs[i], Dst: addrs[1-i]})
				if n := p.LocalNIC(); n != nil {
					t.Errorf("%v is %v", addrs[1-i], n)
				}
			}
			l, err := hosts[0].ListenStream(netip.AddrPortFrom(addrs[0], 7))
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			s, err := hosts[1].DialStream(context.Background(), netip.AddrPort{}, netip.AddrPortFrom(addrs[0], 7))
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			if n := s.LocalNIC(); n != nil {
				t.Errorf("the stream's end is %v", n)
			}
		})
	}
}

// TestStreamLocalNIC checks that both ends of a connection know the other's interface.
func TestStreamLocalNIC(t *testing.T) {
	lan := new(pipe.Switch)
	hosts := [2]*netstack.Host{newHost(t, lan.Port(), &netstack.Config{Addrs: []string{"10.0.0.1/24"}}),
		newHost(t, lan.Port(), &netstack.Config{Addrs: []string{"10.0.0.2/24"}})}
	for _, from := range hosts {
		l, err := hosts[0].ListenStream(netip.MustParseAddrPort("10.0.0.1:7"))
		if err != nil {
			t.Fatal(err)
		}
		s, err := from.DialStream(context.Background(), netip.AddrPort{}, netip.MustParseAddrPort("10.0.0.1:7"))
		if err != nil {
			t.Fatal(err)
		}
		c, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		if n := s.LocalNIC(); n != hosts[0].NICs()[0] {
			t.Errorf("the server's end is %v", n)
		}
		if n := c.(stack.Stream).LocalNIC(); n != from.NICs()[0] {
			t.Errorf("the client's end is %v", n)
		}
		s.Close()
		c.Close()
		l.Close()
	}
}
