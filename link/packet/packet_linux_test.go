package packet

import (
	"bytes"
	"errors"
	"net"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/linktest"
	"github.com/softrnic/softrnic/tests/interfaces"
)

// vethPair creates v0 and v1, up, in a new network namespace.
func vethPair(t testing.TB, mtu int) {
	t.Helper()
	interfaces.Namespace(t)
	interfaces.Veth(t, mtu)
}

func openPacket(t testing.TB, name string, cfg *Config) *Link {
	t.Helper()
	l, err := Open(name, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func TestFramesCrossVeth(t *testing.T) {
	vethPair(t, 1500)
	a, b := openPacket(t, "v0", nil), openPacket(t, "v1", nil)
	rb := linktest.Receive(b)
	foreign := net.HardwareAddr{2, 9, 9, 9, 9, 9}
	if _, err := a.Write([]link.Frame{
		linktest.Plain(foreign, a.MAC(), 60, "foreign"),
		linktest.Plain(b.MAC(), a.MAC(), 60, "own"),
		linktest.Plain(net.HardwareAddr{255, 255, 255, 255, 255, 255}, a.MAC(), 60, "broadcast"),
		linktest.Plain(net.HardwareAddr{0x33, 0x33, 0, 0, 0, 9}, a.MAC(), 60, "multicast"),
	}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"own", "broadcast", "multicast"} {
		if got := <-rb; !bytes.HasPrefix(got.Data[14:], []byte(want)) {
			t.Errorf("received %q, want %q", got.Data[14:], want)
		}
	}
	if a.MTU() != 1500 || a.Name() != "v0" || a.MAC()[0]&3 != 2 {
		t.Errorf("MTU %d, name %s, MAC %v", a.MTU(), a.Name(), a.MAC())
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	a.Close()
	if _, err := a.Write([]link.Frame{linktest.Plain(b.MAC(), a.MAC(), 60, "x")}); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Write after Close: %v, want net.ErrClosed", err)
	}
}

func TestSuperframeCrossesVethUncut(t *testing.T) {
	vethPair(t, 4200)
	a, b := openPacket(t, "v0", &Config{InterfaceMAC: true}), openPacket(t, "v1", &Config{InterfaceMAC: true})
	if b.MAC().String() != interfaces.ByName(t, "v1").Attrs().HardwareAddr.String() {
		t.Errorf("MAC %v is not the interface's", b.MAC())
	}
	rb := linktest.Receive(b)
	f := linktest.Superframe(b.MAC(), a.MAC(), false, 15, 4112)
	if _, err := a.Write([]link.Frame{f}); err != nil {
		t.Fatal(err)
	}
	got := <-rb
	if got.Segmentation != link.UDP || got.SegmentSize != 4112 || got.HeaderLen != 42 || !bytes.Equal(got.Data[42:], f.Data[42:]) {
		t.Errorf("received %d bytes, segmentation %d of %d after %d", len(got.Data), got.Segmentation, got.SegmentSize, got.HeaderLen)
	}
}

// TestDeviceWithoutUSO checks that all segments arrive as packets if the device does not segment.
func TestDeviceWithoutUSO(t *testing.T) {
	vethPair(t, 4200)
	a, b := openPacket(t, "v0", nil), openPacket(t, "v1", nil)
	if err := setFeature("v0", unix.ETHTOOL_SGSO, 0); err != nil {
		t.Skip("needs ethtool's ioctl: ", err)
	}
	rb := linktest.Receive(b)
	f := linktest.Superframe(b.MAC(), a.MAC(), false, 15, 4112)
	if _, err := a.Write([]link.Frame{f}); err != nil {
		t.Fatal(err)
	}
	for n := 0; n < 15*4112; {
		got := <-rb
		if got.Segmentation == link.UDP {
			n += len(got.Data) - int(got.HeaderLen)
		} else {
			n += len(got.Data) - 42
		}
	}
}

func TestErrorsSuggestAFix(t *testing.T) {
	vethPair(t, 1500)
	for _, c := range []struct {
		name    string
		cfg     Config
		prepare func()
		want    string
	}{
		{"none0", Config{InterfaceMAC: true}, nil, "no such interface"},
		{"v0", Config{MAC: net.HardwareAddr{1, 2, 3, 4, 5, 6}}, nil, "not a unicast Ethernet address"},
		{"v0", Config{MAC: net.HardwareAddr{2, 2, 3, 4, 5, 6}, InterfaceMAC: true}, nil, "MAC 02:02:03:04:05:06 and InterfaceMAC"},
		{"v0", Config{Queues: -1}, nil, "packet v0: field Queues -1: must be 1 to 16"},
		{"v0", Config{Wait: 3}, nil, "packet v0: field Wait 3: must be link.WaitAdaptive"},
		{"lo", Config{InterfaceMAC: true}, nil, "does not carry Ethernet"},
		{"v0", Config{InterfaceMAC: true}, func() { netlink.LinkSetMTU(interfaces.ByName(t, "v0"), 1000) }, "ip link set dev v0 mtu 1500"},
		{"v0", Config{InterfaceMAC: true}, func() { netlink.LinkSetDown(interfaces.ByName(t, "v0")) }, "ip link set dev v0 up"},
		{"v1", Config{InterfaceMAC: true}, func() {
			// Only this thread loses its capabilities; the thread ends with the test.
			if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, 65534, 65534, 65534); errno != 0 {
				t.Skip("needs to become another user: ", errno)
			}
		}, "setcap cap_net_raw"},
	} {
		if c.prepare != nil {
			c.prepare()
		}
		l, err := Open(c.name, &c.cfg)
		if err == nil {
			l.Close()
			t.Errorf("Open(%q) succeeded, want an error with %q", c.name, c.want)
		} else if !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("Open(%q): %q, want one line with %q", c.name, err, c.want)
		}
	}
}

func TestInterfaceGoesDownAndUp(t *testing.T) {
	vethPair(t, 1500)
	a, b := openPacket(t, "v0", nil), openPacket(t, "v1", nil)
	rb := linktest.Receive(b)
	if err := netlink.LinkSetDown(interfaces.ByName(t, "v0")); err != nil {
		t.Fatal(err)
	}
	lost := linktest.Plain(b.MAC(), a.MAC(), 60, "lost")
	if _, err := a.Write([]link.Frame{lost}); err == nil || !strings.Contains(err.Error(), "ip link set dev v0 up") {
		t.Errorf("Write on an interface that is down: %v", err)
	}
	if err := netlink.LinkSetDown(interfaces.ByName(t, "v1")); err != nil {
		t.Fatal(err)
	}
	interfaces.VethUp(t)
	if _, err := a.Write([]link.Frame{linktest.Plain(b.MAC(), a.MAC(), 60, "again")}); err != nil {
		t.Fatal(err)
	}
	if got := <-rb; !bytes.HasPrefix(got.Data[14:], []byte("again")) {
		t.Errorf("received %q", got.Data[14:])
	}
}

// BenchmarkWrite sends frames that the kernel at the other end drops.
func BenchmarkWrite(b *testing.B) {
	vethPair(b, 4200)
	l := openPacket(b, "v0", nil)
	f := []link.Frame{linktest.Superframe(interfaces.ByName(b, "v1").Attrs().HardwareAddr, l.MAC(), false, 15, 4112)}
	b.SetBytes(15 * 4112)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := l.Write(f); err != nil {
			b.Fatal(err)
		}
	}
}
