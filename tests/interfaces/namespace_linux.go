package interfaces

import (
	"os"
	"runtime"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
)

// Root skips the test unless it runs as root.
func Root(t testing.TB) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root for a network namespace")
	}
}

// Namespace moves the test's goroutine into a new network namespace until the test ends. The thread
// leaves it then: the process's main thread cannot end with its goroutine, and /proc/self/net would
// go on showing the namespace to all later tests.
func Namespace(t testing.TB) {
	t.Helper()
	Root(t)
	runtime.LockOSThread()
	outside, err := netns.Get()
	need(t, "network namespaces", err)
	ns, err := netns.New()
	need(t, "network namespaces", err)
	t.Cleanup(func() {
		defer outside.Close()
		defer ns.Close()
		// It fails if the test has given its privileges away. No other goroutine may get that thread.
		if netns.Set(outside) == nil {
			runtime.UnlockOSThread()
		}
	})
}

// TUN skips the test if there are no TAP devices.
func TUN(t testing.TB) {
	t.Helper()
	_, err := os.Stat("/dev/net/tun")
	need(t, "/dev/net/tun", err)
}

// need skips the test if a kernel feature is missing; in CI the test fails.
func need(t testing.TB, what string, err error) {
	t.Helper()
	switch {
	case err == nil:
	case os.Getenv("CI") != "":
		t.Fatalf("needs %s: %v", what, err)
	default:
		t.Skipf("needs %s: %v", what, err)
	}
}

// Bridge creates a bridge; MTU 0 is the kernel's default.
func Bridge(t testing.TB, name string, mtu int) {
	t.Helper()
	need(t, "bridges", netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: name, MTU: mtu}}))
	if err := netlink.LinkSetUp(ByName(t, name)); err != nil {
		t.Fatal(err)
	}
}

// Veth creates the pair v0 and v1, and brings it up.
func Veth(t testing.TB, mtu int) {
	t.Helper()
	need(t, "veth", netlink.LinkAdd(&netlink.Veth{
		LinkAttrs: netlink.LinkAttrs{Name: "v0", MTU: mtu}, PeerName: "v1", PeerMTU: uint32(mtu)}))
	VethUp(t)
}

// VethUp brings v0 and v1 up and waits for their carrier. The kernel drops frames that are sent
// earlier.
func VethUp(t testing.TB) {
	t.Helper()
	ends := []string{"v0", "v1"}
	for _, name := range ends {
		if err := netlink.LinkSetUp(ByName(t, name)); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range ends {
		for ByName(t, name).Attrs().OperState != netlink.OperUp {
			runtime.Gosched()
		}
	}
}

// ByName returns the kernel's interface of that name.
func ByName(t testing.TB, name string) netlink.Link {
	t.Helper()
	l, err := netlink.LinkByName(name)
	if err != nil {
		t.Fatal(err)
	}
	return l
}
