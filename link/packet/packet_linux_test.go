package packet

import (
	"bytes"
	"errors"
	"net"
	"os"
	"runtime"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"

	"github.com/softrnic/softrnic/link"
)

// vethPair makes v0 and v1, up, in a network namespace of the test's own, which ends with its thread.
func vethPair(t testing.TB, mtu int) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root for a network namespace")
	}
	runtime.LockOSThread() // never unlocked: the thread, and with it the namespace, goes with the goroutine
	ns, err := netns.New()
	if err != nil {
		t.Skip("needs network namespaces: ", err)
	}
	t.Cleanup(func() { ns.Close() })
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "v0", MTU: mtu}, PeerName: "v1", PeerMTU: uint32(mtu)}); err != nil {
		t.Skip("needs veth: ", err)
	}
	setUp(t)
}

// setUp brings both ends up and waits for their carrier, before which the kernel drops what is sent.
func setUp(t testing.TB) {
	t.Helper()
	ends := []string{"v0", "v1"}
	for _, name := range ends {
		if err := netlink.LinkSetUp(iface(t, name)); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range ends {
		for iface(t, name).Attrs().OperState != netlink.OperUp {
			runtime.Gosched()
		}
	}
}

func iface(t testing.TB, name string) netlink.Link {
	t.Helper()
	l, err := netlink.LinkByName(name)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func openPacket(t testing.TB, name string, opts ...Option) *Link {
	t.Helper()
	l, err := Open(name, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// receive passes copies of the frames of our EtherType, and of UDP over IPv4, to the channel.
func receive(l link.Link) <-chan link.Frame {
	c := make(chan link.Frame, 256)
	l.Attach(func(frames []link.Frame) {
		for _, f := range frames {
			if bytes.Equal(f.Data[12:14], []byte{0x88, 0xb5}) || len(f.Data) > 42 && f.Data[12] == 8 && f.Data[23] == 17 {
				f.Data = bytes.Clone(f.Data)
				c <- f
			}
		}
	})
	return c
}

func plainFrame(dst, src net.HardwareAddr, payload string) link.Frame {
	d := append(append(bytes.Clone(dst), src...), 0x88, 0xb5)
	return link.Frame{Data: append(append(d, payload...), make([]byte, 60)...)}
}

func superframe(dst, src net.HardwareAddr, segments, size int) link.Frame {
	n := segments * size
	h := append(append(bytes.Clone(dst), src...), 8, 0, 0x45, 0, byte((n+28)>>8), byte(n+28), 0, 1, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2)
	ip := header.IPv4(h[14:])
	ip.SetChecksum(^ip.CalculateChecksum())
	sum := header.PseudoHeaderChecksum(17, tcpip.AddrFromSlice(h[26:30]), tcpip.AddrFromSlice(h[30:34]), uint16(n+8))
	h = append(h, 0xc0, 0, 4791>>8, 4791&0xff, byte((n+8)>>8), byte(n+8), byte(sum>>8), byte(sum))
	f := link.Frame{Data: h, Segmentation: link.UDP, SegmentSize: uint16(size), HeaderLen: 42,
		NeedsChecksum: true, ChecksumStart: 34, ChecksumOffset: 6}
	for i := range n {
		f.Data = append(f.Data, byte(i*7))
	}
	return f
}

func TestFramesCrossVeth(t *testing.T) {
	vethPair(t, 1500)
	a, b := openPacket(t, "v0"), openPacket(t, "v1")
	rb := receive(b)
	foreign := net.HardwareAddr{2, 9, 9, 9, 9, 9}
	if _, err := a.Write([]link.Frame{
		plainFrame(foreign, a.MAC(), "foreign"),
		plainFrame(b.MAC(), a.MAC(), "own"),
		plainFrame(net.HardwareAddr{255, 255, 255, 255, 255, 255}, a.MAC(), "broadcast"),
		plainFrame(net.HardwareAddr{0x33, 0x33, 0, 0, 0, 9}, a.MAC(), "multicast"),
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
	if _, err := a.Write([]link.Frame{plainFrame(b.MAC(), a.MAC(), "x")}); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Write after Close: %v, want net.ErrClosed", err)
	}
}

func TestSuperframeCrossesVethUncut(t *testing.T) {
	vethPair(t, 4200)
	a, b := openPacket(t, "v0", WithInterfaceMAC()), openPacket(t, "v1", WithInterfaceMAC())
	if b.MAC().String() != iface(t, "v1").Attrs().HardwareAddr.String() {
		t.Errorf("MAC %v is not the interface's", b.MAC())
	}
	rb := receive(b)
	f := superframe(b.MAC(), a.MAC(), 15, 4112)
	if _, err := a.Write([]link.Frame{f}); err != nil {
		t.Fatal(err)
	}
	got := <-rb
	if got.Segmentation != link.UDP || got.SegmentSize != 4112 || got.HeaderLen != 42 || !bytes.Equal(got.Data[42:], f.Data[42:]) {
		t.Errorf("received %d bytes, segmentation %d of %d behind %d", len(got.Data), got.Segmentation, got.SegmentSize, got.HeaderLen)
	}
}

// TestDeviceWithoutUSO: the device does not segment, so what arrives are packets, and all of them.
func TestDeviceWithoutUSO(t *testing.T) {
	vethPair(t, 4200)
	a, b := openPacket(t, "v0"), openPacket(t, "v1")
	if err := setFeature("v0", unix.ETHTOOL_SGSO, 0); err != nil {
		t.Skip("needs ethtool's ioctl: ", err)
	}
	rb := receive(b)
	f := superframe(b.MAC(), a.MAC(), 15, 4112)
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

func TestErrorsSayWhatToDo(t *testing.T) {
	vethPair(t, 1500)
	for _, c := range []struct {
		name    string
		opt     Option
		prepare func()
		want    string
	}{
		{"none0", WithInterfaceMAC(), nil, "no such interface"},
		{"v0", WithMAC(net.HardwareAddr{1, 2, 3, 4, 5, 6}), nil, "not a unicast Ethernet address"},
		{"lo", WithInterfaceMAC(), nil, "does not carry Ethernet"},
		{"v0", WithInterfaceMAC(), func() { netlink.LinkSetMTU(iface(t, "v0"), 1000) }, "ip link set dev v0 mtu 1500"},
		{"v0", WithInterfaceMAC(), func() { netlink.LinkSetDown(iface(t, "v0")) }, "ip link set dev v0 up"},
		{"v1", WithInterfaceMAC(), func() {
			// This thread's capabilities only; the thread ends with the test.
			if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, 65534, 65534, 65534); errno != 0 {
				t.Skip("needs to become another user: ", errno)
			}
		}, "setcap cap_net_raw"},
	} {
		if c.prepare != nil {
			c.prepare()
		}
		l, err := Open(c.name, c.opt)
		if err == nil {
			l.Close()
			t.Errorf("Open(%q) worked, want an error with %q", c.name, c.want)
		} else if !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("Open(%q): %q, want %q in it, on one line", c.name, err, c.want)
		}
	}
}

func TestInterfaceGoesDownAndUp(t *testing.T) {
	vethPair(t, 1500)
	a, b := openPacket(t, "v0"), openPacket(t, "v1")
	rb := receive(b)
	if err := netlink.LinkSetDown(iface(t, "v0")); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Write([]link.Frame{plainFrame(b.MAC(), a.MAC(), "lost")}); err == nil || !strings.Contains(err.Error(), "ip link set dev v0 up") {
		t.Errorf("Write on an interface that is down: %v", err)
	}
	if err := netlink.LinkSetDown(iface(t, "v1")); err != nil {
		t.Fatal(err)
	}
	setUp(t)
	if _, err := a.Write([]link.Frame{plainFrame(b.MAC(), a.MAC(), "again")}); err != nil {
		t.Fatal(err)
	}
	if got := <-rb; !bytes.HasPrefix(got.Data[14:], []byte("again")) {
		t.Errorf("received %q", got.Data[14:])
	}
}

// BenchmarkWrite sends frames that the other end's kernel drops.
func BenchmarkWrite(b *testing.B) {
	vethPair(b, 4200)
	l := openPacket(b, "v0")
	f := []link.Frame{superframe(iface(b, "v1").Attrs().HardwareAddr, l.MAC(), 15, 4112)}
	b.SetBytes(15 * 4112)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := l.Write(f); err != nil {
			b.Fatal(err)
		}
	}
}
