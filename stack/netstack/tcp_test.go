package netstack_test

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
)

// These tests run in real time: gVisor's TCP blocks where testing/synctest cannot observe it.

func TestStream(t *testing.T) {
	for _, tc := range []struct {
		name   string
		listen string
		dial   string
		local  string
		own    bool // from the listening host itself
	}{
		{name: "IPv4", listen: "10.0.0.2:7471", dial: "10.0.0.2:7471"},
		{name: "IPv6", listen: "[2001:db8::2]:7471", dial: "[2001:db8::2]:7471"},
		{name: "any address", listen: "0.0.0.0:7471", dial: "[2001:db8::2]:7471"},
		{name: "any address, IPv4", listen: "[::]:7471", dial: "10.0.0.2:7471"},
		{name: "local address", listen: "10.0.0.2:7471", dial: "10.0.0.2:7471", local: "10.0.0.1:4000"},
		{name: "own address", listen: "10.0.0.2:7471", dial: "10.0.0.2:7471", own: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a, b := twoHosts(t)
			if tc.own {
				a = b
			}
			l, err := b.ListenStream(netip.MustParseAddrPort(tc.listen))
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			go func() {
				c, err := l.Accept()
				if err != nil {
					return
				}
				defer c.Close()
				io.Copy(c, c)
			}()
			var local netip.AddrPort
			if tc.local != "" {
				local = netip.MustParseAddrPort(tc.local)
			}
			c, err := a.DialStream(t.Context(), local, netip.MustParseAddrPort(tc.dial))
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if tc.local != "" && c.LocalAddr().String() != tc.local {
				t.Errorf("local address %v, want %v", c.LocalAddr(), tc.local)
			}
			echo(t, c, 4<<20)
		})
	}
}

// echo sends n random bytes on c and expects them back.
func echo(t *testing.T, c net.Conn, n int) {
	t.Helper()
	out, in := make([]byte, n), make([]byte, n)
	rand.Read(out)
	sent := make(chan error)
	go func() {
		_, err := c.Write(out)
		sent <- err
	}()
	_, err := io.ReadFull(c, in)
	if err := errors.Join(err, <-sent); err != nil {
		t.Fatal(err)
	}
	if string(in) != string(out) {
		t.Error("the echo has other bytes")
	}
}

func TestStreamErrors(t *testing.T) {
	a, b := twoHosts(t)
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	for _, tc := range []struct {
		ctx          context.Context
		local, raddr string
		want         string
		is           error
	}{
		{t.Context(), "", "10.0.0.2:1", "dial tcp 10.0.0.2:1:", syscall.ECONNREFUSED},
		{canceled, "", "10.0.0.9:1", "dial tcp 10.0.0.9:1: no answer: context canceled", context.Canceled},
		{t.Context(), "", "192.0.2.1:1", "dial tcp 192.0.2.1:1:", syscall.ENETUNREACH},
		{t.Context(), "", "0.0.0.0:1", "want the address and port of a host", nil},
		{t.Context(), "", "10.0.0.2:0", "want the address and port of a host", nil},
		{t.Context(), "10.0.0.1:0", "[2001:db8::2]:1", "local address 10.0.0.1 is of the other IP version", nil},
		{t.Context(), "10.0.0.7:0", "10.0.0.2:1", "the host has no address 10.0.0.7:", syscall.EADDRNOTAVAIL},
	} {
		var local netip.AddrPort
		if tc.local != "" {
			local = netip.MustParseAddrPort(tc.local)
		}
		_, err := a.DialStream(tc.ctx, local, netip.MustParseAddrPort(tc.raddr))
		if err == nil || !strings.Contains(err.Error(), tc.want) || tc.is != nil && !errors.Is(err, tc.is) {
			t.Errorf("error %v, want %q", err, tc.want)
		}
	}
	if _, err := b.ListenStream(netip.MustParseAddrPort("10.0.0.1:1")); !errors.Is(err, syscall.EADDRNOTAVAIL) {
		t.Errorf("listen on another's address: %v", err)
	}
	l, err := b.ListenStream(netip.MustParseAddrPort("10.0.0.2:1"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if _, err := b.ListenStream(netip.MustParseAddrPort("10.0.0.2:1")); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("listen twice: %v", err)
	}
	all, err := b.ListenStream(netip.AddrPortFrom(netip.Addr{}, 2))
	if err != nil {
		t.Fatal(err)
	}
	defer all.Close()
	if _, err := b.ListenStream(netip.AddrPortFrom(netip.Addr{}, 2)); !errors.Is(err, syscall.EADDRINUSE) ||
		!strings.HasPrefix(err.Error(), "listen tcp :2: ") {
		t.Errorf("listen twice on all addresses: %v", err)
	}
}
