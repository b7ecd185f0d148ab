package rdmatransport_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/impair"
	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/rdmatransport"
	"github.com/softrnic/softrnic/stack/netstack"
	"github.com/softrnic/softrnic/tests/stacktest"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// These tests connect two devices over a network. Package cm tests the reactions to messages that
// no device sends.

const cmPort = 7174

// cmNode is a device with an application that uses its connection manager.
type cmNode struct {
	t    testing.TB
	host *netstack.Host
	dev  *verbs.Device
	p    rdmacm.Provider

	mu     sync.Mutex
	events map[rdmacm.ProviderConn][]rdmacm.ConnEvent
	conns  []rdmacm.ProviderConn
	on     map[rdmacm.EventType]func(*rdmacm.ConnEvent) error
}

func newCMNode(t testing.TB, l link.Link, addrs ...string) *cmNode {
	t.Helper()
	host, err := netstack.New(l, &netstack.Config{Addrs: addrs})
	if err != nil {
		t.Fatal(err)
	}
	dev, err := rdmatransport.Open(host, nil)
	if err != nil {
		t.Fatal(err)
	}
	n := &cmNode{t: t, host: host, dev: dev, p: dev.Provider().(rdmacm.Provider), events: make(map[rdmacm.ProviderConn][]rdmacm.ConnEvent)}
	n.on = map[rdmacm.EventType]func(*rdmacm.ConnEvent) error{
		rdmacm.ConnectRequest: func(e *rdmacm.ConnEvent) error {
			return e.Conn.Accept(&rdmacm.ConnParam{QPNum: 0x22 + uint32(e.PeerPort), ResponderResources: 1, InitiatorDepth: 1}, 0)
		},
		rdmacm.ConnectResponse: func(e *rdmacm.ConnEvent) error { return e.Conn.Establish() },
		rdmacm.Disconnected: func(e *rdmacm.ConnEvent) error {
			_ = e.Conn.Disconnect() // an error on the side that disconnected first
			return nil
		},
	}
	return n
}

func (n *cmNode) close() {
	n.dev.Close()
	n.host.Close()
}

func (n *cmNode) handle(e *rdmacm.ConnEvent) {
	n.mu.Lock()
	if n.events[e.Conn] == nil {
		n.conns = append(n.conns, e.Conn)
	}
	n.events[e.Conn] = append(n.events[e.Conn], *e)
	f := n.on[e.Type]
	n.mu.Unlock()
	if f != nil {
		if err := f(e); err != nil {
			n.t.Errorf("%v: %v", e.Type, err)
		}
	}
}

func (n *cmNode) listen(space rdmacm.PortSpace, addr netip.Addr) {
	n.t.Helper()
	_, err := n.p.Listen(&rdmacm.ListenAttr{PortSpace: space, Addr: netip.AddrPortFrom(addr, cmPort)}, n.handle)
	if err != nil {
		n.t.Fatal(err)
	}
}

func (n *cmNode) connect(space rdmacm.PortSpace, dst string, localPort uint16) rdmacm.ProviderConn {
	n.t.Helper()
	route, err := n.p.Route(verbs.RoCEv2, netip.Addr{}, netip.MustParseAddr(dst))
	if err != nil {
		n.t.Fatal(err)
	}
	c, err := n.p.Connect(&rdmacm.ConnectAttr{
		Route: route, PortSpace: space, LocalPort: localPort, PeerPort: cmPort, QPType: verbs.RC,
		Param: rdmacm.ConnParam{QPNum: 0x100 + uint32(localPort), ResponderResources: 1, InitiatorDepth: 1, RetryCount: 7},
	}, n.handle)
	if err != nil {
		n.t.Fatal(err)
	}
	return c
}

// got returns the types of a connection's events.
func (n *cmNode) got(c rdmacm.ProviderConn) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	var s string
	for _, e := range n.events[c] {
		s += fmt.Sprintf("%v %d\n", e.Type, e.Status)
	}
	return s
}

func (n *cmNode) all() []rdmacm.ProviderConn {
	n.mu.Lock()
	defer n.mu.Unlock()
	return append([]rdmacm.ProviderConn(nil), n.conns...)
}

const (
	activeLife  = "RDMA_CM_EVENT_CONNECT_RESPONSE 0\nRDMA_CM_EVENT_DISCONNECTED 0\nRDMA_CM_EVENT_TIMEWAIT_EXIT 0\n"
	passiveLife = "RDMA_CM_EVENT_CONNECT_REQUEST 0\nRDMA_CM_EVENT_ESTABLISHED 0\n" +
		"RDMA_CM_EVENT_DISCONNECTED 0\nRDMA_CM_EVENT_TIMEWAIT_EXIT 0\n"
)

// TestConnectionsUnderLoss loses a fifth of all frames, including ARP and neighbour discovery.
// Every connection is established on both sides and ends on both, whichever side ends it.
func TestConnectionsUnderLoss(t *testing.T) {
	stacktest.Seeds(t, stacktest.Size(60, 300, 300), func(t *testing.T, seed uint64) {
		lan := new(pipe.Switch)
		bad, err := impair.New(lan.Port(), &impair.Config{
			Seed: seed, In: impair.Direction{Loss: 0.2}, Out: impair.Direction{Loss: 0.2, Duplicate: 0.05},
		})
		if err != nil {
			t.Fatal(err)
		}
		a := newCMNode(t, bad, "10.0.0.1/24", "fd00::1/64")
		defer a.close()
		b := newCMNode(t, lan.Port(), "10.0.0.2/24", "fd00::2/64")
		defer b.close()
		b.listen(rdmacm.TCP, netip.Addr{}) // all addresses of both families
		dst := []string{"10.0.0.2", "fd00::2"}[seed%2]
		const count = 4
		for i := range count {
			a.connect(rdmacm.TCP, dst, uint16(1000+i))
		}
		time.Sleep(5 * time.Minute)
		for i, c := range a.all() {
			if i%2 == 0 {
				if err := c.Disconnect(); err != nil {
					t.Fatalf("seed %d: %v after %s", seed, err, a.got(c))
				}
			}
		}
		for i, c := range b.all() {
			if i%2 == 0 {
				_ = c.Disconnect() // sometimes both at the same time
			}
		}
		time.Sleep(5 * time.Minute)
		for _, c := range append(a.all(), b.all()...) {
			_ = c.Disconnect() // in case neither side did
		}
		time.Sleep(5 * time.Minute)
		if len(a.all()) != count || len(b.all()) != count {
			t.Fatalf("seed %d: %d and %d connections, want %d", seed, len(a.all()), len(b.all()), count)
		}
		for _, c := range a.all() {
			if s := a.got(c); s != activeLife {
				t.Errorf("seed %d: active:\n%s", seed, s)
			}
		}
		for _, c := range b.all() {
			if s := b.got(c); s != passiveLife {
				t.Errorf("seed %d: passive:\n%s", seed, s)
			}
		}
	})
}

// TestPeerVanishes makes the peer vanish in each state of a connection. The application is notified
// within the timeouts.
func TestPeerVanishes(t *testing.T) {
	timedOut := -int(syscall.ETIMEDOUT)
	gone := fmt.Sprintf("RDMA_CM_EVENT_UNREACHABLE %d\n", timedOut)
	for name, tc := range map[string]struct {
		loseIn, loseOut bool   // what the active side does not receive, or cannot send
		active, passive string // their events
	}{
		"no REQ": {loseOut: true, active: gone},
		"no REP": {loseIn: true, active: gone,
			// It gives up first, and is called once more.
			passive: "RDMA_CM_EVENT_CONNECT_REQUEST 0\n" + gone + "RDMA_CM_EVENT_CONNECT_REQUEST 0\nRDMA_CM_EVENT_REJECTED 4\n"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				lan := new(pipe.Switch)
				drop := func(all bool) (d impair.Direction) {
					if all {
						d.Rules = []impair.Rule{{Match: isRoCE, Count: -1, Action: impair.Drop}}
					}
					return d
				}
				bad, err := impair.New(lan.Port(), &impair.Config{In: drop(tc.loseIn), Out: drop(tc.loseOut)})
				if err != nil {
					t.Fatal(err)
				}
				a := newCMNode(t, bad, "10.0.0.1/24")
				defer a.close()
				b := newCMNode(t, lan.Port(), "10.0.0.2/24")
				defer b.close()
				b.listen(rdmacm.TCP, netip.MustParseAddr("10.0.0.2"))
				c := a.connect(rdmacm.TCP, "10.0.0.2", 1000)
				time.Sleep(100 * time.Second)
				if s := a.got(c); s != tc.active {
					t.Errorf("active after 100 s:\n%s", s)
				}
				time.Sleep(time.Hour)
				if s := a.got(c); s != tc.active {
					t.Errorf("active:\n%s", s)
				}
				var s string
				for _, c := range b.all() {
					s += b.got(c)
				}
				if s != tc.passive {
					t.Errorf("passive:\n%s", s)
				}
			})
		})
	}
}

// isRoCE reports whether an IPv4 frame is a datagram to port 4791.
func isRoCE(f []byte) bool {
	return len(f) > 42 && f[12] == 8 && f[13] == 0 && f[23] == 17 && f[36] == 4791>>8 && f[37] == 4791&0xff
}

// TestConnectToOneself checks that both ends of a connection may be on one device.
func TestConnectToOneself(t *testing.T) {
	overAll(t, func(t *testing.T, m medium, transport verbs.Transport) {
		a, _ := m.stations(t, nil)
		x, y := dial(a, a, transport, nil)
		bothWays(t, x, y)
		ok(t, x.Close())
		<-y.Done()
		ok(t, y.Close())
	})
}

// TestEventsOfBothEnds checks that a connection to oneself has the events of both ends, up to
// TIMEWAIT_EXIT.
func TestEventsOfBothEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newCMNode(t, new(pipe.Switch).Port(), "10.0.0.1/24")
		defer a.close()
		a.listen(rdmacm.TCP, netip.MustParseAddr("10.0.0.1"))
		c := a.connect(rdmacm.TCP, "10.0.0.1", 1000)
		synctest.Wait()
		if err := c.Disconnect(); err != nil {
			t.Fatalf("%v after %s", err, a.got(c))
		}
		time.Sleep(time.Minute)
		for _, x := range a.all() {
			want := passiveLife
			if x == c {
				want = activeLife
			}
			if s := a.got(x); s != want {
				t.Errorf("%s", s)
			}
		}
		if n := len(a.all()); n != 2 {
			t.Errorf("%d connections", n)
		}
	})
}

// TestNoListener checks that a request without a listener is rejected.
func TestNoListener(t *testing.T) {
	overMedia(t, func(t *testing.T, m medium) {
		a, b := m.stations(t, nil)
		both(t, func(t *testing.T, transport verbs.Transport) {
			_, err := rdmacm.Dial(within(t), a.dev, b.at(cmPort), &rdmacm.Config{Transport: transport})
			if !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("a connection: %v, want ECONNREFUSED", err)
			}
		})
		u := resolved(t, within(t), rdmacm.UDP, a, b)
		defer u.Close()
		ok(t, u.CreateQP(a.pd, &verbs.QPInitAttr{Type: verbs.UD, Cap: verbs.QPCap{MaxSendWR: 1, MaxRecvWR: 1}}))
		var e *rdmacm.EventError
		if err := u.Connect(within(t), nil); !errors.As(err, &e) || e.Type != rdmacm.Unreachable || e.Status != 1 {
			t.Errorf("the QP of a service: %v, want UNREACHABLE with status 1", err)
		}
	})
}

func TestRoute(t *testing.T) {
	lan, wan := new(pipe.Switch), must(pipe.New(&pipe.Config{MTU: 1500}))(t)
	second, err := wan.PortWithMAC(net.HardwareAddr{2, 0, 0, 0, 0, 2})
	if err != nil {
		t.Fatal(err)
	}
	host, err := netstack.New(lan.Port(), &netstack.Config{Addrs: []string{"10.0.0.1/24", "10.0.1.1/16", "fd00::1/64"},
		NICs: []netstack.NICConfig{{Link: second, Addrs: []string{"192.168.1.1/24"}, Gateways: []string{"192.168.1.254"}}}})
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	dev := must(rdmatransport.Open(host, nil))(t)
	defer dev.Close()
	p := dev.Provider().(rdmacm.Provider)
	for _, tc := range []struct {
		src, dst string
		want     string // source, port, GID index, MTU; or the errno
	}{
		{"", "10.0.0.2", "10.0.0.1 1 1 4096"},
		{"", "10.0.9.2", "10.0.1.1 1 2 4096"},
		{"10.0.1.1", "10.0.0.2", "10.0.1.1 1 2 4096"},
		{"", "10.0.0.1", "10.0.0.1 1 1 4096"},
		{"", "fd00::7", "fd00::1 1 3 4096"},
		{"", "192.168.1.9", "192.168.1.1 2 1 1024"},
		{"", "8.8.8.8", "192.168.1.1 2 1 1024"},
		{"0.0.0.0", "8.8.8.8", "192.168.1.1 2 1 1024"},
		{"", "::ffff:10.0.0.2", "10.0.0.1 1 1 4096"},
		{"fd00::1", "10.0.0.2", "EINVAL"},
		{"10.0.0.77", "10.0.0.2", "EADDRNOTAVAIL"},
		{"", "2001:db8::1", "ENETUNREACH"},
		{"", "224.0.0.9", "10.0.0.1 1 1 4096"},
		{"192.168.1.1", "224.0.0.9", "192.168.1.1 2 1 1024"},
		{"", "0.0.0.0", "EINVAL"},
		{"", "127.0.0.1", "EINVAL"},
		{"", "fe80::1%nowhere", "ENETUNREACH"},
	} {
		var src netip.Addr
		if tc.src != "" {
			src = netip.MustParseAddr(tc.src)
		}
		r, err := p.Route(verbs.RoCEv2, src, netip.MustParseAddr(tc.dst))
		errno := map[string]syscall.Errno{"EINVAL": syscall.EINVAL, "EADDRNOTAVAIL": syscall.EADDRNOTAVAIL,
			"ENETUNREACH": syscall.ENETUNREACH}[tc.want]
		switch {
		case errno != 0:
			if !errors.Is(err, errno) {
				t.Errorf("from %q to %s: %+v, %v; want %s", tc.src, tc.dst, r, err, tc.want)
			}
		case err != nil:
			t.Errorf("from %q to %s: %v", tc.src, tc.dst, err)
		default:
			if got := fmt.Sprintf("%v %d %d %v", r.Src, r.PortNum, r.GIDIndex, r.MTU); got != tc.want {
				t.Errorf("from %q to %s: %s, want %s", tc.src, tc.dst, got, tc.want)
			}
		}
	}
}

func TestResolve(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lan := new(pipe.Switch)
		a := newCMNode(t, lan.Port(), "10.0.0.1/24", "fd00::1/64")
		defer a.close()
		b := newCMNode(t, lan.Port(), "10.0.0.2/24", "fd00::2/64")
		defer b.close()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		for dst, want := range map[string]error{
			"10.0.0.2": nil, "fd00::2": nil, "10.0.0.1": nil,
			"10.0.0.3": context.DeadlineExceeded, "fd00::3": context.DeadlineExceeded,
		} {
			r, err := a.p.Route(verbs.RoCEv2, netip.Addr{}, netip.MustParseAddr(dst))
			if err != nil {
				t.Fatal(err)
			}
			ctx := ctx
			if want != nil {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, 10*time.Second)
				defer cancel()
			}
			if err := a.p.Resolve(ctx, r); !errors.Is(err, want) {
				t.Errorf("%s: %v", dst, err)
			}
		}
		// A host that joins later is found.
		r, err := a.p.Route(verbs.RoCEv2, netip.Addr{}, netip.MustParseAddr("10.0.0.4"))
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan error)
		go func() { done <- a.p.Resolve(ctx, r) }()
		time.Sleep(8 * time.Second)
		c := newCMNode(t, lan.Port(), "10.0.0.4/24")
		defer c.close()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestJoinMulticast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newCMNode(t, new(pipe.Switch).Port(), "10.0.0.1/24", "fd00::1/64")
		defer a.close()
		r, err := a.p.Route(verbs.RoCEv2, netip.Addr{}, netip.MustParseAddr("10.0.0.2"))
		if err != nil {
			t.Fatal(err)
		}
		for i, group := range []string{"239.1.2.3", "ff05::1:3", "239.1.2.4"} {
			sendOnly := i == 2
			var events []rdmacm.ConnEvent
			m, err := a.p.JoinMulticast(r, netip.MustParseAddr(group), sendOnly, func(e *rdmacm.ConnEvent) { events = append(events, *e) })
			if err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			if len(events) != 1 || events[0].Type != rdmacm.MulticastJoin || events[0].UD.QPNum != 0xffffff ||
				events[0].UD.AHAttr.GRH.DGID.Addr().String() != group {
				t.Errorf("%s: %+v", group, events)
			}
			nic := a.host.NICs()[0]
			err = nic.Leave(netip.MustParseAddr(group))
			if sendOnly != (err != nil) {
				t.Errorf("%s: send-only is %t, leaving the group: %v", group, sendOnly, err)
			}
			if !sendOnly {
				err = nic.Join(netip.MustParseAddr(group))
				if err := errors.Join(err, m.Close()); err != nil {
					t.Error(err)
				}
			}
			if err := errors.Join(m.Close(), m.Close()); err != nil {
				t.Error(err)
			}
		}
		if _, err := a.p.JoinMulticast(r, netip.MustParseAddr("10.0.0.2"), false, nil); err == nil {
			t.Error("joined a host")
		}
	})
}

// BenchmarkConnect establishes and ends a connection between two devices in one process, which
// takes five messages.
func BenchmarkConnect(b *testing.B) {
	lan := new(pipe.Switch)
	client, server := newCMNode(b, lan.Port(), "10.0.0.1/24"), newCMNode(b, lan.Port(), "10.0.0.2/24")
	defer client.close()
	defer server.close()
	if _, err := server.p.Listen(&rdmacm.ListenAttr{PortSpace: rdmacm.TCP, Addr: netip.MustParseAddrPort("10.0.0.2:7174")},
		func(e *rdmacm.ConnEvent) {
			switch e.Type {
			case rdmacm.ConnectRequest:
				_ = e.Conn.Accept(&rdmacm.ConnParam{QPNum: e.Param.QPNum}, 0)
			case rdmacm.Disconnected:
				e.Conn.Close()
			}
		}); err != nil {
		b.Fatal(err)
	}
	route, err := client.p.Route(verbs.RoCEv2, netip.Addr{}, netip.MustParseAddr("10.0.0.2"))
	if err != nil {
		b.Fatal(err)
	}
	slots := make(chan struct{}, 32)
	var qpn uint32
	b.ReportAllocs()
	for b.Loop() {
		slots <- struct{}{}
		qpn = (qpn + 1) & 0xffff
		if _, err := client.p.Connect(&rdmacm.ConnectAttr{
			Route: route, PortSpace: rdmacm.TCP, LocalPort: 1000, PeerPort: cmPort,
			Param: rdmacm.ConnParam{QPNum: 0x100 + qpn},
		}, func(e *rdmacm.ConnEvent) {
			switch e.Type {
			case rdmacm.ConnectResponse:
				_ = e.Conn.Establish()
				_ = e.Conn.Disconnect()
			case rdmacm.Disconnected:
				e.Conn.Close()
				<-slots
			case rdmacm.Rejected, rdmacm.Unreachable:
				b.Errorf("%v %d", e.Type, e.Status)
				<-slots
			}
		}); err != nil {
			b.Fatal(err)
		}
	}
	for range cap(slots) {
		slots <- struct{}{}
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "conn/s")
	runtime.KeepAlive(server)
}
