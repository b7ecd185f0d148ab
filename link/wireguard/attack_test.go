package wireguard_test

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.zx2c4.com/wireguard/device"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/wireguard"
	"github.com/softrnic/softrnic/tests/stacktest"
)

// end is a link without a host. It receives numbered packets.
type end struct {
	*wireguard.Link
	t  testing.TB
	to wireguard.PublicKey

	busy   atomic.Pointer[chan struct{}] // receive waits until it is closed; nil: it does not wait
	mu     sync.Mutex
	got    map[uint32]int // how often each packet arrived
	damage []string
}

// ends returns two links that are each other's only peers. The first contacts the second.
func ends(t testing.TB, n *network, keys ...wireguard.SecretKey) (a, b *end) {
	t.Helper()
	for len(keys) < 2 {
		keys = append(keys, wireguard.NewPrivateKey())
	}
	openEnd := func(own, other wireguard.SecretKey, at, endpoint string) *end {
		e := &end{t: t, to: other.Public(), got: map[uint32]int{}}
		e.Link = open(t, &wireguard.Config{PrivateKey: own, Bind: n.at(at), Logger: logger(),
			Peers: []wireguard.PeerConfig{{PublicKey: other.Public(), Endpoint: endpoint}}})
		e.Attach(e.receive)
		return e
	}
	return openEnd(keys[0], keys[1], "192.0.2.1:1", "192.0.2.2:2"), openEnd(keys[1], keys[0], "192.0.2.2:2", "")
}

const packetHeaders = link.EthernetHeaderLen + 40 + 8

// packet returns packet number i with n bytes of data, which depend on the number.
func (e *end) packet(i uint32, n int) []byte {
	b := make([]byte, packetHeaders+n)
	copy(b, e.to.MAC())
	copy(b[6:], e.MAC())
	binary.BigEndian.PutUint16(b[12:], 0x86dd)
	ip := b[14:]
	ip[0], ip[6], ip[7] = 6<<4, 17, 64
	binary.BigEndian.PutUint16(ip[4:], uint16(8+n))
	copy(ip[8:], e.PublicKey().Addr().AsSlice())
	copy(ip[24:], e.to.Addr().AsSlice())
	binary.BigEndian.PutUint16(ip[44:], uint16(8+n))
	fill(b[packetHeaders:], i)
	return b
}

func fill(data []byte, i uint32) {
	binary.BigEndian.PutUint32(data, i)
	for k := 4; k < len(data); k++ {
		data[k] = byte(i) + byte(k)
	}
}

func (e *end) send(i uint32, n int) {
	e.t.Helper()
	if _, err := e.Write([]link.Frame{{Data: e.packet(i, n)}}); err != nil {
		e.t.Error(err)
	}
}

func (e *end) receive(frames []link.Frame) {
	if busy := e.busy.Load(); busy != nil {
		<-*busy
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, f := range frames {
		if len(f.Data) < packetHeaders+4 {
			e.damage = append(e.damage, fmt.Sprintf("%d bytes", len(f.Data)))
			continue
		}
		data := f.Data[packetHeaders:]
		i := binary.BigEndian.Uint32(data)
		want := make([]byte, len(data))
		fill(want, i)
		if !slices.Equal(data, want) {
			e.damage = append(e.damage, fmt.Sprintf("packet %d: %x", i, f.Data))
		}
		e.got[i]++
	}
}

// received returns the number of packets that have arrived, all of which must be packets of
// 0 to sent, undamaged, and none twice.
func (e *end) received(sent uint32) int {
	e.t.Helper()
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, d := range e.damage {
		e.t.Error(d)
	}
	for i, n := range e.got {
		if i >= sent || n != 1 {
			e.t.Errorf("packet %d of %d arrived %d times", i, sent, n)
		}
	}
	return len(e.got)
}

// TestAttackerOnPath: who can change, drop, delay, repeat and cut packets gets nothing received
// that was not sent, and nothing twice. Packets that arrive whole are received, whatever their
// order.
func TestAttackerOnPath(t *testing.T) {
	stacktest.Seeds(t, stacktest.Size(4, 40, 400), func(t *testing.T, seed uint64) {
		r := rand.New(rand.NewPCG(seed, 1))
		var n network
		var old [][]byte
		var mu sync.Mutex
		n.disturb = func(_, _ netip.AddrPort, p []byte) (out [][]byte) {
			mu.Lock()
			defer mu.Unlock()
			if len(old) < 500 {
				old = append(old, slices.Clone(p))
			} else {
				old[r.IntN(len(old))] = slices.Clone(p)
			}
			if r.IntN(3) > 0 {
				out = append(out, p)
			}
			for range r.IntN(4) {
				q := slices.Clone(old[r.IntN(len(old))]) // repeated
				switch r.IntN(5) {
				case 0:
					q[r.IntN(len(q))] ^= 1 << r.IntN(8)
				case 1:
					q = q[:r.IntN(len(q)+1)]
				case 2:
					q = append(q, make([]byte, 1+r.IntN(100))...)
				case 3: // parts of two packets
					other := old[r.IntN(len(old))]
					copy(q[r.IntN(len(q)):], other[r.IntN(len(other)):])
				}
				out = append(out, q)
			}
			r.Shuffle(len(out), func(i, k int) { out[i], out[k] = out[k], out[i] })
			return out
		}
		a, b := ends(t, &n)
		defer a.Close()
		defer b.Close()
		const packets = 2000
		sizes := rand.New(rand.NewPCG(seed, 2))
		for i := range uint32(packets) {
			a.send(i, 4+sizes.IntN(1300))
			b.send(i, 4+sizes.IntN(1300))
			if i%20 == 0 {
				time.Sleep(time.Duration(sizes.IntN(4000)) * time.Millisecond) // through several handshakes
			}
		}
		time.Sleep(time.Minute)
		for _, e := range []*end{a, b} {
			if got := e.received(packets); got < packets/4 {
				t.Errorf("only %d of %d packets arrived", got, packets)
			}
		}
	})
}

// TestRekey: keys expire and are replaced while packets flow, without the loss of one.
func TestRekey(t *testing.T) {
	rekeys := stacktest.Size(20, 200, 10000)
	synctest.Test(t, func(t *testing.T) {
		var n network
		handshakes := 0
		var mu sync.Mutex
		n.seen = func(p []byte) {
			mu.Lock()
			defer mu.Unlock()
			if p[0] == device.MessageResponseType {
				handshakes++
			}
		}
		count := func() int { mu.Lock(); defer mu.Unlock(); return handshakes }
		a, b := ends(t, &n)
		defer a.Close()
		defer b.Close()
		i := uint32(0)
		for ; count() < rekeys; i++ {
			a.send(i, 1000)
			b.send(i, 1000)
			time.Sleep(3 * time.Second)
			if i > uint32(rekeys)*100 {
				t.Fatalf("%d handshakes in %d s", count(), 3*i)
			}
		}
		time.Sleep(10 * time.Second)
		for _, e := range []*end{a, b} {
			if got := e.received(i); got != int(i) {
				t.Errorf("%d of %d packets arrived", got, i)
			}
		}
		t.Logf("result: %d rekeys, %d packets each way, none lost", count(), i)
	})
}

// TestStrangers: who does not have a peer's private key, and a peer without the pre-shared key, can
// neither send anything nor change where packets go.
func TestStrangers(t *testing.T) {
	for _, c := range []struct {
		name string
		set  func(*wireguard.PeerConfig)
	}{
		{"key", func(p *wireguard.PeerConfig) { p.PublicKey = wireguard.NewPrivateKey().Public() }},
		{"pre-shared key", func(p *wireguard.PeerConfig) { p.PresharedKey = wireguard.NewPrivateKey() }},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var n network
				own, stranger := wireguard.NewPrivateKey(), wireguard.NewPrivateKey()
				expected := wireguard.PeerConfig{PublicKey: stranger.Public()}
				c.set(&expected)
				a := &end{t: t, to: own.Public(), got: map[uint32]int{}}
				a.Link = open(t, &wireguard.Config{PrivateKey: stranger, Bind: n.at("192.0.2.1:1"),
					Peers: []wireguard.PeerConfig{{PublicKey: own.Public(), Endpoint: "192.0.2.2:2"}}})
				defer a.Close()
				b := &end{t: t, got: map[uint32]int{}}
				b.Link = open(t, &wireguard.Config{PrivateKey: own, Bind: n.at("192.0.2.2:2"),
					Peers: []wireguard.PeerConfig{expected}})
				defer b.Close()
				b.Attach(b.receive)
				for i := range uint32(100) {
					a.send(i, 100)
					time.Sleep(time.Second)
				}
				if got := b.received(100); got != 0 {
					t.Errorf("%d packets of a stranger arrived", got)
				}
				if s := b.Peers()[0]; c.name == "key" && (s.Endpoint.IsValid() || !s.Handshake.IsZero()) {
					t.Errorf("%+v", s)
				}
			})
		})
	}
}

// TestFailures: a link goes on receiving after many failures of its socket in a row, since any
// sender of datagrams may cause them.
func TestFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n network
		a, b := ends(t, &n)
		defer a.Close()
		defer b.Close()
		a.send(0, 100)
		time.Sleep(time.Second)
		for i := range uint32(4) {
			n.fail(netip.MustParseAddrPort("192.0.2.2:2"), 1000)
			a.send(1+i, 100)
			time.Sleep(time.Second)
		}
		if got := b.received(5); got != 5 {
			t.Errorf("%d of 5 packets arrived", got)
		}
	})
}

// TestForgedSource: a peer cannot send with the address of another one.
func TestForgedSource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n network
		keys := []wireguard.SecretKey{wireguard.NewPrivateKey(), wireguard.NewPrivateKey(), wireguard.NewPrivateKey()}
		server := &end{t: t, got: map[uint32]int{}}
		server.Link = open(t, &wireguard.Config{PrivateKey: keys[0], Bind: n.at("192.0.2.1:1"), Peers: []wireguard.PeerConfig{
			{Name: "one", PublicKey: keys[1].Public()}, {Name: "two", PublicKey: keys[2].Public()}}})
		defer server.Close()
		server.Attach(server.receive)
		one := &end{t: t, to: keys[0].Public()}
		one.Link = open(t, &wireguard.Config{PrivateKey: keys[1], Bind: n.at("192.0.2.2:2"), Peers: []wireguard.PeerConfig{
			{PublicKey: keys[0].Public(), Endpoint: "192.0.2.1:1"}}})
		defer one.Close()
		forged := one.packet(1, 100)
		copy(forged[14+8:], keys[2].Public().Addr().AsSlice())
		for _, p := range [][]byte{one.packet(0, 100), forged} {
			if _, err := one.Write([]link.Frame{{Data: p}}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
		}
		if got := server.received(1); got != 1 {
			t.Errorf("%d packets arrived", got)
		}
		for i, name := range []string{"one", "two"} {
			if p, ok := server.Peer(keys[1+i].Public().Addr()); !ok || p.Name != name || p.PublicKey != keys[1+i].Public() {
				t.Errorf("peer %s: %v, %t", name, p, ok)
			}
		}
		if p, ok := server.Peer(netip.MustParseAddr("10.0.0.1")); ok {
			t.Errorf("an address of nobody belongs to %v", p)
		}
	})
}

// TestBacklog: a peer sends more than the host handles. Few packets wait in the node, each of which
// takes 64 KiB, and the rest is lost. Then packets arrive again.
func TestBacklog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n network
		a, b := ends(t, &n)
		defer a.Close()
		defer b.Close()
		a.send(0, 100)
		time.Sleep(time.Second)
		busy := make(chan struct{})
		b.busy.Store(&busy)
		const packets = 50_000
		for i := range uint32(packets) {
			a.send(1+i, 100)
			if i%100 == 0 {
				time.Sleep(time.Millisecond)
			}
		}
		time.Sleep(time.Second)
		b.busy.Store(nil)
		close(busy)
		time.Sleep(time.Second)
		// 4096 may wait in the test's socket, and as many in the node.
		if got := b.received(packets + 1); got < 4096 || got > 2*4096+1000 {
			t.Errorf("%d of %d packets arrived", got, packets)
		}
		before := b.received(packets + 1)
		a.send(packets+1, 100)
		time.Sleep(time.Second)
		if got := b.received(packets + 2); got != before+1 {
			t.Errorf("after the flood, %d packets arrived, want 1", got-before)
		}
	})
}

// TestFlood: an attacker who knows the node's public key sends handshakes of unknown nodes, and
// packets with data, as fast as the node takes them. The node needs a bounded amount of memory, and
// a peer still connects.
func TestFlood(t *testing.T) {
	packets := stacktest.Size(20_000, 200_000, 2_000_000)
	synctest.Test(t, func(t *testing.T) {
		var n network
		keys := []wireguard.SecretKey{wireguard.NewPrivateKey(), wireguard.NewPrivateKey()}
		// A genuine message of a stranger, with the right MAC for the victim's key.
		initiation := make(chan []byte, 1)
		n.seen = func(p []byte) {
			select {
			case initiation <- slices.Clone(p):
			default:
			}
		}
		stranger := &end{t: t, to: keys[1].Public()}
		stranger.Link = open(t, &wireguard.Config{PrivateKey: wireguard.NewPrivateKey(), Bind: n.at("192.0.2.9:9"),
			Peers: []wireguard.PeerConfig{{PublicKey: keys[1].Public(), Endpoint: "192.0.2.2:2"}}})
		stranger.send(0, 100)
		message := <-initiation
		stranger.Close()
		if message[0] != device.MessageInitiationType {
			t.Fatalf("%x", message)
		}

		a, b := ends(t, &n, keys...)
		defer a.Close()
		defer b.Close()
		var before, during runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		r := rand.New(rand.NewPCG(1, 2))
		victim := netip.MustParseAddrPort("192.0.2.2:2")
		most := uint64(0)
		for i := range packets {
			from := netip.AddrPortFrom(netip.AddrFrom4([4]byte{198, 51, byte(r.Uint32()), byte(r.Uint32())}), uint16(1+r.IntN(65535)))
			p := message
			if i%4 == 3 {
				p = make([]byte, 1000)
				p[0] = device.MessageTransportType
			}
			n.inject(from, victim, p)
			if i%1000 == 0 {
				a.send(uint32(i/1000), 100)
				time.Sleep(100 * time.Millisecond)
				runtime.ReadMemStats(&during)
				most = max(most, during.HeapInuse)
			}
		}
		time.Sleep(2 * time.Minute)
		a.send(uint32(packets/1000), 100)
		time.Sleep(time.Minute)
		got := b.received(uint32(packets/1000 + 1))
		t.Logf("%d of %d packets arrived during %d packets of the attacker; heap %d MiB at most", got, packets/1000+1, packets, most>>20)
		if got == 0 {
			t.Error("a peer did not connect")
		}
		if grown := int64(most) - int64(before.HeapInuse); grown > 600<<20 {
			t.Errorf("the heap grew by %d MiB", grown>>20)
		}
	})
}
