//go:build linux

package kernel_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/packet"
	"github.com/softrnic/softrnic/rdmatransport"
	"github.com/softrnic/softrnic/rdmatransport/wire"
	"github.com/softrnic/softrnic/stack"
	"github.com/softrnic/softrnic/stack/kernel"
	"github.com/softrnic/softrnic/stack/netstack"
	"github.com/softrnic/softrnic/tests/interfaces"
	"github.com/softrnic/softrnic/verbs"
)

// inNamespace runs the test again in a process with a network namespace of its own, and reports
// whether this is that process. A single thread in a namespace is not enough, because sockets are
// opened on any goroutine.
func inNamespace(t *testing.T) bool {
	t.Helper()
	const mark = "SOFTRNIC_KERNEL_NAMESPACE"
	if os.Getenv(mark) == t.Name() {
		return true
	}
	interfaces.Root(t)
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v", "-test.timeout=60s")
	cmd.Env = append(os.Environ(), mark+"="+t.Name())
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	out, err := cmd.CombinedOutput()
	if errors.Is(err, syscall.EPERM) && os.Getenv("CI") == "" {
		t.Skip("needs network namespaces")
	}
	if err != nil {
		t.Fatalf("in the namespace: %v\n%s", err, out)
	}
	if bytes.Contains(out, []byte("--- SKIP")) {
		t.Skipf("in the namespace: %s", out)
	}
	return false
}

// TestOtherAddress checks that a host with one of the machine's addresses has a path to the others,
// even if they share no network.
func TestOtherAddress(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	lo := interfaces.ByName(t, "lo")
	for _, cidr := range []string{"fd07::1/128", "fd08::1/128", "10.7.0.1/32", "10.8.0.1/32"} {
		addr := must(netlink.ParseAddr(cidr))(t)
		addr.Flags = syscall.IFA_F_NODAD
		if err := netlink.AddrAdd(lo, addr); err != nil {
			t.Fatal(err)
		}
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		t.Fatal(err)
	}
	h := must(kernel.New(&kernel.Config{Addrs: []string{"fd07::1", "10.7.0.1"}}))(t)
	t.Cleanup(func() { h.Close() })
	n := h.NICs()[0]
	for dst, want := range map[string]string{"fd08::1": "fd07::1", "10.8.0.1": "10.7.0.1"} {
		src, direct, err := n.Source(netip.MustParseAddr(dst))
		if err != nil || !direct || src != netip.MustParseAddr(want) {
			t.Errorf("to %s: from %v, direct: %t, %v", dst, src, direct, err)
		}
	}
}

// TestOnWire exchanges packets between the kernel's stack and a host that sees IP headers, in both
// directions. The host uses a counter as identification. Both check that the headers are those that
// the ICRC covers.
func TestOnWire(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	interfaces.Veth(t, 4500)
	for _, cidr := range []string{"10.7.0.1/24", "fd07::1/64"} {
		addr := must(netlink.ParseAddr(cidr))(t)
		addr.Flags = syscall.IFA_F_NODAD
		if err := netlink.AddrAdd(interfaces.ByName(t, "v0"), addr); err != nil {
			t.Fatal(err)
		}
	}
	far := must(netstack.New(must(packet.Open("v1", nil))(t), &netstack.Config{Addrs: []string{"10.7.0.2/24", "fd07::2/64"}}))(t)
	t.Cleanup(func() { far.Close() })
	local := must(kernel.New(&kernel.Config{Interface: "v0", Addrs: []string{"10.7.0.1", "fd07::1"}}))(t)
	t.Cleanup(func() { local.Close() })
	a := open(t, local)
	b := must(rdmatransport.Open(far, nil))(t)
	t.Cleanup(func() { b.Close() })

	for _, c := range []struct {
		name     string
		from, to *verbs.Device
		addr     string
	}{
		{"IPv4, dialled from the kernel's", a, b, "10.7.0.2"},
		{"IPv4, dialled to the kernel's", b, a, "10.7.0.1"},
		{"IPv6, dialled from the kernel's", a, b, "fd07::2"},
		{"IPv6, dialled to the kernel's", b, a, "fd07::1"},
	} {
		for _, transport := range []verbs.Transport{verbs.RoCEv2, verbs.IWARP} {
			t.Run(c.name+", "+transport.String(), func(t *testing.T) {
				onA, onB := dialRC(t, c.from, c.to, c.addr, transport)
				x, y := newEnd(t, onA, 1<<20), newEnd(t, onB, 1<<20)
				t.Cleanup(func() {
					if err := errors.Join(x.mr.Close(), y.mr.Close()); err != nil {
						t.Error(err)
					}
				})
				for i, n := range []int{1, 1000, 4097, 1 << 20, 300000, 8} {
					for j := range x.buf[:n] {
						x.buf[j] = byte(i + j>>8 + j)
					}
					x.postRecv()
					y.postRecv()
					x.post(&verbs.SendWR{Opcode: verbs.Send, Flags: verbs.SendSignaled, SGList: []verbs.SGE{x.mr.SGE(0, n)}})
					if wc := y.done(y.RecvCQ()); int(wc.ByteLen) != n || !bytes.Equal(x.buf[:n], y.buf[:n]) {
						t.Fatalf("of %d bytes %d arrived, or they differ", n, wc.ByteLen)
					}
					clear(x.buf[:n])
					x.settle()
					y.post(&verbs.SendWR{Opcode: verbs.Send, Flags: verbs.SendSignaled, SGList: []verbs.SGE{y.mr.SGE(0, n)}})
					if x.done(x.RecvCQ()); !bytes.Equal(x.buf[:n], y.buf[:n]) {
						t.Fatalf("the answer of %d bytes differs", n)
					}
				}
			})
		}
	}
	for name, dev := range map[string]*verbs.Device{"the kernel's": a, "the other": b} {
		if n := must(dev.HWCounters())(t)["icrc_errors"]; n != 0 {
			t.Errorf("%s device: %d wrong ICRCs", name, n)
		}
	}
	if n := must(a.HWCounters())(t)["icrc_id_solved"]; n < 100 {
		t.Errorf("only %d identifications were computed", n)
	}
	if n := must(b.HWCounters())(t)["icrc_id_solved"]; n != 0 {
		t.Errorf("%d identifications were computed though IP headers are visible", n)
	}
}

// TestLinkChanges checks that changes of the interface are reported.
func TestLinkChanges(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	interfaces.Veth(t, 1500)
	v0 := interfaces.ByName(t, "v0")
	if err := netlink.AddrAdd(v0, &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(10, 7, 0, 1), Mask: net.CIDRMask(24, 32)}}); err != nil {
		t.Fatal(err)
	}
	h := must(kernel.New(&kernel.Config{Addrs: []string{"10.7.0.1"}}))(t)
	defer h.Close()
	n := h.NICs()[0]
	changes := make(chan stack.Change, 8)
	n.Watch(func(c stack.Change) { changes <- c })
	expect := func(want stack.Change, state stack.LinkState) {
		t.Helper()
		select {
		case c := <-changes:
			if c != want || n.State() != state {
				t.Fatalf("change %d, state %v; want %d, %v", c, n.State(), want, state)
			}
		case <-time.After(10 * time.Second):
			t.Fatalf("change %d was not reported", want)
		}
	}
	if n.Name() != "v0" || n.MTU() != 1500 || n.State() != stack.LinkUp || n.MAC().String() != v0.Attrs().HardwareAddr.String() {
		t.Errorf("%s, MTU %d, %v, %v", n.Name(), n.MTU(), n.State(), n.MAC())
	}
	v1 := interfaces.ByName(t, "v1")
	if err := netlink.LinkSetDown(v1); err != nil {
		t.Fatal(err)
	}
	expect(stack.LinkWentDown, stack.LinkNoCarrier)
	if err := netlink.LinkSetUp(v1); err != nil {
		t.Fatal(err)
	}
	expect(stack.LinkCameUp, stack.LinkUp)
	old := openPath(t, h, stack.PathAttr{Src: netip.MustParseAddr("10.7.0.1"), Dst: netip.MustParseAddr("10.7.0.2")})
	if err := netlink.LinkSetMTU(v0, 1400); err != nil {
		t.Fatal(err)
	}
	for give := time.Now().Add(10 * time.Second); n.MTU() != 1400; time.Sleep(time.Millisecond) {
		if time.Now().After(give) {
			t.Fatalf("MTU %d, want 1400", n.MTU())
		}
	}
	// Datagrams for the old MTU are lost and counted; superframes are sent as before.
	a := netip.MustParseAddr("10.7.0.1")
	path := openPath(t, h, stack.PathAttr{Src: a, Dst: netip.MustParseAddr("10.7.0.2")})
	if path.MTU() != 1400-28 {
		t.Errorf("a path has MTU %d", path.MTU())
	}
	before := n.Counters()
	for _, size := range []int{1400, 1000} {
		s := n.Datagrams().Sender()
		for range 4 {
			_, b := s.Datagram(old, size)
			clear(b)
		}
		s.Flush()
	}
	if k := n.Counters(); k.TxErrors != before.TxErrors+1 || k.TxFrames != before.TxFrames+1 || k.TxDatagrams != before.TxDatagrams+4 {
		t.Errorf("counters %+v, before %+v", k, before)
	}
	if err := netlink.LinkDel(v0); err != nil {
		t.Fatal(err)
	}
	select { // the interface goes down first
	case c := <-changes:
		if c != stack.LinkWentDown {
			t.Fatalf("change %d, want %d", c, stack.LinkWentDown)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("the removal of the interface was not reported")
	}
	expect(stack.LinkGone, stack.LinkRemoved)
}

// TestAddressesChange checks that new addresses of the interface become GIDs and receive, even if
// duplicate address detection ends after the host was created. Removed addresses leave holes, which
// new ones fill. Groups work.
func TestAddressesChange(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	// Packets from the machine to itself use it.
	if err := netlink.LinkSetUp(interfaces.ByName(t, "lo")); err != nil {
		t.Fatal(err)
	}
	interfaces.Veth(t, 1500) // with link-local addresses that are tentative for a second or two
	v0 := interfaces.ByName(t, "v0")
	parse := func(cidr string) *netlink.Addr {
		a := must(netlink.ParseAddr(cidr))(t)
		a.Flags = syscall.IFA_F_NODAD
		return a
	}
	if err := netlink.AddrAdd(v0, parse("10.7.0.1/24")); err != nil {
		t.Fatal(err)
	}
	h := must(kernel.New(&kernel.Config{Interface: "v0"}))(t)
	defer h.Close()
	n := h.NICs()[0]
	changes := make(chan stack.Change, 100)
	n.Watch(func(c stack.Change) { changes <- c })
	in := receive(h)
	expect := func(what string, right func(gids []netip.Addr) bool) {
		t.Helper()
		for give := time.After(10 * time.Second); ; {
			if gids := n.GIDs(); right(gids) {
				return
			}
			select {
			case <-changes:
			case <-give:
				t.Fatalf("%s: the GIDs are %v", what, n.GIDs())
			}
		}
	}
	one, two, six := netip.MustParseAddr("10.7.0.1"), netip.MustParseAddr("10.7.0.2"), netip.MustParseAddr("fd07::1")
	expect("the link-local address, after its detection", func(g []netip.Addr) bool {
		return len(g) == 3 && g[0] == one && g[1] == one && g[2].IsLinkLocalUnicast()
	})
	for _, cidr := range []string{"10.7.0.2/24", "fd07::1/64"} {
		if err := netlink.AddrAdd(v0, parse(cidr)); err != nil {
			t.Fatal(err)
		}
	}
	expect("two more", func(g []netip.Addr) bool { return len(g) == 5 && g[1] == one && g[3] == two && g[4] == six })
	for _, c := range []struct{ src, dst netip.Addr }{{one, two}, {six, six}} {
		p := openPath(t, h, stack.PathAttr{Src: c.src, Dst: c.dst})
		// Linux reports an IPv6 address before its route exists: datagrams sent in between
		// are lost.
		give := time.After(10 * time.Second)
		for came := false; !came; {
			s := n.Datagrams().Sender()
			_, b := s.Datagram(p, 100)
			clear(b)
			s.Flush()
			select {
			case g := <-in:
				if came = true; g.Dst != c.dst {
					t.Errorf("to %v: %+v", c.dst, g.Datagram)
				}
			case <-time.After(100 * time.Millisecond):
			case <-give:
				t.Fatalf("no datagram arrived at %v", c.dst)
			}
		}
	}
	if err := netlink.AddrDel(v0, parse("10.7.0.2/24")); err != nil {
		t.Fatal(err)
	}
	expect("a hole", func(g []netip.Addr) bool { return len(g) == 5 && !g[3].IsValid() })
	if _, err := n.Datagrams().Path(stack.PathAttr{Src: two, Dst: one}); !errors.Is(err, syscall.EADDRNOTAVAIL) {
		t.Errorf("a path from a removed address: %v", err)
	}
	if err := netlink.AddrAdd(v0, parse("10.7.0.3/24")); err != nil {
		t.Fatal(err)
	}
	expect("another in the hole", func(g []netip.Addr) bool { return len(g) == 5 && g[3] == netip.MustParseAddr("10.7.0.3") })
	testGroup(t, "ff05::1:3", h)
	testGroup(t, "ff02::1:3", h)
	testGroup(t, "239.1.2.4", h)
}

// TestAddressRemovedAndAdded checks that the sockets of a removed address are closed. If the
// address is added again, existing paths send again from the same ports.
func TestAddressRemovedAndAdded(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	// Packets from the machine to itself use it.
	if err := netlink.LinkSetUp(interfaces.ByName(t, "lo")); err != nil {
		t.Fatal(err)
	}
	interfaces.Veth(t, 1500)
	v0 := interfaces.ByName(t, "v0")
	for _, cidr := range []string{"10.7.0.1/24", "10.7.0.2/24"} {
		if err := netlink.AddrAdd(v0, must(netlink.ParseAddr(cidr))(t)); err != nil {
			t.Fatal(err)
		}
	}
	h := must(kernel.New(&kernel.Config{Interface: "v0", Addrs: []string{"10.7.0.1", "10.7.0.2"}}))(t)
	defer h.Close()
	n := h.NICs()[0]
	in := receive(h)
	one, two := netip.MustParseAddr("10.7.0.1"), netip.MustParseAddr("10.7.0.2")
	sockets := func() (n int) {
		for _, e := range must(os.ReadDir("/proc/self/fd"))(t) {
			if to, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil && strings.HasPrefix(to, "socket:") {
				n++
			}
		}
		return n
	}
	await := func(what string, ok func() bool) {
		t.Helper()
		for give := time.Now().Add(10 * time.Second); !ok(); time.Sleep(time.Millisecond) {
			if time.Now().After(give) {
				t.Fatalf("%s: the addresses are %v, and there are %d sockets", what, n.GIDs(), sockets())
			}
		}
	}
	ports := map[int]uint16{}
	before := sockets()
	var paths []stack.Path
	for i := range 8 {
		paths = append(paths, must(n.Datagrams().Path(stack.PathAttr{Src: two, Dst: one, SrcPort: uint16(50000 + i)}))(t))
	}
	if n := sockets(); n != before+8 {
		t.Fatalf("8 paths with different ports have %d sockets", n-before)
	}
	send := func(p stack.Path) (lost bool) {
		before := n.Counters().TxErrors
		s := n.Datagrams().Sender()
		_, b := s.Datagram(p, 100)
		clear(b)
		s.Flush()
		return n.Counters().TxErrors != before
	}
	for round := range 3 {
		for i, p := range paths {
			await("a socket that is open is bound, too", func() bool { return !send(p) })
			g := <-in
			if round == 0 {
				ports[i] = g.SrcPort
			}
			if g.Src != two || g.SrcPort != ports[i] {
				t.Errorf("from %v, port %d, want %v, %d", g.Src, g.SrcPort, two, ports[i])
			}
		}
		if err := netlink.AddrDel(v0, must(netlink.ParseAddr("10.7.0.2/24"))(t)); err != nil {
			t.Fatal(err)
		}
		await("the sockets are closed", func() bool { return sockets() == before-1 })
		if !send(paths[0]) {
			t.Error("unsent datagrams are not counted")
		}
		if round == 1 { // all but one path end while the address is removed
			for _, p := range paths[1:] {
				p.Close()
			}
			paths = paths[:1]
		}
		if err := netlink.AddrAdd(v0, must(netlink.ParseAddr("10.7.0.2/24"))(t)); err != nil {
			t.Fatal(err)
		}
		await("the sockets are open again", func() bool { return sockets() == before+len(paths) })
	}
	paths[0].Close()
}

// TestMissedChanges checks that lost notifications are recovered after netlink's queue overflows,
// and that later ones arrive.
func TestMissedChanges(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	interfaces.Veth(t, 1500)
	v0, v1 := interfaces.ByName(t, "v0"), interfaces.ByName(t, "v1")
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	addr := func(ip string) *netlink.Addr { return must(netlink.ParseAddr(ip + "/24"))(t) }
	check(netlink.AddrAdd(v0, addr("10.7.0.1")))
	log := make(chan string, 100)
	h := must(kernel.New(&kernel.Config{Interface: "v0", Logger: slog.New(slog.NewTextHandler(lines(log), nil))}))(t)
	defer h.Close()
	n := h.NICs()[0]
	seen, release := make(chan stack.Change, 1000), make(chan struct{})
	n.Watch(func(c stack.Change) {
		seen <- c
		<-release
	})
	check(netlink.AddrAdd(v0, addr("10.7.0.2")))
	// The link-local address may be ready first.
	for c := stack.LinkCameUp; c != stack.GIDsChanged; {
		c = <-seen
	}
	check(netlink.LinkSetDown(v1))
	for i := range 1000 { // no reader
		check(netlink.AddrAdd(v0, addr("10.7.0.9")))
		check(netlink.AddrDel(v0, addr("10.7.0.9")))
		check(netlink.LinkSetMTU(v0, 1400+i%2))
	}
	check(netlink.AddrAdd(v0, addr("10.7.0.3")))
	check(netlink.LinkSetUp(v1))
	close(release)
	expect := func(ip string, mtu int) {
		t.Helper()
		for give := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
			if slices.Contains(n.GIDs(), netip.MustParseAddr(ip)) && n.MTU() == mtu && n.State() == stack.LinkUp {
				return
			}
			if time.Now().After(give) {
				t.Fatalf("addresses %v, MTU %d, %v; want %s, %d", n.GIDs(), n.MTU(), n.State(), ip, mtu)
			}
		}
	}
	expect("10.7.0.3", 1401)
	check(netlink.AddrAdd(v0, addr("10.7.0.4")))
	check(netlink.LinkSetMTU(v0, 1300))
	expect("10.7.0.4", 1300)
	if len(log) != 1 {
		t.Errorf("%d lines in the log, want 1", len(log))
	}
}

// lines sends written lines to a channel.
type lines chan<- string

func (l lines) Write(b []byte) (int, error) {
	l <- string(b)
	return len(b), nil
}

// TestForgedIdentifications checks that packets with forged identifications, from the peer's
// address and port to the QP of a connection, do not disturb it: 65,536 of them, or 2^20.
func TestForgedIdentifications(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	forgeries := 1 << 16
	if os.Getenv("SOFTRNIC_LONG") != "" {
		forgeries = 1 << 20
	}
	interfaces.Veth(t, 4500)
	addr := must(netlink.ParseAddr("10.7.0.1/24"))(t)
	if err := netlink.AddrAdd(interfaces.ByName(t, "v0"), addr); err != nil {
		t.Fatal(err)
	}
	tap := &snoopLink{Link: must(packet.Open("v1", nil))(t), header: make(chan []byte, 1)}
	far := must(netstack.New(tap, &netstack.Config{Addrs: []string{"10.7.0.2/24"}}))(t)
	t.Cleanup(func() { far.Close() })
	local := must(kernel.New(&kernel.Config{Interface: "v0", Addrs: []string{"10.7.0.1"}}))(t)
	t.Cleanup(func() { local.Close() })
	a, b := open(t, local), must(rdmatransport.Open(far, nil))(t)
	t.Cleanup(func() { b.Close() })
	onB, onA := dialRC(t, b, a, "10.7.0.1", verbs.RoCEv2)
	x, y := newEnd(t, onB, 4096), newEnd(t, onA, 4096)
	t.Cleanup(func() {
		if err := errors.Join(x.mr.Close(), y.mr.Close()); err != nil {
			t.Error(err)
		}
	})
	exchange := func(i int) {
		x.settle()
		for j := range x.buf {
			x.buf[j] = byte(i + j)
		}
		y.postRecv()
		x.post(&verbs.SendWR{Opcode: verbs.Send, Flags: verbs.SendSignaled, SGList: []verbs.SGE{x.mr.SGE(0, 4096)}})
		y.done(y.RecvCQ())
		if y.settle(); !bytes.Equal(x.buf, y.buf) {
			t.Fatalf("message %d differs", i)
		}
	}
	tap.listen.Store(true)
	exchange(0)
	var genuine []byte // a packet of the connection, with its Ethernet header
	select {
	case genuine = <-tap.header:
	case <-time.After(10 * time.Second):
		t.Fatal("no packet was captured")
	}

	forger := must(packet.Open("v1", &packet.Config{MAC: far.NICs()[0].MAC()}))(t)
	forger.Attach(func([]link.Frame) {})
	defer forger.Close()
	rnd := rand.New(rand.NewPCG(3, 4))
	batch := make([]link.Frame, 64)
	for i := range batch {
		batch[i].Data = bytes.Clone(genuine)
	}
	for sent := 0; sent < forgeries; sent += len(batch) {
		for i := range batch {
			f := batch[i].Data
			ip, bth := f[14:], f[42:]
			binary.BigEndian.PutUint16(ip[4:], uint16(rnd.Uint32()))
			binary.BigEndian.PutUint16(ip[10:], 0)
			binary.BigEndian.PutUint16(ip[10:], checksum(ip[:20]))
			binary.BigEndian.PutUint16(f[40:], 0) // no UDP checksum
			psn := rnd.Uint32()
			bth[9], bth[10], bth[11] = byte(psn>>16), byte(psn>>8), byte(psn)
			wire.PutICRC(f[14:42], bth)
		}
		if n, err := forger.Write(batch); err != nil || n != len(batch) {
			t.Fatal(n, err)
		}
		if sent%(1<<10) == 0 { // before the socket's buffer is full
			exchange(sent >> 10)
		}
	}
	exchange(1)
	t.Logf("result: %d forgeries", forgeries)
	if k := must(a.HWCounters())(t); k["icrc_errors"] < uint64(forgeries)/2 {
		t.Errorf("only %d forgeries were refused", k["icrc_errors"])
	}
}

// snoopLink is a link that gives away one of the host's packets, without sending the others.
type snoopLink struct {
	*packet.Link
	listen atomic.Bool
	header chan []byte
}

// Write implements link.Link.
func (o *snoopLink) Write(frames []link.Frame) (int, error) {
	for i := range frames {
		if f := &frames[i]; o.listen.Load() && f.Len() > 4096 && f.Len() < 4300 {
			b := bytes.Clone(f.Data)
			for _, m := range f.More {
				b = append(b, m...)
			}
			select {
			case o.header <- b:
			default:
			}
		}
	}
	return o.Link.Write(frames)
}

// checksum returns the checksum of an IP header whose checksum field is 0.
func checksum(b []byte) uint16 {
	var s uint32
	for ; len(b) > 0; b = b[2:] {
		s += uint32(binary.BigEndian.Uint16(b))
	}
	s = s&0xffff + s>>16
	return ^uint16(s + s>>16)
}
