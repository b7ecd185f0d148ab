//go:build linux

package kernel_test

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"

	"github.com/softrnic/softrnic/stack"
	"github.com/softrnic/softrnic/stack/kernel"
	"github.com/softrnic/softrnic/tests/stacktest"
)

// TestListenFamily checks that two listeners can share a port, one for each IP version, and that
// each gets its own connections; a third listener for both is refused. A host without an address of
// a version may still listen for it.
func TestListenFamily(t *testing.T) {
	stacktest.IPv6Loopback(t)
	h, err := kernel.New(&kernel.Config{Interface: "lo", Addrs: []string{"127.0.0.3", "::1"}})
	if errors.Is(err, syscall.EADDRNOTAVAIL) && os.Getenv("CI") == "" {
		t.Skip("lo has no ::1")
	}
	must(h, err)(t)
	t.Cleanup(func() { h.Close() })
	listen := func(h *kernel.Host, addr netip.Addr, port uint16) stack.StreamListener {
		t.Helper()
		l := must(h.ListenFamily(netip.AddrPortFrom(addr, port)))(t)
		t.Cleanup(func() { l.Close() })
		return l
	}
	six := listen(h, netip.IPv6Unspecified(), 0)
	port := six.Addr().(*net.TCPAddr).AddrPort().Port()
	four := listen(h, netip.IPv4Unspecified(), port)
	for to, l := range map[string]stack.StreamListener{"127.0.0.3": four, "::1": six} {
		dialed := must(h.DialStream(t.Context(), netip.AddrPort{}, netip.AddrPortFrom(netip.MustParseAddr(to), port)))(t)
		t.Cleanup(dialed.Abort)
		accepted := must(l.Accept())(t).(stack.Stream)
		t.Cleanup(accepted.Abort)
		if got := accepted.RemoteAddr().String(); got != dialed.LocalAddr().String() {
			t.Errorf("the connection to %s comes from %s, want %s", to, got, dialed.LocalAddr())
		}
	}
	if _, err := h.ListenStream(netip.AddrPortFrom(netip.IPv4Unspecified(), port)); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("a third listener, at all addresses: %v, want EADDRINUSE", err)
	}
	if _, err := h.ListenFamily(netip.AddrPortFrom(netip.IPv4Unspecified(), port)); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("a third listener, at all IPv4 addresses: %v, want EADDRINUSE", err)
	}

	only4 := newHost(t, "127.0.0.4")
	listen(only4, netip.IPv6Unspecified(), 7471)
	if _, err := only4.ListenFamily(netip.AddrPortFrom(netip.IPv6Unspecified(), 0)); !errors.Is(err, syscall.EADDRNOTAVAIL) {
		t.Errorf("at no address, and any port: %v, want EADDRNOTAVAIL", err)
	}
}
