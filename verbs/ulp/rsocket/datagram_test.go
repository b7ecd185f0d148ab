package rsocket_test

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/rdmatransport"
	"github.com/softrnic/softrnic/stack/netstack"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/ulp/rsocket"
)

// node is a host with a device.
type node struct {
	host *netstack.Host
	dev  *verbs.Device
}

func newNode(t testing.TB, port link.Link, addrs ...string) *node {
	t.Helper()
	return newNodeWith(t, port, nil, addrs...)
}

func newNodeWith(t testing.TB, port link.Link, cfg *rdmatransport.Config, addrs ...string) *node {
	t.Helper()
	host, err := netstack.New(port, &netstack.Config{Addrs: addrs})
	ok(t, err)
	dev, err := rdmatransport.Open(host, cfg)
	ok(t, err)
	t.Cleanup(func() {
		if r := dev.Resources(); r.QP != 0 || r.CQ != 0 || r.MR != 0 || r.PD > 1 || r.AH != 0 {
			t.Errorf("leaked: %+v", r)
		}
		dev.Close()
		host.Close()
	})
	return &node{host, dev}
}

// socket creates a datagram socket that is closed at the end of the test.
func (n *node) socket(t testing.TB, addr string, cfg *rsocket.Config) *rsocket.PacketConn {
	t.Helper()
	udp, err := n.host.ListenPacket(netip.MustParseAddrPort(addr))
	ok(t, err)
	c, err := rsocket.NewPacketConn(n.dev, udp, cfg)
	ok(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

func nodes(t testing.TB) (a, b *node) {
	lan := new(pipe.Switch)
	return newNode(t, lan.Port(), "10.0.0.1/24", "fd00::1/64"),
		newNode(t, lan.Port(), "10.0.0.2/24", "fd00::2/64")
}

// sent returns the number of packets that a device has sent by QPs.
func (n *node) sent(t testing.TB) uint64 {
	t.Helper()
	counters, err := n.dev.PortCounters(1)
	ok(t, err)
	return counters["port_xmit_packets"]
}

// TestDatagramAccess: the datagrams of a host that the device's access control does not allow are
// dropped, also those over UDP.
func TestDatagramAccess(t *testing.T) {
	lan, allowed := new(pipe.Switch), netip.MustParseAddr("10.0.0.2")
	a := newNodeWith(t, lan.Port(), &rdmatransport.Config{Allow: func(h netip.Addr) bool { return h == allowed }}, "10.0.0.1/24")
	server := a.socket(t, "10.0.0.1:7", nil)
	denied := func() uint64 {
		counters, err := a.dev.HWCounters()
		ok(t, err)
		return counters["access_denied"]
	}
	for i, addr := range []string{"10.0.0.3", "10.0.0.2"} {
		client := newNode(t, lan.Port(), addr+"/24").socket(t, addr+":8", nil)
		_, err := client.WriteTo([]byte(addr), net.UDPAddrFromAddrPort(netip.MustParseAddrPort("10.0.0.1:7")))
		ok(t, err)
		if i == 0 {
			for end := time.Now().Add(20 * time.Second); denied() == 0; time.Sleep(time.Millisecond) {
				if time.Now().After(end) {
					t.Fatal("the datagram is not counted")
				}
			}
		}
	}
	_, err := server.WriteTo([]byte("x"), net.UDPAddrFromAddrPort(netip.MustParseAddrPort("10.0.0.3:8")))
	if !errors.Is(err, syscall.EACCES) {
		t.Errorf("a datagram to a host that is not allowed: %v", err)
	}
	b := make([]byte, 100)
	n, from, err := server.ReadFrom(b)
	if ok(t, err); string(b[:n]) != "10.0.0.2" {
		t.Errorf("%q of %v is received", b[:n], from)
	}
}

// TestDatagrams: the first datagrams use UDP and later ones go from QP to QP, in both directions.
// Each arrives with its sender's address.
func TestDatagrams(t *testing.T) {
	for _, addr := range []struct{ listen, server, client string }{
		{"10.0.0.1:7", "10.0.0.1:7", "10.0.0.2:8"}, {"[fd00::1]:7", "[fd00::1]:7", "[fd00::2]:8"},
		{"0.0.0.0:7", "10.0.0.1:7", "10.0.0.2:8"}, {"[::]:7", "10.0.0.1:7", "10.0.0.2:8"}, {"[::]:7", "[fd00::1]:7", "[fd00::2]:8"},
	} {
		t.Run(addr.listen, func(t *testing.T) {
			a, b := nodes(t)
			server, client := a.socket(t, addr.listen, nil), b.socket(t, addr.client, nil)
			to := netip.MustParseAddrPort(addr.server)
			exchange := func(i int) {
				t.Helper()
				m := fmt.Appendf(nil, "datagram %d", i)
				if n, err := client.WriteToAddrPort(m, to); n != len(m) || err != nil {
					t.Fatal(n, err)
				}
				buf := make([]byte, 100)
				n, from, err := server.ReadFrom(buf)
				if err != nil || !bytes.Equal(buf[:n], m) || from.String() != addr.client {
					t.Fatalf("%q from %v, %v", buf[:n], from, err)
				}
				if _, err := server.WriteTo(buf[:n], from); err != nil {
					t.Fatal(err)
				}
				n, back, err := client.ReadFromAddrPort(buf)
				if err != nil || !bytes.Equal(buf[:n], m) || back != to {
					t.Fatalf("%q from %v, %v", buf[:n], back, err)
				}
			}
			deadline := time.Now().Add(20 * time.Second)
			for i := 0; a.sent(t) < 100 || b.sent(t) < 100; i++ {
				if exchange(i); time.Now().After(deadline) {
					t.Fatalf("%d and %d datagrams were sent by QPs", a.sent(t), b.sent(t))
				}
			}
		})
	}
}

// TestDatagramLimits: invalid datagrams are rejected, deadlines and Close end waiting calls, and a
// datagram is truncated to the buffer.
func TestDatagramLimits(t *testing.T) {
	a, b := nodes(t)
	server, client := a.socket(t, "10.0.0.1:7", nil), b.socket(t, "10.0.0.2:8", nil)
	port, err := a.dev.QueryPort(1)
	ok(t, err)
	most := min(rsocket.MaxDatagram, port.ActiveMTU.Bytes()) - 8
	for _, c := range []struct {
		to   string
		n    int
		want error
	}{
		{"10.0.0.1:7", most + 1, syscall.EMSGSIZE}, {"10.0.0.1:0", 1, syscall.EINVAL}, {"0.0.0.0:7", 1, syscall.EINVAL},
		{"224.0.0.1:7", 1, syscall.EOPNOTSUPP}, {"[fd00::1]:7", 1, syscall.EAFNOSUPPORT},
	} {
		if n, err := client.WriteToAddrPort(make([]byte, c.n), netip.MustParseAddrPort(c.to)); n != 0 || !errors.Is(err, c.want) {
			t.Errorf("%d bytes to %s: %d, %v", c.n, c.to, n, err)
		}
	}
	for _, n := range []int{0, most} {
		if _, err := client.WriteTo(make([]byte, n), server.LocalAddr()); err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, 100)
		if got, _, err := server.ReadFrom(buf); got != min(n, len(buf)) || err != nil {
			t.Errorf("of %d bytes %d were read, %v", n, got, err)
		}
	}
	ok(t, server.SetReadDeadline(time.Now().Add(time.Millisecond)))
	if _, _, err := server.ReadFrom(nil); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("after the deadline: %v", err)
	}
	ok(t, server.SetDeadline(time.Time{}))
	read := make(chan error)
	go func() {
		_, _, err := server.ReadFrom(nil)
		read <- err
	}()
	ok(t, server.Close())
	if err := <-read; !errors.Is(err, net.ErrClosed) {
		t.Errorf("Read at Close: %v", err)
	}
	if _, err := server.WriteTo(nil, client.LocalAddr()); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Write after Close: %v", err)
	}
	if err := server.Close(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Close again: %v", err)
	}
	udp, err := b.host.ListenPacket(netip.MustParseAddrPort("10.0.0.2:9"))
	ok(t, err)
	if _, err := rsocket.NewPacketConn(b.dev, udp, &rsocket.Config{Transport: verbs.IWARP}); !errors.Is(err, syscall.EOPNOTSUPP) {
		t.Errorf("over iWARP: %v", err)
	}
	again, err := b.host.ListenPacket(netip.MustParseAddrPort("10.0.0.2:9"))
	ok(t, err) // NewPacketConn has closed the other one
	ok(t, again.Close())
}

// Close runs concurrently with WriteTo to many different peers. The race detector finds accesses to
// the peers without the lock.
func TestDatagramsWhileClosing(t *testing.T) {
	a, _ := nodes(t)
	at := netip.MustParseAddr("10.0.0.2")
	for range 20 {
		c := a.socket(t, "10.0.0.1:7", nil)
		_, err := c.WriteToAddrPort([]byte{1}, netip.AddrPortFrom(at, 1))
		ok(t, err)
		write := func(try bool) {
			var err error
			for port := uint16(2); !errors.Is(err, net.ErrClosed); port = port%999 + 2 {
				if to := netip.AddrPortFrom(at, port); try {
					_, err = c.TryWriteTo(nil, to)
				} else {
					_, err = c.WriteToAddrPort(nil, to)
				}
			}
		}
		var writing sync.WaitGroup
		writing.Go(func() { write(false) })
		writing.Go(func() { write(true) })
		ok(t, c.Close())
		writing.Wait()
	}
}

// TestHostileDatagrams: forged UDP headers and more datagrams than there are slots use a bounded
// amount of memory, and valid datagrams still arrive.
func TestHostileDatagrams(t *testing.T) {
	a, b := nodes(t)
	server := a.socket(t, "10.0.0.1:7", &rsocket.Config{RecvBuffer: 8 << 10})
	tag := []byte{0x55, 0x55, 0x55, 0x55}
	good := append(tag, 4, 0, 16, 0, 0, 0, 1, 0, 10, 0, 0, 2)
	var last net.PacketConn
	for port := range uint16(1200) {
		rogue, err := b.host.ListenPacket(netip.AddrPortFrom(netip.MustParseAddr("10.0.0.2"), 20000+port))
		ok(t, err)
		for _, m := range [][]byte{nil, tag, good[:15], append(tag, 6, 0, 28, 0, 0, 0, 1, 0),
			append(tag, 4, 0, 200, 0, 0, 0, 1, 0, 10, 0, 0, 2), append(tag, 4, 1, 16, 0, 0, 0, 1, 0, 10, 0, 0, 2), good} {
			if port > 10 {
				m = good
			}
			_, err := rogue.WriteTo(m, server.LocalAddr())
			ok(t, err)
		}
		if last != nil {
			last.Close()
		}
		last = rogue
	}
	last.Close()
	if r := a.dev.Resources(); r.AH > 1024 {
		t.Errorf("%d address handles", r.AH)
	}
	ok(t, server.SetReadDeadline(time.Now().Add(20*time.Second)))
	client := b.socket(t, "10.0.0.2:8", nil)
	arrived := make(chan bool)
	go func() {
		buf := make([]byte, 100)
		for {
			n, from, err := server.ReadFrom(buf)
			if err != nil || from.String() == "10.0.0.2:8" && string(buf[:n]) == "valid" {
				arrived <- err == nil
				return
			}
		}
	}()
	for {
		_, err := client.WriteTo([]byte("valid"), server.LocalAddr())
		ok(t, err)
		select {
		case fine := <-arrived:
			if !fine {
				t.Error("no valid datagram arrives")
			}
			return
		case <-time.After(time.Millisecond):
		}
	}
}

func BenchmarkDatagrams(b *testing.B) {
	x, y := nodes(b)
	server, client := x.socket(b, "10.0.0.1:7", nil), y.socket(b, "10.0.0.2:8", nil)
	to, buf := netip.MustParseAddrPort("10.0.0.1:7"), make([]byte, 1000)
	exchange := func() {
		if _, err := client.WriteToAddrPort(buf, to); err != nil {
			b.Fatal(err)
		}
		_, from, err := server.ReadFromAddrPort(buf)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := server.WriteToAddrPort(buf, from); err != nil {
			b.Fatal(err)
		}
		if _, _, err := client.ReadFromAddrPort(buf); err != nil {
			b.Fatal(err)
		}
	}
	for x.sent(b) < 10 || y.sent(b) < 10 {
		exchange()
	}
	b.ReportAllocs()
	for b.Loop() {
		exchange()
	}
}

// failing is a UDP socket whose sends fail.
type failing struct{ net.PacketConn }

func (failing) WriteTo([]byte, net.Addr) (int, error) { return 0, syscall.ENETUNREACH }

// The first datagram, which uses UDP, fails after the deadline or if the UDP socket fails, like
// later ones.
func TestFirstDatagramFails(t *testing.T) {
	a, _ := nodes(t)
	udp, err := a.host.ListenPacket(netip.MustParseAddrPort("10.0.0.1:7"))
	ok(t, err)
	c, err := rsocket.NewPacketConn(a.dev, failing{udp}, nil)
	ok(t, err)
	t.Cleanup(func() { c.Close() })
	to := netip.MustParseAddrPort("10.0.0.2:8")
	for name, write := range map[string]func([]byte, netip.AddrPort) (int, error){"wait": c.WriteToAddrPort, "try": c.TryWriteTo} {
		var op *net.OpError
		if n, err := write([]byte("x"), to); n != 0 || !errors.Is(err, syscall.ENETUNREACH) || !errors.As(err, &op) || op.Net != "rsocket" {
			t.Errorf("%s: %d bytes, %v", name, n, err)
		}
	}
	ok(t, c.SetWriteDeadline(time.Now().Add(-time.Second)))
	if n, err := c.WriteToAddrPort([]byte("x"), to); n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("after the deadline: %d bytes, %v", n, err)
	}
}
