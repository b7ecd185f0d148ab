package hub_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softrnic/softrnic/stack"
	"github.com/softrnic/softrnic/stack/hub"
	"github.com/softrnic/softrnic/stack/kernel"
)

// byBTH classifies by the destination QPN of a BTH, as the kernel steers. A datagram for QP 1
// contains the ID of a service.
type byBTH struct{ numbered }

func (byBTH) Classify(b []byte, _ *stack.Datagram) hub.Target {
	switch qpn := qpnOf(b); {
	case qpn == 1 && len(b) >= 20:
		return hub.Target{Kind: hub.TargetService, Service: binary.BigEndian.Uint64(b[12:])}
	case qpn > 1:
		return hub.Target{Kind: hub.TargetQPN, Number: qpn}
	}
	return hub.Target{}
}

func qpnOf(b []byte) uint32 {
	if len(b) < 12 {
		return 0
	}
	return binary.BigEndian.Uint32(b[4:]) & (1<<24 - 1)
}

// packet returns a datagram of n bytes for a QPN.
func packet(qpn uint64, n int, fill byte) []byte {
	b := bytes.Repeat([]byte{fill}, n)
	b[0] = 0x0a
	binary.BigEndian.PutUint32(b[4:], uint32(qpn))
	return b
}

// hubInside is a hub in this process.
type hubInside struct {
	*hub.Counters
	end    func()
	probes byte // datagrams of reach
}

func serveInside(t *testing.T, dir string, relay bool) *hubInside {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	h := &hubInside{Counters: new(hub.Counters)}
	ended := make(chan error, 1)
	go func() {
		ended <- hub.Serve(ctx, hub.Config{Directory: dir, Classifier: byBTH{}, Counters: h.Counters, Relay: relay,
			Quarantine: time.Nanosecond})
	}()
	var once sync.Once
	h.end = func() {
		once.Do(func() {
			cancel()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		})
	}
	t.Cleanup(h.end)
	await(t, "the hub is up", func() bool { return hub.Running(dir) })
	return h
}

// outside returns a host with an address of its own.
func outside(t *testing.T, addr string) *end {
	t.Helper()
	h, err := kernel.New(&kernel.Config{Addrs: []string{addr}})
	if err != nil {
		t.Fatal(err)
	}
	e := &end{t: t, host: h, nic: h.NICs()[0]}
	t.Cleanup(e.close)
	return e
}

// reach reports whether a datagram of a peer reaches a client, and whether the hub passed it on.
func (h *hubInside) reach(e, peer *end, far, addr string) (arrives, relayed bool) {
	e.t.Helper()
	before := h.Received.Load()
	h.probes++
	peer.send(far, addr, packet(e.qpn(), 64, h.probes))
	for late := time.After(200 * time.Millisecond); ; {
		select {
		case g := <-e.got:
			if g.payload[len(g.payload)-1] == h.probes { // no late one
				return true, h.Received.Load() > before
			}
		case <-late:
			return false, false
		}
	}
}

// awaitSteered waits until the kernel steers datagrams to clients.
func (h *hubInside) awaitSteered(peer *end, far, addr string, clients ...*end) {
	peer.t.Helper()
	for _, e := range clients {
		await(e.t, "datagrams reach a client without the hub", func() bool {
			arrives, relayed := h.reach(e, peer, far, addr)
			return arrives && !relayed
		})
	}
}

// awaitRelayed waits until the hub passes on datagrams to a client.
func (h *hubInside) awaitRelayed(peer *end, far, addr string, e *end) {
	peer.t.Helper()
	await(e.t, "datagrams reach a client through the hub", func() bool {
		_, relayed := h.reach(e, peer, far, addr)
		return relayed
	})
}

// own checks that a client has received datagrams with these last bytes, in order and nothing else.
func (e *end) own(fills ...byte) {
	e.t.Helper()
	for _, fill := range fills {
		g := e.next()
		if qpnOf(g.payload) != uint32(e.qpn()) || g.payload[len(g.payload)-1] != fill {
			e.t.Fatalf("%.16x arrived, of QPN %#x, want %d for QPN %#x", g.payload, qpnOf(g.payload), fill, e.qpn())
		}
		if g.SrcQPNs != (stack.Range{}) {
			e.t.Errorf("a datagram of another machine is from QPNs %v", g.SrcQPNs)
		}
	}
}

// TestSteering checks that datagrams of another machine reach the right one of several clients
// without the hub, and that the hub passes on the others. Where the hub relays all, the clients
// receive the same.
func TestSteering(t *testing.T) {
	const addr, far = "127.31.2.1", "127.31.2.2"
	for name, relay := range map[string]bool{"steered": false, "relayed": true} {
		t.Run(name, func(t *testing.T) {
			dir := directory(t)
			h := serveInside(t, dir, relay)
			a, b := join(t, dir, addr, nil), join(t, dir, addr, nil)
			peer := outside(t, far)
			if relay {
				h.awaitRelayed(peer, far, addr, a)
			} else {
				h.awaitSteered(peer, far, addr, a, b)
			}
			before := h.Received.Load()
			for round := range byte(100) {
				for _, e := range []*end{a, b} {
					peer.send(far, addr, packet(e.qpn(), 1000, round), packet(e.qpn(), 1000, round+1), packet(e.qpn(), 500, round+2))
				}
				a.own(round, round+1, round+2)
				b.own(round, round+1, round+2)
			}
			if n := h.Received.Load() - before; (n > 0) != relay {
				t.Errorf("the hub has received %d datagrams", n)
			}

			service := stack.Service{ID: 77, Mask: ^uint64(0)}
			if err := b.port.Serve(service); err != nil {
				t.Fatal(err)
			}
			mad := packet(1, 64, 5)
			binary.BigEndian.PutUint64(mad[12:], service.ID)
			before, dropped := h.Received.Load(), h.Dropped.Load()
			peer.send(far, addr, mad)
			if g := b.next(); !bytes.Equal(g.payload, mad) || h.Received.Load() == before {
				t.Errorf("%x arrived, want a datagram for QP 1 from the hub", g.payload)
			}
			nobody := uint64(1 << 16)
			for nobody>>16 == a.qpn()>>16 || nobody>>16 == b.qpn()>>16 {
				nobody += 1 << 16
			}
			peer.send(far, addr, packet(nobody, 64, 1))
			await(t, "the hub drops a datagram for nobody", func() bool { return h.Dropped.Load() > dropped })
			// The hub must see who sends from its own addresses.
			a.send(addr, addr, packet(b.qpn(), 64, 9))
			if g := b.next(); g.SrcQPNs != a.port.Numbers().QPNs {
				t.Errorf("a datagram of another client is from QPNs %v", g.SrcQPNs)
			}
			a.nothing(peer, far, addr, packet(a.qpn(), 64, 99))
			b.nothing(peer, far, addr, packet(b.qpn(), 64, 99))
		})
	}
}

// TestMixedSuperframe checks that no datagram of a superframe for several clients reaches the wrong
// one. Of the first such superframe, the others' datagrams are lost; then the hub passes the flow
// on, and nothing is lost.
func TestMixedSuperframe(t *testing.T) {
	const addr, far = "127.31.2.3", "127.31.2.4"
	dir := directory(t)
	h := serveInside(t, dir, false)
	a, b := join(t, dir, addr, nil), join(t, dir, addr, nil)
	peer := outside(t, far)
	h.awaitSteered(peer, far, addr, a, b)
	mixed := func() {
		t.Helper()
		peer.send(far, addr, packet(a.qpn(), 100, 0), packet(a.qpn(), 100, 1), packet(b.qpn(), 100, 2), packet(b.qpn(), 100, 3),
			packet(a.qpn(), 100, 4), packet(b.qpn(), 100, 5), packet(a.qpn(), 50, 6))
	}
	mixed()
	a.own(0, 1, 4, 6)
	b.nothing(peer, far, addr, packet(b.qpn(), 64, 99))
	h.awaitRelayed(peer, far, addr, b)
	for range 20 {
		mixed()
		a.own(0, 1, 4, 6)
		b.own(2, 3, 5)
	}
	a.nothing(peer, far, addr, packet(a.qpn(), 64, 99))
	b.nothing(peer, far, addr, packet(b.qpn(), 64, 99))
}

// TestClientsComeAndGo checks that clients that come and go leave the others' sockets in order.
func TestClientsComeAndGo(t *testing.T) {
	const addr, far = "127.31.2.5", "127.31.2.6"
	dir := directory(t)
	h := serveInside(t, dir, false)
	peer := outside(t, far)
	var all []*end
	for i := range rounds(20, 40, 1000) {
		e := join(t, dir, addr, nil)
		h.awaitSteered(peer, far, addr, e)
		all = append(all, e)
		if len(all) > 4 {
			gone := (i * 7) % 4
			all[gone].close()
			all = append(all[:gone], all[gone+1:]...)
		}
		for fill, e := range all {
			peer.send(far, addr, packet(e.qpn(), 100, byte(fill)), packet(e.qpn(), 100, byte(i)))
			e.own(byte(fill), byte(i))
		}
	}
	for _, e := range all {
		e.nothing(peer, far, addr, packet(e.qpn(), 64, 99))
	}
}

// TestStoppedClientOfEarlierHub checks that a client that is stopped when its hub ends, and so
// keeps its socket, takes no datagrams from the next hub. The next hub steers once the client has
// gone on.
func TestStoppedClientOfEarlierHub(t *testing.T) {
	const addr, far = "127.31.2.7", "127.31.2.8"
	dir := directory(t)
	h := serveInside(t, dir, false)
	stopped, killed := spawn(t, dir, addr), spawn(t, dir, addr)
	e := join(t, dir, addr, func(string) error { return nil }) // it waits for the next hub
	peer := outside(t, far)
	h.awaitSteered(peer, far, addr, e)
	for _, p := range []*process{stopped, killed} {
		stop(t, p.Process)
	}
	h.end()
	await(t, "the link is down", func() bool { return e.nic.State() != stack.LinkUp })
	h = serveInside(t, dir, false)
	await(t, "the link is up again", func() bool { return e.nic.State() == stack.LinkUp })
	await(t, "the sockets of the clients that are not stopped are closed", func() bool {
		in := 0
		for range 20 {
			if arrives, _ := h.reach(e, peer, far, addr); arrives {
				in++
			}
		}
		return in == 20
	})
	before := h.Received.Load()
	for fill := range byte(100) {
		peer.send(far, addr, packet(e.qpn(), 100, fill))
		e.own(fill)
	}
	if n := h.Received.Load() - before; n != 100 {
		t.Errorf("the hub has received %d of 100 datagrams, although others have sockets", n)
	}
	if err := killed.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = killed.Wait()
	if err := stopped.Process.Signal(unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	h.awaitSteered(peer, far, addr, e)
	for fill := range byte(100) {
		peer.send(far, addr, packet(e.qpn(), 100, fill))
		e.own(fill)
	}
}

// TestDatagramBeforeMAD checks that a MAD, which comes through the hub, does not overtake an
// earlier datagram of the same peer. Otherwise a disconnect would overtake the last
// acknowledgement.
func TestDatagramBeforeMAD(t *testing.T) {
	const addr, far = "127.31.2.9", "127.31.2.10"
	dir := directory(t)
	h := serveInside(t, dir, false)
	e, peer := join(t, dir, addr, nil), outside(t, far)
	h.awaitSteered(peer, far, addr, e)
	service := stack.Service{ID: 78, Mask: ^uint64(0)}
	if err := e.port.Serve(service); err != nil {
		t.Fatal(err)
	}
	mad := packet(1, 64, 5)
	binary.BigEndian.PutUint64(mad[12:], service.ID)
	polled := func() got {
		for deadline := time.Now().Add(10 * time.Second); len(e.got) == 0 && time.Now().Before(deadline); {
			e.nic.Poll()
		}
		return e.next()
	}
	peer.send(far, addr, mad) // the client then polls its rings more often than its sockets
	polled()
	for round := range 200 {
		peer.send(far, addr, packet(e.qpn(), 64, 1))
		peer.send(far, addr, mad)
		if first, second := qpnOf(polled().payload), qpnOf(polled().payload); uint64(first) != e.qpn() || second != 1 {
			t.Fatalf("round %d: datagrams for QPN %d and %d", round, first, second)
		}
	}
}
