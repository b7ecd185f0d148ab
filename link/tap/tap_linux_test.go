package tap

import (
	"bytes"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/linktest"
	"github.com/softrnic/softrnic/tests/interfaces"
)

// inNamespace runs the test in a network namespace in which TAP devices can be created.
func inNamespace(t testing.TB) {
	t.Helper()
	interfaces.Namespace(t)
	interfaces.TUN(t)
}

func openTAP(t testing.TB, name string, cfg *Config) *Link {
	t.Helper()
	l, err := Open(name, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func TestFrameThroughBridge(t *testing.T) {
	for _, c := range []struct {
		name  string
		plain bool
	}{{"virtio-net header", false}, {"plain", true}} {
		t.Run(c.name, func(t *testing.T) {
			inNamespace(t)
			interfaces.Bridge(t, "br0", 0)
			cfg := &Config{Bridge: "br0", NoOffloads: c.plain}
			a, b := openTAP(t, "a0", cfg), openTAP(t, "b0", cfg)
			rb := linktest.Receive(b)
			f := linktest.Plain(b.MAC(), a.MAC(), 300, "")
			whole := bytes.Clone(f.Data)
			f.More = [][]byte{f.Data[60:61], {}, f.Data[61:]}
			f.Data = f.Data[:60]
			if n, err := a.Write([]link.Frame{f, f}); n != 2 || err != nil {
				t.Fatal(n, err)
			}
			for range 2 {
				if got := <-rb; !bytes.Equal(got.Data, whole) {
					t.Fatalf("received %x, sent %x", got.Data, whole)
				}
			}
			if err := b.Close(); err != nil {
				t.Error(err)
			}
			if err := a.Close(); err != nil {
				t.Error(err)
			}
			if _, err := a.Write([]link.Frame{f}); !errors.Is(err, net.ErrClosed) {
				t.Errorf("Write after Close: %v, want net.ErrClosed", err)
			}
		})
	}
}

func TestSuperframeCrossesBridgeUncut(t *testing.T) {
	inNamespace(t)
	interfaces.Bridge(t, "br0", 4200)
	a := openTAP(t, "a0", &Config{Bridge: "br0", MTU: 4200})
	b := openTAP(t, "b0", &Config{Bridge: "br0", MTU: 4200})
	if !a.Offloads().USO {
		t.Skip("needs a kernel with UDP segmentation offload in TAP (6.2)")
	}
	rb := linktest.Receive(b)
	for _, v6 := range []bool{false, true} {
		f := linktest.Superframe(b.MAC(), a.MAC(), v6, 15, 4112)
		if _, err := a.Write([]link.Frame{f}); err != nil {
			t.Fatal(err)
		}
		got := <-rb
		if !bytes.Equal(got.Data[got.HeaderLen:], f.Data[f.HeaderLen:]) || got.Segmentation != link.UDP ||
			got.SegmentSize != 4112 || got.HeaderLen != f.HeaderLen {
			t.Errorf("IPv6 %t: received %d bytes, segmentation %d of %d after %d; sent %d of 4112 after %d", v6,
				len(got.Data), got.Segmentation, got.SegmentSize, got.HeaderLen, len(f.Data), f.HeaderLen)
		}
		if err := got.Validate(4200, b.Offloads()); err != nil {
			t.Errorf("IPv6 %t: the received frame cannot be forwarded: %v", v6, err)
		}
	}
	if _, err := a.Write([]link.Frame{linktest.Superframe(b.MAC(), a.MAC(), false, 129, 100)}); !errors.Is(err, link.ErrTooLong) {
		t.Errorf("129 segments: %v, want ErrTooLong", err)
	}
}

func TestSuperframeIsCutForPlainReceiver(t *testing.T) {
	inNamespace(t)
	interfaces.Bridge(t, "br0", 0)
	a := openTAP(t, "a0", &Config{Bridge: "br0"})
	b := openTAP(t, "b0", &Config{Bridge: "br0", NoOffloads: true})
	if !a.Offloads().USO {
		t.Skip("needs a kernel with UDP segmentation offload in TAP (6.2)")
	}
	if b.Offloads() != (link.Offloads{}) {
		t.Errorf("plain link announces %+v", b.Offloads())
	}
	rb := linktest.Receive(b)
	f := linktest.Superframe(b.MAC(), a.MAC(), false, 10, 1040)
	var c link.Cutter
	var want [][]byte
	for p := range c.Packets(&f) {
		want = append(want, bytes.Clone(p))
	}
	if _, err := a.Write([]link.Frame{f}); err != nil {
		t.Fatal(err)
	}
	for i, w := range want {
		if got := <-rb; !bytes.Equal(got.Data, w) {
			t.Fatalf("segment %d: the kernel cut\n%x, Cutter\n%x", i, got.Data[:42], w[:42])
		}
	}
	if _, err := b.Write([]link.Frame{f}); err == nil {
		t.Error("plain link accepted a superframe")
	}
}

func TestCloseRemovesCreatedInterface(t *testing.T) {
	inNamespace(t)
	l := openTAP(t, "mine0", &Config{MTU: 4200})
	have, err := netlink.LinkByName("mine0")
	if err != nil {
		t.Fatal(err)
	}
	if at := have.Attrs(); at.MTU != 4200 || l.MTU() != 4200 || at.RawFlags&unix.IFF_UP == 0 {
		t.Errorf("MTU %d (link says %d), flags %#x; want 4200 and up", at.MTU, l.MTU(), at.RawFlags)
	}
	if l.MAC()[0]&3 != 2 || l.MAC().String() == have.Attrs().HardwareAddr.String() || l.Name() != "mine0" {
		t.Errorf("MAC %v, interface's %v, name %s", l.MAC(), have.Attrs().HardwareAddr, l.Name())
	}
	l.Attach(func([]link.Frame) {})
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if _, err := netlink.LinkByName("mine0"); err == nil {
		t.Error("the interface still exists")
	}
}

// TestExistingInterfaceIsUnchanged checks that an existing interface is never modified, with all
// options and users. Open's error says how the interface differs.
func TestExistingInterfaceIsUnchanged(t *testing.T) {
	for _, flags := range []netlink.TuntapFlag{netlink.TUNTAP_DEFAULTS, netlink.TUNTAP_MULTI_QUEUE_DEFAULTS} {
		inNamespace(t)
		interfaces.Bridge(t, "br0", 0)
		interfaces.Bridge(t, "br1", 0)
		tt := &netlink.Tuntap{LinkAttrs: netlink.LinkAttrs{Name: "theirs0"}, Mode: netlink.TUNTAP_MODE_TAP, Flags: flags}
		if err := netlink.LinkAdd(tt); err != nil {
			t.Fatal(err)
		}
		for _, f := range tt.Fds {
			f.Close()
		}
		type state struct {
			mtu, master int
			up          bool
		}
		look := func() state {
			at := interfaces.ByName(t, "theirs0").Attrs()
			return state{at.MTU, at.MasterIndex, at.RawFlags&unix.IFF_UP != 0}
		}
		try := func(want string, cfg *Config) {
			t.Helper()
			before := look()
			l, err := Open("theirs0", cfg)
			if err == nil {
				l.Close()
			}
			if (err == nil) != (want == "") || err != nil && !strings.HasSuffix(err.Error(), want) {
				t.Errorf("Open returns %v, want %q", err, want)
			}
			if after := look(); after != before {
				t.Errorf("the interface was %+v and is %+v", before, after)
			}
		}
		try("but it is down: first run, as root: ip link set dev theirs0 up", nil)
		try("it has MTU 1500, is in no bridge and is down: first run, as root: ip link set dev theirs0 mtu 4200 master br0 up",
			&Config{MTU: 4200, Bridge: "br0"})
		if err := netlink.LinkSetUp(tt); err != nil {
			t.Fatal(err)
		}
		try("", nil)
		try("", &Config{MTU: 1500})
		if err := netlink.LinkSetMaster(tt, interfaces.ByName(t, "br1")); err != nil {
			t.Fatal(err)
		}
		try("", &Config{Bridge: "br1"})
		try("it is in bridge br1: first run, as root: ip link set dev theirs0 master br0", &Config{Bridge: "br0"})
		if l := openTAP(t, "theirs0", nil); l.MTU() != 1500 {
			t.Errorf("MTU %d, want the interface's 1500", l.MTU())
		}
	}
}

func TestErrorsSuggestAFix(t *testing.T) {
	inNamespace(t)
	interfaces.Bridge(t, "br0", 0)
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "veth0"}, PeerName: "veth1"}); err != nil {
		t.Fatal(err)
	}
	tun := &netlink.Tuntap{LinkAttrs: netlink.LinkAttrs{Name: "tun0"}, Mode: netlink.TUNTAP_MODE_TUN}
	small := &netlink.Tuntap{LinkAttrs: netlink.LinkAttrs{Name: "small0", MTU: 1000}, Mode: netlink.TUNTAP_MODE_TAP}
	own := &netlink.Tuntap{LinkAttrs: netlink.LinkAttrs{Name: "own0"}, Mode: netlink.TUNTAP_MODE_TAP}
	for _, l := range []netlink.Link{tun, small, own} {
		if err := netlink.LinkAdd(l); err != nil {
			t.Fatal(err)
		}
	}
	if err := netlink.LinkSetMTU(small, 1000); err != nil {
		t.Fatal(err)
	}
	for _, l := range []netlink.Link{small, own} {
		if err := netlink.LinkSetUp(l); err != nil {
			t.Fatal(err)
		}
	}
	have, _ := netlink.LinkByName("own0")
	busy := openTAP(t, "busy0", nil)
	for _, c := range []struct {
		name string
		cfg  *Config
		want []string
	}{
		{"", nil, []string{`"" is not an interface name`}},
		{"a/b", nil, []string{`"a/b" is not an interface name`}},
		{"sixteencharacter", nil, []string{"1 to 15 characters"}},
		{"x0", &Config{MTU: 1279}, []string{"MTU 1279", "1280", "65521"}},
		{"x0", &Config{MTU: 65522}, []string{"MTU 65522"}},
		{"x0", &Config{MAC: net.HardwareAddr{1, 2, 3, 4, 5, 6}}, []string{"01:02:03:04:05:06", "not a unicast"}},
		{"x0", &Config{MTU: -1}, []string{"tap x0: MTU -1: must be 1280 to 65521"}},
		{"x0", &Config{Queues: 17}, []string{"tap x0: field Queues 17: must be 1 to 16"}},
		{"x0", &Config{Queues: 2, NoOffloads: true}, []string{"Queues 2", "only 1"}},
		{"x0", &Config{Wait: 3}, []string{"Wait 3", "link.WaitAdaptive"}},
		{"x0", &Config{Bridge: "br9"}, []string{"no bridge br9", "ip link add br9 type bridge"}},
		{"x0", &Config{Bridge: "veth0"}, []string{"veth0 is an interface", "veth"}},
		{"veth0", nil, []string{"veth0", "taken", "type veth"}},
		{"tun0", nil, []string{"taken", "type tun"}},
		{"small0", nil, []string{"MTU is 1000", "1280", "ip link set dev small0 mtu 1500"}},
		{"own0", &Config{MAC: have.Attrs().HardwareAddr}, []string{"interface's own"}},
		{busy.Name(), nil, []string{"in use by another program", "choose another name"}},
		{busy.Name(), &Config{NoOffloads: true}, []string{"in use by another program"}},
	} {
		l, err := Open(c.name, c.cfg)
		if err == nil {
			l.Close()
			t.Errorf("Open(%q) succeeded, want an error with %q", c.name, c.want)
			continue
		}
		for _, w := range c.want {
			if !strings.Contains(err.Error(), w) || strings.Contains(err.Error(), "\n") {
				t.Errorf("Open(%q): %q; want one line with %q", c.name, err, w)
			}
		}
	}
	if _, err := netlink.LinkByName("x0"); err == nil {
		t.Error("a failed Open left its interface")
	}
}

// asUser drops the thread's capabilities.
func asUser(t *testing.T, uid int) {
	t.Helper()
	// The raw system call affects this thread only; the thread ends with the test.
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(uid), uintptr(uid), uintptr(uid)); errno != 0 {
		t.Skip("needs to become another user: ", errno)
	}
}

// deviceMode replaces /dev/net/tun by a device node with the given mode, for this thread only.
// Distributions open the node to every user, but some images do not.
func deviceMode(t *testing.T, mode uint32) {
	t.Helper()
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		t.Skip("needs a mount namespace: ", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		t.Fatal(err)
	}
	// Not t.TempDir: at the end of the test this thread may belong to another user.
	dir, err := os.MkdirTemp("", "tun")
	if err != nil {
		t.Fatal(err)
	}
	node := filepath.Join(dir, "tun")
	if err := unix.Mknod(node, unix.S_IFCHR, int(unix.Mkdev(10, 200))); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(node, os.FileMode(mode)); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(node, device, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
}

func TestClosedDevice(t *testing.T) {
	inNamespace(t)
	deviceMode(t, 0o600)
	asUser(t, 65534)
	l, err := Open("user0", nil)
	if err == nil {
		l.Close()
		t.Fatal("opened a device of mode 600")
	}
	if want := "chmod 666 " + device; !strings.Contains(err.Error(), want) {
		t.Errorf("%q, want an error with %q", err, want)
	}
}

func TestWithoutPrivilege(t *testing.T) {
	inNamespace(t)
	deviceMode(t, 0o666)
	const uid = 65534
	interfaces.Bridge(t, "br0", 0)
	theirs := &netlink.Tuntap{LinkAttrs: netlink.LinkAttrs{Name: "user0"}, Mode: netlink.TUNTAP_MODE_TAP, Owner: uid}
	down := &netlink.Tuntap{LinkAttrs: netlink.LinkAttrs{Name: "down0"}, Mode: netlink.TUNTAP_MODE_TAP, Owner: uid}
	for _, l := range []netlink.Link{theirs, down} {
		if err := netlink.LinkAdd(l); err != nil {
			t.Fatal(err)
		}
	}
	if err := netlink.LinkSetUp(theirs); err != nil {
		t.Fatal(err)
	}
	br0 := netlink.LinkAttrs{Index: interfaces.ByName(t, "br0").Attrs().Index}
	if err := netlink.LinkSetMaster(theirs, &netlink.Bridge{LinkAttrs: br0}); err != nil {
		t.Fatal(err)
	}
	asUser(t, uid)
	l, err := Open("user0", &Config{MTU: 1500, Bridge: "br0"})
	if err != nil {
		t.Errorf("attach to a matching interface of this user: %v", err)
	} else {
		l.Close()
	}
	for _, c := range []struct {
		name string
		cfg  Config
		want string
	}{
		{"user0", Config{MTU: 4200}, "as root: ip link set dev user0 mtu 4200"},
		{"down0", Config{MTU: 1500}, "as root: ip link set dev down0 up"},
		{"down0", Config{Bridge: "br0"}, "as root: ip link set dev down0 master br0 up"},
		{"new0", Config{MTU: 1500}, "ip tuntap add dev new0 mode tap user"},
	} {
		if l, err := Open(c.name, &c.cfg); err == nil {
			l.Close()
			t.Errorf("%s: opened without privilege, want an error with %q", c.name, c.want)
		} else if !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %q, want an error with %q", c.name, err, c.want)
		}
	}
}

func TestNoDevice(t *testing.T) {
	c := config{name: "x0"}
	for _, err := range []error{unix.ENOENT, unix.ENODEV} {
		if got := c.explain(&os.PathError{Op: "open", Path: device, Err: err}).Error(); !strings.Contains(got, "modprobe tun") {
			t.Errorf("%v explained as %q", err, got)
		}
	}
}

func TestDownInterface(t *testing.T) {
	inNamespace(t)
	a := openTAP(t, "a0", nil)
	have, err := netlink.LinkByName("a0")
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkSetDown(have); err != nil {
		t.Fatal(err)
	}
	_, err = a.Write([]link.Frame{linktest.Plain(have.Attrs().HardwareAddr, a.MAC(), 50, "")})
	if err == nil || !strings.Contains(err.Error(), "ip link set dev a0 up") {
		t.Errorf("Write to an interface that is down: %v", err)
	}
}

// BenchmarkWrite sends to the kernel's end, which drops unknown protocols.
func BenchmarkWrite(b *testing.B) {
	for _, c := range []struct {
		name           string
		segments, size int
	}{{"1x64B", 1, 64}, {"15x4112B", 15, 4112}} {
		b.Run(c.name, func(b *testing.B) {
			inNamespace(b)
			l := openTAP(b, "bench0", &Config{MTU: 4200})
			have, err := netlink.LinkByName("bench0")
			if err != nil {
				b.Fatal(err)
			}
			f := []link.Frame{linktest.Superframe(have.Attrs().HardwareAddr, l.MAC(), false, c.segments, c.size)}
			if !l.Offloads().USO {
				b.Skip("needs UDP segmentation offload")
			}
			f[0].Data, f[0].More = f[0].Data[:42], [][]byte{f[0].Data[42:]}
			b.SetBytes(int64(c.segments * c.size))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := l.Write(f); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// TestFrameOfManyPieces sends a frame of many pieces, as gVisor does for many small writes.
func TestFrameOfManyPieces(t *testing.T) {
	inNamespace(t)
	interfaces.Bridge(t, "br0", 0)
	a, b := openTAP(t, "a0", &Config{Bridge: "br0"}), openTAP(t, "b0", &Config{Bridge: "br0"})
	rb := linktest.Receive(b)
	f := linktest.Plain(b.MAC(), a.MAC(), 1400, "")
	whole := bytes.Clone(f.Data)
	f.Data, f.More = whole[:14:14], nil
	for i := range whole[14:] {
		f.More = append(f.More, whole[14+i:15+i])
	}
	for range 2 {
		if n, err := a.Write([]link.Frame{f}); n != 1 || err != nil {
			t.Fatal(n, err)
		}
		if got := <-rb; !bytes.Equal(got.Data, whole) {
			t.Errorf("%d bytes arrived, want the %d sent", len(got.Data), len(whole))
		}
	}
}
