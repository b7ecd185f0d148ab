package wireguard_test

import (
	"context"
	"log/slog"
	"net/netip"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/checksum"
	"github.com/softrnic/softrnic/link/wireguard"
	"github.com/softrnic/softrnic/stack/netstack"
)

func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// node is a host behind a link.
type node struct {
	*wireguard.Link
	host *netstack.Host
	key  wireguard.SecretKey
	at   *socket
}

func logger() *slog.Logger {
	if os.Getenv("DEBUG") == "" {
		return nil
	}
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// pair returns two nodes that are each other's only peer, at 192.0.2.1:1 and 192.0.2.2:2.
func pair(t testing.TB, n *network) (a, b *node) {
	t.Helper()
	a, b = &node{key: wireguard.NewPrivateKey(), at: n.at("192.0.2.1:1")}, &node{key: wireguard.NewPrivateKey(), at: n.at("192.0.2.2:2")}
	for _, e := range []struct {
		own, other     *node
		endpoint, addr string
	}{{a, b, "192.0.2.2:2", "10.0.0.1/24"}, {b, a, "", "10.0.0.2/24"}} {
		e.own.Link = open(t, &wireguard.Config{PrivateKey: e.own.key, Bind: e.own.at, Logger: logger(),
			Peers: []wireguard.PeerConfig{{PublicKey: e.other.key.Public(), Endpoint: e.endpoint}}})
		e.own.host = must(netstack.New(e.own.Link, &netstack.Config{Logger: logger(),
			Addrs: []string{e.addr, e.own.PublicKey().Addr().String() + "/48"}}))(t)
	}
	return a, b
}

func (n *node) close() { _ = n.host.Close() }

// TestLargeWrite: one call may write more than the queue holds, although nothing was sent before.
func TestLargeWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := pair(t, new(network))
		defer b.close()
		defer a.close()
		packet := make([]byte, link.EthernetHeaderLen+1400)
		ip := packet[link.EthernetHeaderLen:]
		copy(packet[12:], []byte{8, 0, 0x45, 0, 1400 >> 8, 1400 & 0xff, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2})
		checksum.PutIPv4(ip[:20])
		frames := make([]link.Frame, 3000) // 4 MB
		for i := range frames {
			frames[i].Data = packet
		}
		time.Sleep(time.Minute) // the tunnel waits for packets
		if _, err := a.Link.Write(frames); err != nil {
			t.Error(err)
		}
	})
}

// TestPing: each side reaches the other at each of its addresses.
func TestPing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := pair(t, new(network))
		defer a.close()
		defer b.close()
		for _, to := range []netip.Addr{netip.MustParseAddr("10.0.0.2"), b.PublicKey().Addr(), b.PublicKey().LinkLocal()} {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			if _, err := a.host.Ping(ctx, to); err != nil {
				t.Errorf("%v: %v", to, err)
			}
			cancel()
		}
	})
}

// TestPeer: the peer of an address is the one with its key, and its state is shown.
func TestPeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := pair(t, new(network))
		defer a.close()
		defer b.close()
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		if _, err := a.host.Ping(ctx, b.PublicKey().Addr()); err != nil {
			t.Fatal(err)
		}
		if p, ok := a.Peer(b.PublicKey().Addr()); !ok || p.PublicKey != b.PublicKey() {
			t.Errorf("the peer with b's address: %v, %t", p, ok)
		}
		s := a.Peers()
		if len(s) != 1 || s[0].PublicKey != b.PublicKey() || s[0].Endpoint != netip.MustParseAddrPort("192.0.2.2:2") ||
			!s[0].Handshake.Equal(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)) || s[0].Sent == 0 || s[0].Received == 0 {
			t.Errorf("%+v", s)
		}
		if s := b.Peers(); s[0].Endpoint != netip.MustParseAddrPort("192.0.2.1:1") {
			t.Errorf("%+v", s)
		}
	})
}

// TestRoaming: a node's address changes, and a later packet of it tells its peer.
func TestRoaming(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := pair(t, new(network))
		defer a.close()
		defer b.close()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		for _, addr := range []string{"192.0.2.1:1", "198.51.100.7:4000", "[2001:db8::7]:4000"} {
			a.at.move(addr)
			if _, err := a.host.Ping(ctx, b.PublicKey().Addr()); err != nil {
				t.Fatal(err)
			}
			if s := b.Peers(); s[0].Endpoint.String() != addr {
				t.Errorf("b sends to %v, want %v", s[0].Endpoint, addr)
			}
			if _, err := b.host.Ping(ctx, a.PublicKey().Addr()); err != nil {
				t.Error(err)
			}
		}
	})
}

// TestOneSize: the packets of a message, of which the first is longer, leave the tunnel's end with
// one size, and arrive as they were.
func TestOneSize(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n network
		a, b := ends(t, &n)
		defer a.Close()
		defer b.Close()
		a.send(0, 100) // the handshake
		time.Sleep(time.Second)
		var mu sync.Mutex
		sizes := map[int]int{}
		n.mu.Lock()
		n.seen = func(p []byte) {
			mu.Lock()
			defer mu.Unlock()
			sizes[len(p)]++
		}
		n.mu.Unlock()
		const packets = 40
		var frames []link.Frame
		for i := range uint32(packets) {
			size := 1024
			if i%20 == 0 {
				size = 1040
			}
			frames = append(frames, link.Frame{Data: a.packet(1+i, size)})
		}
		if _, err := a.Write(frames); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		if got := b.received(packets + 1); got != packets+1 {
			t.Errorf("%d of %d packets arrived", got, packets+1)
		}
		mu.Lock()
		defer mu.Unlock()
		if size := 32 + 1088; len(sizes) != 1 || sizes[size] != packets {
			t.Errorf("encrypted packets by size: %v, want %d of %d bytes", sizes, packets, size)
		}
	})
}
