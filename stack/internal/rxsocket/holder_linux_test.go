package rxsocket

import (
	"errors"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/softrnic/softrnic/stack"
	"github.com/softrnic/softrnic/tests/interfaces"
)

// TestHolder finds the user of a socket in the kernel's table.
func TestHolder(t *testing.T) {
	a := netip.MustParseAddr("127.0.44.81")
	if uid, ok := holder(a); ok {
		t.Skipf("user %d has port 4791", uid)
	}
	s, _, err := Bind(netip.AddrPortFrom(a, stack.RoCEPort), setReceiving)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if uid, ok := holder(a); !ok || uid != os.Getuid() {
		t.Errorf("user %d, %v; want %d", uid, ok, os.Getuid())
	}
	if uid, ok := holder(a.Next()); ok {
		t.Errorf("user %d has the next address", uid)
	}
	for _, c := range []struct {
		line, addr string
		uid        int
	}{
		{"7: 515C007F:12B7 00000000:0000 07 00000000:00000000 00:00000000 00000000  1001 0 1 2 0 0", "", -1},
		{"7: 00000000:12B7 00000000:0000 07 00000000:00000000 00:00000000 00000000  1001 0 1 2 0 0", "10.0.0.1", 1001},
		{"7: 00000000:12B8 00000000:0000 07 00000000:00000000 00:00000000 00000000  1001 0 1 2 0 0", "10.0.0.1", -1},
		{"7: 00000000000000000000000000000000:12B7 0:0 07 0:0 0:0 0  7 0 1 2 0 0", "fd00::1", 7},
		{"7: 00000000:12B7", "10.0.0.1", -1},
	} {
		addr := a
		if c.addr != "" {
			addr = netip.MustParseAddr(c.addr)
		}
		if uid, ok := holderIn(c.line+"\n", addr); ok != (c.uid >= 0) || ok && uid != c.uid {
			t.Errorf("%s: user %d, %v; want %d", c.line, uid, ok, c.uid)
		}
	}
}

// TestBindErrorOfOtherUser checks that the error names the user who has the port, and gives advice.
func TestBindErrorOfOtherUser(t *testing.T) {
	err := inUse(netip.MustParseAddr("127.0.44.81"), os.Geteuid()+1, true)
	if !errors.Is(err, syscall.EADDRINUSE) || !strings.Contains(err.Error(), "before it becomes another user") ||
		!strings.Contains(err.Error(), "softrnic hub --system") {
		t.Error(err)
	}
	if err := inUse(netip.MustParseAddr("127.0.44.81"), os.Geteuid(), true); strings.Contains(err.Error(), "another user") {
		t.Error(err)
	}
}

// TestHolderInNamespace finds the user of a socket in the network namespace of the calling thread,
// which is not that of the process.
func TestHolderInNamespace(t *testing.T) {
	interfaces.Namespace(t)
	any := netip.IPv4Unspecified()
	if uid, ok := holder(any); ok {
		t.Errorf("user %d has the port of a new namespace", uid)
	}
	s, _, err := Bind(netip.AddrPortFrom(any, stack.RoCEPort), setReceiving)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if uid, ok := holder(netip.MustParseAddr("10.0.0.1")); !ok || uid != os.Getuid() {
		t.Errorf("user %d, %v; want %d", uid, ok, os.Getuid())
	}
}
