//go:build linux

package kernel_test

import (
	"bytes"
	"errors"
	"net/netip"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/softrnic/softrnic/rdmatransport/wire"
	"github.com/softrnic/softrnic/stack"
	"github.com/softrnic/softrnic/stack/kernel"
	"github.com/softrnic/softrnic/tests/stacktest"
)

// got is a received datagram.
type got struct {
	stack.Datagram
	header, payload []byte
}

// receive collects the datagrams to a host.
func receive(h *kernel.Host) <-chan got {
	c := make(chan got, 4096)
	h.NICs()[0].Datagrams().Receive(func(d *stack.Datagram) {
		for {
			b, ok := d.Next()
			if !ok {
				return
			}
			c <- got{*d, bytes.Clone(d.Header), bytes.Clone(b)}
		}
	})
	return c
}

func next(t testing.TB, c <-chan got) got {
	t.Helper()
	select {
	case g := <-c:
		return g
	case <-time.After(10 * time.Second):
		t.Fatal("nothing arrived")
		return got{}
	}
}

func openPath(t testing.TB, h *kernel.Host, a stack.PathAttr) stack.Path {
	t.Helper()
	p := must(h.NICs()[0].Datagrams().Path(a))(t)
	t.Cleanup(p.Close)
	return p
}

var ipv4, other4, ipv6 = netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("127.0.0.2"), netip.MustParseAddr("::1")

// TestHeadersAreTheReceivers checks the header for the ICRC that the sender returns. It equals the
// receiver's except for UDP's checksum, in single datagrams and in superframes.
func TestHeadersAreTheReceivers(t *testing.T) {
	for _, c := range []struct{ src, dst netip.Addr }{{ipv4, other4}, {ipv4, ipv4}, {ipv6, ipv6}} {
		t.Run(c.src.String()+" to "+c.dst.String(), func(t *testing.T) {
			from := newHost(t, c.src.String())
			to := from
			if c.dst != c.src {
				to = newHost(t, c.dst.String())
			}
			in := receive(to)
			p := openPath(t, from, stack.PathAttr{Src: c.src, Dst: c.dst, SrcPort: 50000, TrafficClass: 0x68, HopLimit: 17})
			if e := p.Ends(); *e != (stack.Ends{Src: c.src, Dst: c.dst}) {
				t.Errorf("ends %v", e)
			}
			var sent []got
			s := from.NICs()[0].Datagrams().Sender()
			for i, n := range []int{100, 1000, 1000, 1000, 200, 200, 16, p.MTU(), 1, 1, 4096, 4096} {
				header, payload := s.Datagram(p, n)
				if len(payload) != n {
					t.Fatalf("%d bytes for %d", len(payload), n)
				}
				for j := range payload {
					payload[j] = byte(i + j)
				}
				sent = append(sent, got{header: bytes.Clone(header), payload: bytes.Clone(payload)})
			}
			s.Flush()
			for i, want := range sent {
				g := next(t, in)
				if !bytes.Equal(g.header, want.header) || !bytes.Equal(g.payload, want.payload) {
					t.Errorf("datagram %d: header\n%x of %d bytes\n%x of %d were sent",
						i, g.header, len(g.payload), want.header, len(want.payload))
				}
				if g.Src != c.src || g.Dst != c.dst || g.TrafficClass != 0x68 || g.HopLimit != 17 ||
					g.IDGuessed != c.src.Is4() || g.Looped != (c.src == c.dst) {
					t.Errorf("datagram %d: %+v", i, g.Datagram)
				}
			}
			k := from.NICs()[0].Counters()
			if k.TxDatagrams != uint64(len(sent)) || k.TxErrors != 0 || k.TxFrames >= k.TxDatagrams {
				t.Errorf("counters: %+v", k)
			}
			if k := to.NICs()[0].Counters(); k.RxFrames == 0 || k.RxFrames > uint64(len(sent)) || k.RxMalformed+k.RxDropped != 0 {
				t.Errorf("the receiver's counters: %+v", k)
			}
		})
	}
}

// TestDrop checks that a dropped datagram is not sent, and that the next one takes its place in the
// superframe.
func TestDrop(t *testing.T) {
	from, to := newHost(t, "127.0.0.1"), newHost(t, "127.0.0.2")
	in := receive(to)
	p := openPath(t, from, stack.PathAttr{Src: ipv4, Dst: other4})
	s := from.NICs()[0].Datagrams().Sender()
	s.Drop() // without a datagram
	var want [][]byte
	for i, keep := range []bool{false, true, true, false, true, false} {
		header, payload := s.Datagram(p, 100)
		for j := range payload {
			payload[j] = byte(i)
		}
		if keep {
			want = append(want, append(bytes.Clone(header), payload...))
		} else {
			s.Drop()
			s.Drop() // the second has no effect
		}
	}
	s.Flush()
	for i, w := range want {
		if g := next(t, in); !bytes.Equal(append(g.header, g.payload...), w) {
			t.Errorf("datagram %d: %x, want %x", i, append(g.header, g.payload...), w)
		}
	}
	_, last := s.Datagram(p, 50)
	clear(last)
	s.Flush()
	if g := next(t, in); len(g.payload) != 50 {
		t.Errorf("unexpected datagram: %x", g.payload)
	}
}

// TestManyDatagrams sends more than fits into a sender's buffer and one superframe, on several
// paths in turn.
func TestManyDatagrams(t *testing.T) {
	from, to := newHost(t, "127.0.0.1"), newHost(t, "127.0.0.2")
	in := receive(to)
	var paths []stack.Path
	ports := map[uint16]bool{}
	for i := range 20 {
		paths = append(paths, openPath(t, from, stack.PathAttr{Src: ipv4, Dst: other4, SrcPort: uint16(50000 + i)}))
	}
	s := from.NICs()[0].Datagrams().Sender()
	const n = 600
	for i := range n {
		_, payload := s.Datagram(paths[i/7%len(paths)], 1024)
		clear(payload)
		payload[0], payload[1] = byte(i>>8), byte(i)
	}
	s.Flush()
	seen := map[int]bool{}
	for range n {
		g := next(t, in)
		seen[int(g.payload[0])<<8|int(g.payload[1])] = true
		ports[g.SrcPort] = true
	}
	if len(seen) != n {
		t.Errorf("%d different datagrams of %d arrived", len(seen), n)
	}
	if len(ports) < 2 || len(ports) > 8 {
		t.Errorf("they arrived from %d source ports", len(ports))
	}
}

// TestDatagramRefuses checks that invalid sizes and foreign paths are refused.
func TestDatagramRefuses(t *testing.T) {
	h := newHost(t, "127.0.0.1")
	p := openPath(t, h, stack.PathAttr{Src: ipv4, Dst: ipv4})
	s := h.NICs()[0].Datagrams().Sender()
	defer s.Flush()
	for _, n := range []int{-1, 0, p.MTU() + 1} {
		if header, payload := s.Datagram(p, n); header != nil || payload != nil {
			t.Errorf("a datagram of %d bytes, where the MTU is %d", n, p.MTU())
		}
	}
	if _, payload := s.Datagram(nil, 1); payload != nil {
		t.Error("a datagram on no path")
	}
	if p.Batch(0) != 1 || p.Batch(1<<20) != 1 || p.Batch(1024) < 2 || p.Batch(1024)*1024 > 65535 {
		t.Errorf("batches: %d, %d, %d", p.Batch(0), p.Batch(1<<20), p.Batch(1024))
	}
}

func TestPathErrors(t *testing.T) {
	nic := newHost(t, "127.0.0.1").NICs()[0]
	for _, c := range []struct {
		name string
		attr stack.PathAttr
		want error // nil: any
	}{
		{"RoCE v1", stack.PathAttr{Src: ipv4, Dst: other4, V1: true}, errors.ErrUnsupported},
		{"a source that is another's", stack.PathAttr{Src: other4, Dst: ipv4}, syscall.EADDRNOTAVAIL},
		{"no source", stack.PathAttr{Dst: ipv4}, syscall.EADDRNOTAVAIL},
		{"two families", stack.PathAttr{Src: ipv4, Dst: ipv6}, nil},
		{"no destination", stack.PathAttr{Src: ipv4, Dst: netip.IPv4Unspecified()}, nil},
	} {
		if p, err := nic.Datagrams().Path(c.attr); err == nil || c.want != nil && !errors.Is(err, c.want) {
			t.Errorf("%s: %v, %v, want %v", c.name, p, err, c.want)
		}
	}
	if err := nic.Join(other4); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("joining %v: %v", other4, err)
	}
	if err := nic.Leave(netip.MustParseAddr("224.0.0.9")); !errors.Is(err, syscall.EADDRNOTAVAIL) {
		t.Errorf("leaving a group that was not joined: %v", err)
	}
	if nic.Frames() != nil {
		t.Error("the host has a frame port")
	}
}

// TestGroup checks that each member of a group, including the sender, receives a datagram to it. A
// member has joined several times, and receives until it has left as often.
func TestGroup(t *testing.T) {
	testGroup(t, "239.1.2.3", newHost(t, "127.0.0.1"), newHost(t, "127.0.0.2"))
	// The loopback has no route to IPv6 groups.
	if _, _, err := newHost(t, "::1").NICs()[0].Source(netip.MustParseAddr("ff05::1:3")); !errors.Is(err, syscall.ENETUNREACH) {
		t.Errorf("a group without a route: %v", err)
	}
}

// testGroup sends to a group from the first of the hosts, all of which join it.
func testGroup(t *testing.T, to string, hosts ...*kernel.Host) {
	group := netip.MustParseAddr(to)
	nic := hosts[0].NICs()[0]
	src, direct, err := nic.Source(group)
	if src.Is4() != group.Is4() || !direct || err != nil {
		t.Errorf("route to %v: from %v, direct %t, %v", group, src, direct, err)
	}
	p := openPath(t, hosts[0], stack.PathAttr{Src: src, Dst: group, HopLimit: 3, TrafficClass: 0x20})
	send := func(first int) (header []byte) {
		s := nic.Datagrams().Sender()
		for i := range 3 {
			h, payload := s.Datagram(p, 100)
			header = bytes.Clone(h)
			clear(payload)
			payload[0] = byte(first + i)
		}
		s.Flush()
		return header
	}
	before := nic.Counters().Sent.Multicast
	send(20) // no host receives this
	var in []<-chan got
	for _, h := range hosts {
		in = append(in, receive(h))
		for range 2 {
			if err := h.NICs()[0].Join(group); err != nil {
				t.Fatal(err)
			}
		}
		if err := h.NICs()[0].Leave(group); err != nil {
			t.Error(err)
		}
	}
	header := send(0)
	for i, h := range hosts {
		for n := range 3 {
			g := next(t, in[i])
			if g.Dst != group || g.Src != src || g.HopLimit != 3 || g.TrafficClass != 0x20 ||
				g.Looped != (i == 0) || int(g.payload[0]) != n {
				t.Errorf("host %d: %+v", i, g.Datagram)
			}
			if n == 2 && !bytes.Equal(g.header, header) {
				t.Errorf("host %d: header\n%x\n%x was sent", i, g.header, header)
			}
		}
		if err := h.NICs()[0].Leave(group); err != nil {
			t.Error(err)
		}
	}
	if k := nic.Counters(); k.Sent.Multicast-before != 6 || len(hosts) > 1 && hosts[1].NICs()[0].Counters().Received.Multicast != 3 {
		t.Errorf("counters: %+v", k)
	}
	send(40) // nor this
	for _, h := range hosts {
		if err := h.NICs()[0].Join(group); err != nil {
			t.Fatal(err)
		}
	}
	send(60)
	for i, h := range hosts {
		for n := range 3 {
			if g := next(t, in[i]); int(g.payload[0]) != 60+n {
				t.Errorf("host %d receives %d, which was sent while it was in no group, or is a duplicate", i, g.payload[0])
			}
		}
		if err := h.NICs()[0].Leave(group); err != nil {
			t.Error(err)
		}
	}
}

func TestNewErrors(t *testing.T) {
	newHost(t, "127.0.0.1")
	for _, c := range []struct {
		name string
		cfg  *kernel.Config
		want error  // nil: any
		text string // of the error
	}{
		{"the port is taken", &kernel.Config{Addrs: []string{"127.0.0.1"}}, syscall.EADDRINUSE, "ss -ulpn sport = :4791"},
		{"no such interface", &kernel.Config{Interface: "none7"}, syscall.ENODEV, "none7"},
		{"an address of no interface", &kernel.Config{Addrs: []string{"192.0.2.77"}}, syscall.EADDRNOTAVAIL, "127.0.0.1/8"},
		{"an address of another interface", &kernel.Config{Interface: "lo", Addrs: []string{"192.0.2.77"}},
			syscall.EADDRNOTAVAIL, "lo"},
		{"no address", &kernel.Config{Addrs: []string{"localhost"}}, nil, `Addrs[0] "localhost"`},
		{"unopened and shared", &kernel.Config{Unopened: true, Sharing: &kernel.Sharing{}}, nil, "Unopened and Sharing"},
	} {
		h, err := kernel.New(c.cfg)
		if err == nil {
			h.Close()
		}
		if err == nil || c.want != nil && !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v, want %v and %q", c.name, err, c.want, c.text)
		}
	}
}

// TestReceiveNil checks that datagrams without a receiver are dropped and counted, and that a later
// receiver gets later ones.
func TestReceiveNil(t *testing.T) {
	h := newHost(t, "127.0.0.1")
	port := h.NICs()[0].Datagrams()
	p := openPath(t, h, stack.PathAttr{Src: ipv4, Dst: ipv4})
	send := func() {
		s := port.Sender()
		_, b := s.Datagram(p, 10)
		clear(b)
		s.Flush()
	}
	port.Receive(nil)
	send()
	for give := time.Now().Add(10 * time.Second); h.NICs()[0].Counters().RxDropped == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(give) {
			t.Fatal("no datagram is counted as dropped")
		}
	}
	in := receive(h)
	send()
	next(t, in)
}

// TestCloseWhileReceiving closes a host while its receiver opens and closes paths.
func TestCloseWhileReceiving(t *testing.T) {
	h := newHost(t, "127.0.0.1")
	attr := stack.PathAttr{Src: ipv4, Dst: other4}
	nic, began := h.NICs()[0], make(chan struct{})
	nic.Datagrams().Receive(func(*stack.Datagram) {
		close(began)
		for tries := 1000; tries > 0; {
			p, err := nic.Datagrams().Path(attr)
			if err == nil {
				p.Close()
				continue
			}
			tries-- // Close has begun
			runtime.Gosched()
		}
	})
	s := nic.Datagrams().Sender()
	if _, payload := s.Datagram(openPath(t, h, stack.PathAttr{Src: ipv4, Dst: ipv4}), 1); payload == nil {
		t.Fatal("no room for a datagram")
	}
	s.Flush()
	<-began
	closed := make(chan error, 1)
	go func() { closed <- h.Close() }()
	select {
	case err := <-closed:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("Close waits for the receiver, which waits for Close")
	}
}

// TestPoll checks that datagrams are received on the polling goroutine, and by the reader once
// polling has stopped.
func TestPoll(t *testing.T) {
	h := newHost(t, "127.0.0.1")
	nic := h.NICs()[0]
	in := receive(h)
	p := openPath(t, h, stack.PathAttr{Src: ipv4, Dst: ipv4})
	send := func() {
		s := nic.Datagrams().Sender()
		_, b := s.Datagram(p, 10)
		clear(b)
		s.Flush()
	}
	polled := 0
	for range 200 {
		nic.Poll() // the reader pauses while the host is polled
		send()
		if nic.Poll() {
			polled++
		}
		if g := next(t, in); g.Polled {
			polled++
		}
	}
	if polled < 200 { // both receive, and the reader seldom comes first
		t.Errorf("of 200 datagrams %d were polled", polled/2)
	}
	nic.EndPoll()
	send()
	if g := next(t, in); g.Polled {
		t.Error("a datagram is marked Polled without a poll")
	}
}

// TestNIC checks the properties of the loopback.
func TestNIC(t *testing.T) {
	stacktest.IPv6Loopback(t)
	h := must(kernel.New(&kernel.Config{Addrs: []string{"127.0.0.1", "::1"}}))(t)
	defer h.Close()
	n := h.NICs()[0]
	if n.Name() != "lo" || n.State() != stack.LinkUp || n.MTU() < 1500 || n.MTU() > 65535 || len(n.MAC()) != 6 {
		t.Errorf("%s is %v, MTU %d, MAC %v", n.Name(), n.State(), n.MTU(), n.MAC())
	}
	if g := n.GIDs(); len(g) != 3 || g[0] != ipv4 || g[1] != ipv4 || g[2] != ipv6 {
		t.Errorf("GIDs %v", g)
	}
	for _, c := range []struct {
		dst, src string
		err      error
	}{
		{"127.0.0.1", "127.0.0.1", nil},
		{"127.0.0.2", "127.0.0.1", nil},
		{"::1", "::1", nil},
		{"::", "", syscall.EINVAL},
		{"192.0.2.1", "", syscall.ENETUNREACH},
	} {
		src, _, err := n.Source(netip.MustParseAddr(c.dst))
		if !errors.Is(err, c.err) || err == nil && src != netip.MustParseAddr(c.src) {
			t.Errorf("to %s: from %v, %v", c.dst, src, err)
		}
	}
	var changes []stack.Change
	n.Watch(func(c stack.Change) { changes = append(changes, c) })
	h.Close()
	if len(changes) != 1 || changes[0] != stack.LinkGone || n.State() != stack.LinkRemoved {
		t.Errorf("when the host closed: %v, %v", changes, n.State())
	}
	if _, err := n.Datagrams().Path(stack.PathAttr{Src: ipv4, Dst: ipv4}); err == nil {
		t.Error("a closed host has paths")
	}
}

// TestICRCOfReceived checks that the ICRC over the sender's header is valid for the receiver's, at
// each position of a superframe.
func TestICRCOfReceived(t *testing.T) {
	h := newHost(t, "127.0.0.1")
	in := receive(h)
	p := openPath(t, h, stack.PathAttr{Src: ipv4, Dst: ipv4})
	s := h.NICs()[0].Datagrams().Sender()
	for i := range 60 {
		header, b := s.Datagram(p, 1040)
		for j := range b {
			b[j] = byte(i * j)
		}
		wire.PutICRC(header, b)
	}
	s.Flush()
	for i := range 60 {
		if g := next(t, in); !wire.CheckICRC(g.header, g.payload) {
			t.Errorf("packet %d: wrong ICRC", i)
		}
	}
}

// BenchmarkDatagrams sends and receives a superframe of 60 packets.
func BenchmarkDatagrams(b *testing.B) {
	h := newHost(b, "127.0.0.1")
	nic := h.NICs()[0]
	var n int
	nic.Datagrams().Receive(func(d *stack.Datagram) {
		for _, ok := d.Next(); ok; _, ok = d.Next() {
			n++
		}
	})
	p := openPath(b, h, stack.PathAttr{Src: ipv4, Dst: ipv4})
	b.ReportAllocs()
	b.SetBytes(60 * 1040)
	for b.Loop() {
		s := nic.Datagrams().Sender()
		for range 60 {
			s.Datagram(p, 1040)
		}
		s.Flush()
		for nic.Poll() {
		}
	}
}
