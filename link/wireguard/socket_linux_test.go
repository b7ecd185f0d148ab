package wireguard

import (
	"bytes"
	"encoding/binary"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/conn"
	"golang.zx2c4.com/wireguard/device"

	"github.com/softrnic/softrnic/tests/interfaces"
)

// message is where a packet from a port to 192.0.2.1 on interface 7 comes from, and its control
// message.
func message(port uint16) (from netip.AddrPort, control []byte) {
	return netip.AddrPortFrom(netip.MustParseAddr("192.0.2.2"), port),
		unix.PktInfo4(&unix.Inet4Pktinfo{Ifindex: 7, Spec_dst: [4]byte{192, 0, 2, 1}})
}

// TestClearSrc: after the device has given up the local address of a silent peer, the peer's next
// packet restores it.
func TestClearSrc(t *testing.T) {
	s := &socket{endpoints: newEndpoints(2)}
	_, e := s.arrived(message(1))
	if want := netip.MustParseAddr("192.0.2.1"); e.SrcIP() != want || e.at.Port() != 1 || e.intf != 7 {
		t.Fatalf("%+v, local address %v, want %v", e, e.SrcIP(), want)
	}
	if _, same := s.arrived(message(1)); same != e {
		t.Error("the second packet has another endpoint")
	}
	e.ClearSrc()
	if e.SrcIP().IsValid() {
		t.Errorf("after ClearSrc the local address is %v", e.SrcIP())
	}
	for range 2 {
		_, again := s.arrived(message(1))
		if !again.SrcIP().IsValid() {
			t.Error("after another packet the endpoint has no local address")
		}
	}
	_, e = s.arrived(message(1))
	e.ClearSrc()
	for port := uint16(2); port < 4; port++ {
		s.arrived(message(port)) // the endpoint becomes one of the older ones
	}
	if _, again := s.arrived(message(1)); !again.SrcIP().IsValid() {
		t.Error("an older endpoint without a local address has returned")
	}
}

// TestEndpoints: the endpoint of a host that goes on sending is remembered, whatever the number of
// other hosts, and those are forgotten.
func TestEndpoints(t *testing.T) {
	const most = 16
	s := &socket{endpoints: newEndpoints(most)}
	_, first := s.arrived(message(1))
	for port := uint16(2); port < 20*most; port++ {
		s.arrived(message(port))
		if port%(most/2) == 0 {
			if _, e := s.arrived(message(1)); e != first {
				t.Fatalf("after %d other hosts a packet has another endpoint", port-1)
			}
		}
		if n := len(s.endpoints.recent) + len(s.endpoints.older); n > 2*most {
			t.Fatalf("%d endpoints are remembered, want at most %d", n, 2*most)
		}
	}
}

// TestJoin: superframes have the limits of Linux: 64 datagrams, of which only the last is shorter,
// and the bytes of an IP packet.
func TestJoin(t *testing.T) {
	repeat := func(n, size int) []int { return slices.Repeat([]int{size}, n) }
	for _, c := range []struct {
		name  string
		sizes []int
		most  int
		want  []int // packets of each message
	}{
		{"none", nil, maxPayload, nil},
		{"one", []int{100}, maxPayload, []int{1}},
		{"no superframes", repeat(3, 100), 0, []int{1, 1, 1}},
		{"same size", repeat(3, 100), maxPayload, []int{3}},
		{"a shorter one ends it", []int{100, 100, 99, 99, 99}, maxPayload, []int{3, 2}},
		{"a longer one begins another", []int{100, 101, 101}, maxPayload, []int{1, 2}},
		{"most segments", repeat(maxSegments, 100), maxPayload, []int{maxSegments}},
		{"a segment more", repeat(maxSegments+1, 100), maxPayload, []int{maxSegments, 1}},
		{"most bytes", append(repeat(43, 1500), maxPayload-43*1500), maxPayload, []int{44}},
		{"a byte more", append(repeat(43, 1500), maxPayload-43*1500+1), maxPayload, []int{43, 1}},
		{"refused size", []int{1401, 1401, 1400, 1400}, 1400, []int{1, 1, 2}},
	} {
		t.Run(c.name, func(t *testing.T) {
			packets := make([][]byte, len(c.sizes))
			for i, n := range c.sizes {
				packets[i] = bytes.Repeat([]byte{byte(i)}, n)
			}
			s, e := new(socket), newEndpoint(netip.MustParseAddrPort("192.0.2.2:1"), netip.MustParseAddr("192.0.2.1"), 7)
			var got []int
			next := 0
			for _, m := range join(*s.newMessages(conn.IdealBatchSize, maxSegments), packets, e, e.control, c.most) {
				got = append(got, len(m.Buffers))
				want := slices.Clone(e.control)
				if len(m.Buffers) > 1 {
					want = putSize(slices.Grow(want, controlSpace), len(m.Buffers[0]))
				}
				if !bytes.Equal(m.OOB, want) {
					t.Errorf("the message of packet %d has control %x, want %x", next, m.OOB, want)
				}
				for _, b := range m.Buffers {
					if !bytes.Equal(b, packets[next]) {
						t.Errorf("packet %d is another", next)
					}
					next++
				}
			}
			if !slices.Equal(got, c.want) || next != len(packets) {
				t.Errorf("messages have %v packets, want %v", got, c.want)
			}
		})
	}
}

// opened returns sockets in a network namespace of their own, and another socket on lo.
func opened(t *testing.T, host string) (*sockets, *net.UDPConn) {
	interfaces.Namespace(t)
	if err := netlink.LinkSetUp(interfaces.ByName(t, "lo")); err != nil {
		t.Fatal(err)
	}
	s := newSockets(1).(*sockets)
	if _, _, err := s.Open(0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	c, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.ParseIP(host)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return s, c
}

// transport returns a packet of a session.
func transport(n int) []byte {
	return append(binary.LittleEndian.AppendUint32(nil, device.MessageTransportType), make([]byte, n-4)...)
}

// TestSourceGone: packets whose local address is gone are sent from another one. Other failures do
// not give up the address.
func TestSourceGone(t *testing.T) {
	for _, c := range []struct{ host, source string }{{"127.0.0.1", "192.0.2.1"}, {"::1", "2001:db8::1"}, {"::1", "fe80::1"}} {
		t.Run(c.source, func(t *testing.T) {
			s, peer := opened(t, c.host)
			at := peer.LocalAddr().(*net.UDPAddr).AddrPort()
			src := netip.MustParseAddr(c.source)
			intf := 0 // the routes are not asked
			if src.IsLinkLocalUnicast() {
				intf = 7
			}
			for _, n := range []int{1, 3} { // one packet, and a superframe
				e := newEndpoint(at, src, intf)
				if err := s.Send(slices.Repeat([][]byte{transport(100)}, n), e); err != nil {
					t.Fatal(err)
				}
				if e.SrcIP().IsValid() || e.refused.Load() != nil {
					t.Errorf("after %d packets the local address is %v, and superframes are refused: %v", n, e.SrcIP(), e.refused.Load())
				}
				expect(t, peer, n, 100)
			}
			e := newEndpoint(at, src, 7)
			if err := s.Send([][]byte{transport(100)}, e); err != nil || e.SrcIP().IsValid() {
				t.Errorf("if the routes are asked, the local address is %v: %v", e.SrcIP(), err)
			}
			e = newEndpoint(at, at.Addr(), 0)
			if err := s.Send([][]byte{transport(1 << 16)}, e); err == nil {
				t.Error("a packet of 64 KiB was sent")
			}
			if e.SrcIP() != at.Addr() {
				t.Errorf("after a packet that is too long the local address is %v, want %v", e.SrcIP(), at.Addr())
			}
		})
	}
}

// expect receives n packets of a size.
func expect(t *testing.T, c *net.UDPConn, n, size int) {
	t.Helper()
	b := make([]byte, 1<<16)
	_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
	for i := range n {
		if got, err := c.Read(b); err != nil || got != size {
			t.Fatalf("packet %d of %d has %d bytes, want %d: %v", i+1, n, got, size, err)
		}
	}
}

// TestRefused: superframes of datagrams that are too long for the path are sent as packets, each
// once, and smaller superframes go on.
func TestRefused(t *testing.T) {
	for _, host := range []string{"127.0.0.1", "::1"} {
		t.Run(host, func(t *testing.T) {
			s, peer := opened(t, host)
			if err := netlink.LinkSetMTU(interfaces.ByName(t, "lo"), 1400); err != nil {
				t.Fatal(err)
			}
			at := peer.LocalAddr().(*net.UDPAddr).AddrPort()
			e := newEndpoint(at, at.Addr(), 0)
			if e.superframes() != maxPayload {
				t.Errorf("at first superframes have datagrams of up to %d bytes", e.superframes())
			}
			packets := slices.Concat(slices.Repeat([][]byte{transport(1000)}, 3), slices.Repeat([][]byte{transport(1450)}, 3))
			for range 2 {
				if err := s.Send(packets, e); err != nil {
					t.Fatal(err)
				}
				expect(t, peer, 3, 1000)
				expect(t, peer, 3, 1450)
				if got := e.superframes(); got != 1449 || !e.SrcIP().IsValid() {
					t.Errorf("then superframes have datagrams of up to %d bytes, want 1449; the local address is %v", got, e.SrcIP())
				}
			}
			e.refused.Store(&refusedSize{1450, time.Now()})
			if e.superframes() != maxPayload {
				t.Error("the refusal does not end")
			}
		})
	}
}

// TestMarkMoves: another mark of packets may have another route, so the local address is checked
// anew.
func TestMarkMoves(t *testing.T) {
	interfaces.Namespace(t)
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	interfaces.Veth(t, 1500)
	v0, v1 := interfaces.ByName(t, "v0").Attrs().Index, interfaces.ByName(t, "v1").Attrs().Index
	own, err := netlink.ParseAddr("192.0.2.1/24")
	check(err)
	check(netlink.AddrAdd(interfaces.ByName(t, "v0"), own))
	check(netlink.RouteAdd(&netlink.Route{LinkIndex: v1, Table: 100, Scope: netlink.SCOPE_LINK,
		Dst: &net.IPNet{IP: own.IP.Mask(own.Mask), Mask: own.Mask}}))
	rule := netlink.NewRule()
	rule.Mark, rule.Table = 5, 100
	check(netlink.RuleAdd(rule))
	s := newSockets(1).(*sockets)
	_, _, err = s.Open(0)
	check(err)
	defer func() { _ = s.Close() }()
	e := newEndpoint(netip.MustParseAddrPort("192.0.2.2:1"), netip.MustParseAddr("192.0.2.1"), v0)
	for _, c := range []struct {
		mark   uint32
		sticky bool
	}{{0, true}, {5, false}, {0, true}} {
		check(s.SetMark(c.mark))
		if s.check(e); e.SrcIP().IsValid() != c.sticky {
			t.Errorf("with mark %d the local address is %v", c.mark, e.SrcIP())
		}
	}
}
