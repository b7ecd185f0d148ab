package netstack_test

import (
	"errors"
	"net"
	"net/netip"
	"syscall"
	"testing"

	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/stack/netstack"
)

func TestListenPacket(t *testing.T) {
	lan := new(pipe.Switch)
	var hosts [2]*netstack.Host
	for i, addrs := range [][2]string{{"10.0.0.1/24", "fd00::1/64"}, {"10.0.0.2/24", "fd00::2/64"}} {
		var err error
		if hosts[i], err = netstack.New(lan.Port(), &netstack.Config{Addrs: []string{addrs[0], addrs[1]}}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { hosts[i].Close() })
	}
	for _, c := range []struct{ listen, to, from string }{
		{"10.0.0.1:7", "10.0.0.1:7", "10.0.0.2:8"},
		{"0.0.0.0:9", "10.0.0.1:9", "10.0.0.2:10"},
		{"[fd00::1]:7", "[fd00::1]:7", "[fd00::2]:8"},
		{"[::]:11", "10.0.0.1:11", "10.0.0.2:12"},
	} {
		l, err := hosts[0].ListenPacket(netip.MustParseAddrPort(c.listen))
		if err != nil {
			t.Fatal(err)
		}
		s, err := hosts[1].ListenPacket(netip.MustParseAddrPort(c.from))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.WriteTo([]byte("hello"), net.UDPAddrFromAddrPort(netip.MustParseAddrPort(c.to))); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 10)
		n, from, err := l.ReadFrom(b)
		port := netip.MustParseAddrPort(c.from).Port()
		if err != nil || string(b[:n]) != "hello" || netip.MustParseAddrPort(from.String()).Port() != port {
			t.Errorf("%s: %q from %v, %v", c.listen, b[:n], from, err)
		}
		if _, err := hosts[0].ListenPacket(netip.MustParseAddrPort(c.listen)); !errors.Is(err, syscall.EADDRINUSE) {
			t.Errorf("%s again: %v", c.listen, err)
		}
		l.Close()
		s.Close()
	}
	for addr, want := range map[string]error{
		"10.0.0.9:7": syscall.EADDRNOTAVAIL, "10.0.0.1:4791": syscall.EADDRINUSE, "[::]:4791": syscall.EADDRINUSE,
	} {
		if _, err := hosts[0].ListenPacket(netip.MustParseAddrPort(addr)); !errors.Is(err, want) {
			t.Errorf("%s: %v", addr, err)
		}
	}
}
