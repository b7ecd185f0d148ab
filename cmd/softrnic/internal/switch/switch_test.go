package ethswitch

import (
	"bytes"
	"encoding/binary"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/linktest"
	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/link/stream"
)

var broadcast = net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

// host is a host on a cable to a switch.
type host struct {
	*stream.Link
	got <-chan link.Frame // of linktest's kinds
}

// newSwitch makes a switch with a host at each of n ports.
func newSwitch(t *testing.T, n int) (*Switch, []host) {
	t.Helper()
	dir, err := os.MkdirTemp("", "s")
	if err != nil {
		t.Fatal(err)
	}
	ln, err := stream.Listen(filepath.Join(dir, "lan"), &stream.Config{MTU: link.MaxSuperframe})
	if err != nil {
		t.Fatal(err)
	}
	b := New(slog.New(slog.DiscardHandler), nil)
	var hosts []host
	for range n {
		l, err := stream.Open(filepath.Join(dir, "lan"), &stream.Config{MTU: 4200})
		if err != nil {
			t.Fatal(err)
		}
		p, err := ln.Accept()
		if err != nil {
			t.Fatal(err)
		}
		if err := b.Add(p); err != nil {
			t.Fatal(err)
		}
		hosts = append(hosts, host{l, linktest.Receive(l)})
	}
	t.Cleanup(func() {
		for _, h := range hosts {
			_ = h.Close()
		}
		if err := b.Close(); err != nil {
			t.Error(err)
		}
		_ = ln.Close()
		_ = os.RemoveAll(dir)
	})
	return b, hosts
}

func (h host) send(t *testing.T, f link.Frame) {
	t.Helper()
	if n, err := h.Write([]link.Frame{f}); n != 1 || err != nil {
		t.Fatal(n, err)
	}
}

// expect waits until the host receives f next.
func (h host) expect(t *testing.T, f link.Frame) {
	t.Helper()
	select {
	case g := <-h.got:
		if !bytes.Equal(g.Data, f.Data) {
			t.Fatalf("received %q from %x, want %q", g.Data[14:], g.Data[6:12], f.Data[14:])
		}
	case <-time.After(20 * time.Second):
		t.Fatalf("did not receive %q", f.Data[14:])
	}
}

// TestLearns: frames for an address go to every port until it is known, and then only to its port.
// A host that moves is found again. No frame returns to its ingress port.
func TestLearns(t *testing.T) {
	_, hosts := newSwitch(t, 3)
	a, b, c := hosts[0], hosts[1], hosts[2]
	f := linktest.Plain(b.MAC(), a.MAC(), 50, "to b, which is unknown")
	a.send(t, f)
	b.expect(t, f)
	c.expect(t, f)
	f = linktest.Plain(a.MAC(), b.MAC(), 50, "to a, which is known")
	b.send(t, f)
	a.expect(t, f)
	f = linktest.Plain(b.MAC(), a.MAC(), 50, "to b, which is known")
	a.send(t, f)
	b.expect(t, f)
	all := linktest.Plain(broadcast, b.MAC(), 50, "to all")
	b.send(t, all)
	a.expect(t, all)
	c.expect(t, all) // not the two before

	moved := linktest.Plain(broadcast, b.MAC(), 50, "b is at c's port now")
	c.send(t, moved)
	a.expect(t, moved)
	b.expect(t, moved)
	a.send(t, f)
	c.expect(t, f)
	own := linktest.Plain(b.MAC(), c.MAC(), 50, "from c's port to c's port")
	c.send(t, own)
	pause := linktest.Plain(net.HardwareAddr{1, 0x80, 0xc2, 0, 0, 1}, c.MAC(), 50, "for the switch alone")
	c.send(t, pause)
	c.send(t, all)
	a.expect(t, all)
	b.expect(t, all)
	if len(a.got)+len(b.got)+len(c.got) > 0 {
		t.Error("a host received frames for others")
	}
}

// TestPortGoes: addresses behind a removed port are forgotten.
func TestPortGoes(t *testing.T) {
	b, hosts := newSwitch(t, 3)
	f := linktest.Plain(broadcast, hosts[1].MAC(), 50, "here I am")
	hosts[1].send(t, f)
	hosts[0].expect(t, f)
	hosts[2].expect(t, f)
	if err := hosts[1].Close(); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(20 * time.Second); len(b.snapshot()) > 2; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the port is still there")
		}
	}
	f = linktest.Plain(hosts[1].MAC(), hosts[0].MAC(), 50, "to an unknown address")
	hosts[0].send(t, f)
	hosts[2].expect(t, f)
}

// TestNoLoop: two ports on one segment do not forward a frame in a loop. The other port keeps
// working.
func TestNoLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lan, other := new(pipe.Switch), new(pipe.Switch)
		b := New(slog.New(slog.DiscardHandler), nil)
		for _, p := range []*pipe.Port{lan.Port(), lan.Port(), other.Port()} {
			if err := b.Add(p); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		var got [2]atomic.Int32
		hosts := []*pipe.Port{lan.Port(), other.Port()}
		for i, h := range hosts {
			h.Attach(func(frames []link.Frame) {
				for _, f := range frames {
					if binary.BigEndian.Uint16(f.Data[12:]) != probeType {
						got[i].Add(1)
					}
				}
			})
		}
		const frames = 60 // one per second, so that the port is probed repeatedly
		for range frames {
			if _, err := hosts[0].Write([]link.Frame{linktest.Plain(broadcast, hosts[0].MAC(), 50, "x")}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
		}
		if back, through := got[0].Load(), got[1].Load(); back != 0 || through != frames {
			t.Errorf("of %d frames, %d were returned and %d forwarded", frames, back, through)
		}
		for _, h := range hosts {
			if err := h.Close(); err != nil {
				t.Error(err)
			}
		}
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
}

// TestForgedProbe: a host that sends a switch's probes can only block its own port.
func TestForgedProbe(t *testing.T) {
	b, hosts := newSwitch(t, 3)
	for number := range uint32(5) {
		forged := b.probe.frame(int(number))
		hosts[1].send(t, link.Frame{Data: forged})
	}
	for deadline := time.Now().Add(20 * time.Second); !b.snapshot()[1].isBlocked(time.Now()); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the port is not blocked")
		}
	}
	f := linktest.Plain(broadcast, hosts[0].MAC(), 50, "go on")
	hosts[0].send(t, f)
	hosts[2].expect(t, f)
	hosts[2].send(t, f)
	hosts[0].expect(t, f)
	if len(hosts[1].got) > 0 {
		t.Error("the port passes frames")
	}
}

// goneLink is a link that was removed before Watch.
type goneLink struct {
	*stream.Link
	closed chan struct{}
}

func (*goneLink) State() link.State { return link.Removed }
func (*goneLink) Watch(func())      {}

func (l *goneLink) Close() error {
	close(l.closed)
	return l.Link.Close()
}

// TestLinkGoneBeforeAdd: a link that was removed between its opening and Add is closed and not
// added.
func TestLinkGoneBeforeAdd(t *testing.T) {
	b, _ := newSwitch(t, 0)
	l, err := stream.Open(filepath.Join(t.TempDir(), "s"), &stream.Config{Listening: true})
	if err != nil {
		t.Fatal(err)
	}
	gone := &goneLink{l, make(chan struct{})}
	if err := b.Add(gone); err != nil {
		t.Fatal(err)
	}
	if n := len(b.snapshot()); n != 0 {
		t.Fatalf("there are %d ports", n)
	}
	<-gone.closed
}

func TestPortsAreBounded(t *testing.T) {
	b, lan := New(slog.New(slog.DiscardHandler), nil), new(pipe.Switch)
	for range maxPorts {
		if err := b.Add(new(pipe.Switch).Port()); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.Add(lan.Port()); err == nil {
		t.Error("there is no bound")
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	if err := b.Add(lan.Port()); err == nil {
		t.Error("a closed switch takes a port")
	}
}

func TestTable(t *testing.T) {
	now := time.Now()
	address := func(n int) (a mac) {
		binary.BigEndian.PutUint32(a[2:], uint32(n))
		a[0] = 2
		return a
	}
	tab, p, q := newTable(), new(port), &port{number: 1}
	for n := range maxAddresses + 10 {
		tab.learn(address(n), p, now)
	}
	if n := len(tab.entries); n != maxAddresses {
		t.Errorf("%d addresses, want %d", n, maxAddresses)
	}
	tab.learn(address(maxAddresses+1), q, now) // another port still has room
	// This takes an address over, which makes room at the first port.
	tab.learn(address(0), q, now)
	tab.learn(address(maxAddresses+2), p, now)
	for n, want := range map[int]*port{0: q, 1: p, maxAddresses: nil, maxAddresses + 1: q, maxAddresses + 2: p} {
		if got := tab.find(address(n), now); got != want {
			t.Errorf("address %d is at %p, want %p", n, got, want)
		}
	}
	later := now.Add(ageing - time.Second)
	tab.learn(address(1), p, later)
	later = later.Add(time.Second)
	if tab.find(address(2), later) != nil || tab.find(address(1), later) != p {
		t.Error("addresses do not age by the last frame from them")
	}
	tab.learn(address(maxAddresses+3), p, later) // makes room
	if n := tab.counts[p]; n != 2 {
		t.Errorf("%d addresses are left, want 2", n)
	}
	for _, a := range []mac{{}, {1}, mac(broadcast)} {
		tab.learn(a, p, later)
		if tab.find(a, later) != nil || !tab.fresh(a, p, later) {
			t.Errorf("%x was learnt", a)
		}
	}
	tab.forget(p)
	if tab.find(address(1), later) != nil || tab.counts[p] != 0 || tab.counts[q] != 2 || len(tab.entries) != 2 {
		t.Errorf("after one port went: %d addresses, counts %v", len(tab.entries), tab.counts)
	}
}

func BenchmarkForward(b *testing.B) {
	br := New(slog.New(slog.DiscardHandler), nil)
	lans := [2]*pipe.Switch{new(pipe.Switch), new(pipe.Switch)}
	for _, lan := range lans {
		if err := br.Add(lan.Port()); err != nil {
			b.Fatal(err)
		}
	}
	from := br.snapshot()[0]
	host := lans[1].Port()
	got := make(chan struct{}, 1)
	n := 0
	host.Attach(func(frames []link.Frame) {
		for i := range frames {
			if binary.BigEndian.Uint16(frames[i].Data[12:]) == probeType {
				continue
			}
			if n++; n == batchFrames {
				n = 0
				got <- struct{}{}
			}
		}
	})
	back := linktest.Plain(broadcast, host.MAC(), 50, "here")
	br.receive(br.snapshot()[1], []link.Frame{back})
	var frames [batchFrames]link.Frame
	for i := range frames {
		frames[i] = linktest.Plain(host.MAC(), net.HardwareAddr{2, 0, 0, 0, 0, byte(i + 1)}, 1000, "x")
	}
	b.ReportAllocs()
	for b.Loop() {
		br.receive(from, frames[:])
		<-got
	}
	_ = host.Close()
	_ = br.Close()
}

// TestMetrics: frames and bytes are counted at ingress and egress ports.
func TestMetrics(t *testing.T) {
	b, hosts := newSwitch(t, 2)
	f := linktest.Plain(broadcast, hosts[0].MAC(), 50, "hello")
	hosts[0].send(t, f)
	hosts[1].expect(t, f)
	problems, err := testutil.CollectAndLint(b)
	if err != nil || len(problems) > 0 {
		t.Error(problems, err)
	}
	p := b.snapshot()
	if got, sent := p[0].receivedBytes.Load(), p[1].sentBytes.Load(); got == 0 || sent < uint64(len(f.Data)) {
		t.Errorf("%d bytes received, %d sent, want at least %d", got, sent, len(f.Data))
	}
	if n := testutil.CollectAndCount(b); n != 10 {
		t.Errorf("%d metrics of two ports, want 10", n)
	}
}
