package hub_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/softrnic/softrnic/stack"
	"github.com/softrnic/softrnic/stack/hub"
	"github.com/softrnic/softrnic/tests/stacktest"
)

// direct returns a path to a QP of another host.
func (e *end) direct(src, dst string, qpn uint64) stack.Path {
	e.t.Helper()
	p, err := e.nic.Datagrams().Path(stack.PathAttr{Src: netip.MustParseAddr(src), Dst: netip.MustParseAddr(dst), TrafficClass: 0x20,
		HopLimit: 9, QPN: uint32(qpn)})
	if err != nil {
		e.t.Fatal(err)
	}
	e.t.Cleanup(p.Close)
	return p
}

// isDirect reports whether a path uses rings.
func (e *end) isDirect(p stack.Path) bool {
	s := e.nic.Datagrams().Sender()
	defer s.Flush()
	header, payload := s.Datagram(p, 100)
	s.Drop()
	return header == nil && payload != nil
}

// on sends datagrams on a path.
func (e *end) on(p stack.Path, messages ...[]byte) {
	s := e.nic.Datagrams().Sender()
	defer s.Flush()
	for _, m := range messages {
		_, payload := s.Datagram(p, len(m))
		copy(payload, m)
	}
}

// TestRings checks that datagrams between QPs of two clients bypass the hub, as whole superframes,
// and continue without the hub and with its successor.
func TestRings(t *testing.T) {
	for _, addrs := range [][2]string{{"127.31.0.10", "127.31.0.10"}, {"127.31.0.10", "127.31.0.11"}, {"::1", "::1"}} {
		t.Run(addrs[0]+" to "+addrs[1], func(t *testing.T) {
			if addrs[0] == "::1" {
				stacktest.IPv6Loopback(t)
			}
			dir, s := directory(t), &starter{t: t}
			a, b := join(t, dir, addrs[0], s.start), join(t, dir, addrs[1], s.start)
			onA, onB := a.direct(addrs[0], addrs[1], b.qpn()), b.direct(addrs[1], addrs[0], a.qpn())
			await(t, "the clients have rings", func() bool { return a.isDirect(onA) && b.isDirect(onB) })
			exchange := func(when string) {
				t.Helper()
				// Small ones are copied, large ones are read in place.
				for _, n := range []int{20, 1000, 4000} {
					var all [][]byte
					for i := range 12 {
						all = append(all, message(hub.TargetQPN, b.qpn(), n, byte(i)))
					}
					a.on(onA, all...)
					frames := 0
					for i := range all {
						g := b.next()
						if !bytes.Equal(g.payload, all[i]) || g.Src.String() != addrs[0] || g.Dst.String() != addrs[1] ||
							g.SrcQPNs != a.port.Numbers().QPNs || g.TrafficClass != 0x20 || g.HopLimit != 9 || !g.NoICRC {
							t.Fatalf("%s: datagram %d: %+v %.20x", when, i, g.Datagram, g.payload)
						}
						if len(g.Payload) >= 4*n {
							frames++
						}
					}
					if frames < len(all)/2 {
						t.Errorf("%s: %d of %d datagrams of %d bytes arrived in superframes", when, frames, len(all), n)
					}
				}
				b.on(onB, message(hub.TargetQPN, a.qpn(), 50, 7))
				if g := a.next(); g.payload[20] != 7 || g.SrcQPNs != b.port.Numbers().QPNs {
					t.Errorf("%s: back: %+v %.20x", when, g.Datagram, g.payload)
				}
			}
			exchange("with a hub")
			stop(t, s.last.Process)
			exchange("while the hub does nothing")
			s.kill()
			exchange("without a hub")
			await(t, "the hub is up again", func() bool { return a.nic.State() == stack.LinkUp && b.nic.State() == stack.LinkUp })
			exchange("with the next hub")
			b.close()
			await(t, "the rings have ended", func() bool { return !a.isDirect(onA) })
		})
	}
}

// TestRingOfDepartedClient checks that data which a client has put into a ring before it leaves or
// is killed is received.
func TestRingOfDepartedClient(t *testing.T) {
	const addr = "127.31.0.12"
	dir, s := directory(t), &starter{t: t}
	b := join(t, dir, addr, s.start)
	stuck := make(chan bool)
	for i := range 5 {
		a := join(t, dir, addr, s.start)
		onA, onB := a.direct(addr, addr, b.qpn()), b.direct(addr, addr, a.qpn())
		await(t, "the clients have rings", func() bool { return a.isDirect(onA) && b.isDirect(onB) })
		b.hold(stuck)
		var all [][]byte
		for j := range 100 {
			all = append(all, message(hub.TargetQPN, b.qpn(), 4000, byte(j)))
		}
		a.on(onA, all...)
		a.close()
		close(stuck)
		stuck = make(chan bool)
		for j := range all {
			if g := b.next(); !bytes.Equal(g.payload, all[j]) {
				t.Fatalf("round %d: %.20x arrived as datagram %d", i, g.payload, j)
			}
		}
	}
}

// hold makes the receiver wait until stuck is closed.
func (e *end) hold(stuck chan bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.stuck = stuck
}

// TestNoRings checks that a client without a path to another client's QP refuses rings, even if
// they are requested often. It may be a program that must see complete packets.
func TestNoRings(t *testing.T) {
	const addr = "127.31.0.13"
	t.Cleanup(hub.SetWaits(time.Millisecond, time.Millisecond))
	dir, s := directory(t), &starter{t: t}
	refused := make(logForwarder, 1)
	a, b := join(t, dir, addr, s.start), joinLogged(t, dir, addr, s.start, slog.New(refused))
	onA := a.direct(addr, addr, b.qpn())
	for i := range 5 {
		select {
		case m := <-refused:
			if !strings.Contains(m, "no route") {
				t.Fatal(m)
			}
		case <-time.After(20 * time.Second):
			t.Fatal("rings were not refused")
		}
		a.on(onA, message(hub.TargetQPN, b.qpn(), 100, byte(i)))
		if g := b.next(); g.NoICRC || g.payload[20] != byte(i) || g.SrcQPNs != a.port.Numbers().QPNs {
			t.Fatalf("%+v %.20x", g.Datagram, g.payload)
		}
		if a.isDirect(onA) {
			t.Error("the clients have rings")
		}
	}
}

// TestRingsWhenBothHavePaths checks that two clients that create paths to each other shortly after
// one another get rings at once, without a second request.
func TestRingsWhenBothHavePaths(t *testing.T) {
	const addr = "127.31.0.15"
	t.Cleanup(hub.SetWaits(time.Hour, time.Minute))
	dir, s := directory(t), &starter{t: t}
	for i := range 60 {
		a, b := join(t, dir, addr, s.start), join(t, dir, addr, s.start)
		onA := a.direct(addr, addr, b.qpn())
		// At any moment between the offer and its end.
		time.Sleep(time.Duration(i%30) * 50 * time.Microsecond)
		onB := b.direct(addr, addr, a.qpn())
		await(t, "the clients have rings", func() bool { return a.isDirect(onA) && b.isDirect(onB) })
		onA.Close()
		onB.Close()
		a.close()
		b.close()
	}
}

// TestManyRings checks that each of many clients has rings with each other one.
func TestManyRings(t *testing.T) {
	const addr = "127.31.0.14"
	dir, s := directory(t), &starter{t: t}
	var all []*end
	for range 12 {
		all = append(all, join(t, dir, addr, s.start))
	}
	for i, a := range all {
		for j, b := range all {
			if i == j {
				continue
			}
			p := a.direct(addr, addr, b.qpn())
			b.direct(addr, addr, a.qpn())
			await(t, fmt.Sprintf("there are rings from %d to %d", i, j), func() bool { return a.isDirect(p) })
			a.on(p, message(hub.TargetQPN, b.qpn(), 100, byte(i)))
			if g := b.next(); g.payload[20] != byte(i) || g.SrcQPNs != a.port.Numbers().QPNs {
				t.Errorf("%+v %.20x", g.Datagram, g.payload)
			}
		}
	}
}
