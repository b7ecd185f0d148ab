package static_test

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/stack"
	"github.com/softrnic/softrnic/stack/static"
)

var addrs = []netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")}

// end is a host and what it has received.
type end struct {
	*static.Host
	port *pipe.Port
	nic  stack.NIC
	mu   sync.Mutex // that time passes synchronizes nothing
	got  []stack.Datagram
}

// hosts makes two hosts on a switch.
func hosts(t *testing.T) (a, b *end) {
	var s pipe.Switch
	var all [2]*end
	for i := range all {
		all[i] = &end{port: s.Port()}
	}
	for i, e := range all {
		var err error
		e.Host, err = static.New(e.port, &static.Config{Addr: addrs[i], Neighbour: func(a netip.Addr) (mac [6]byte, ok bool) {
			k := slices.Index(addrs, a)
			if k < 0 {
				return mac, false
			}
			return [6]byte(all[k].port.MAC()), true
		}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = e.Close() })
		e.nic = e.NICs()[0]
		e.nic.Datagrams().Receive(func(d *stack.Datagram) {
			c := *d
			c.Header, c.Payload = slices.Clone(d.Header), slices.Clone(d.Payload)
			e.mu.Lock()
			defer e.mu.Unlock()
			e.got = append(e.got, c)
		})
	}
	return all[0], all[1]
}

func (e *end) path(t *testing.T, to netip.Addr) stack.Path {
	t.Helper()
	p, err := e.nic.Datagrams().Path(stack.PathAttr{Src: e.nic.GIDs()[0], Dst: to, SrcPort: 50000, TrafficClass: 0x68, HopLimit: 7})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// send sends datagrams of one byte on each path in turn.
func (e *end) send(from, n int, paths ...stack.Path) {
	s := e.nic.Datagrams().Sender()
	for i := range n {
		for _, p := range paths {
			_, payload := s.Datagram(p, 1)
			payload[0] = byte(from + i)
		}
	}
	s.Datagram(paths[0], 5)
	s.Drop()
	s.Flush()
}

// check checks that datagrams have arrived in order, and forgets them.
func (e *end) check(t *testing.T, n int, from netip.Addr, looped bool) {
	t.Helper()
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.got) != n {
		t.Errorf("%d datagrams have arrived, want %d", len(e.got), n)
	}
	for i, d := range e.got {
		if len(d.Payload) != 1 || d.Payload[0] != byte(i) || d.Src != from || d.Dst != e.nic.GIDs()[0] || d.SrcPort != 50000 ||
			d.TrafficClass != 0x68 || d.HopLimit != 7 || d.Looped != looped || len(d.Header) != 28 || d.Header[0] != 0x45 {
			t.Errorf("datagram %d: %+v", i, d)
		}
	}
	e.got = nil
}

// TestDatagrams: datagrams arrive as they were sent, at the other host or at the same one.
func TestDatagrams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := hosts(t)
		other, own := a.path(t, addrs[1]), a.path(t, addrs[0])
		a.send(0, 100, other, own)
		synctest.Wait()
		b.check(t, 100, addrs[0], false)
		a.check(t, 0, addrs[0], true) // its own take time
		time.Sleep(time.Microsecond)
		synctest.Wait()
		a.check(t, 100, addrs[0], true)
		sent, got := a.nic.Counters(), b.nic.Counters()
		if sent.TxFrames != 200 || sent.TxErrors != 0 || sent.RxFrames != 100 || got.RxFrames != 100 {
			t.Errorf("%+v, %+v", sent, got)
		}
		if own.MTU() != a.port.MTU()-28 || own.LocalNIC() != nil || *own.Ends() != (stack.Ends{Src: addrs[0], Dst: addrs[0]}) {
			t.Errorf("MTU %d, %v", own.MTU(), own.Ends())
		}
		if other.(stack.Queued).Queue(func() {}) {
			t.Error("the path has a queue in a switch")
		}
		s := a.nic.Datagrams().Sender()
		for _, n := range []int{0, -1, own.MTU() + 1} {
			if _, payload := s.Datagram(own, n); payload != nil {
				t.Errorf("a datagram of %d bytes", n)
			}
		}
		s.Flush()
	})
}

// TestAnswer: a host may answer itself. What waits when it is closed is lost, and so is what is too
// much.
func TestAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, _ := hosts(t)
		own, n := a.path(t, addrs[0]), 0
		began := time.Now()
		a.nic.Datagrams().Receive(func(*stack.Datagram) {
			if n++; n < 1000 {
				a.send(0, 1, own)
			}
		})
		a.send(0, 1, own)
		time.Sleep(time.Millisecond)
		synctest.Wait()
		if n != 1000 || time.Since(began) < time.Millisecond {
			t.Errorf("%d answers in %v", n, time.Since(began))
		}
		n = 1000
		a.send(0, 5000, own)
		time.Sleep(time.Microsecond)
		synctest.Wait()
		if c := a.nic.Counters(); n != 1000+4096 || c.TxErrors != 5000-4096 {
			t.Errorf("%d of 5000 arrive at once, %+v", n-1000, c)
		}
		a.send(0, 10, own)
		if err := a.Close(); err != nil {
			t.Error(err)
		}
		a.send(0, 10, own)
		time.Sleep(time.Millisecond)
		synctest.Wait()
		if n != 1000+4096 {
			t.Errorf("%d arrive after Close", n-5096)
		}
	})
}

// TestRefused: what a host cannot do is an error that says so.
func TestRefused(t *testing.T) {
	a, _ := hosts(t)
	dg := a.nic.Datagrams()
	elsewhere := netip.MustParseAddr("10.0.0.9")
	for _, c := range []struct {
		attr stack.PathAttr
		want error
	}{
		{stack.PathAttr{Src: addrs[1], Dst: addrs[0]}, syscall.EADDRNOTAVAIL},
		{stack.PathAttr{Src: addrs[0], Dst: elsewhere}, syscall.ENETUNREACH},
		{stack.PathAttr{Src: addrs[0], Dst: addrs[1], V1: true}, errors.ErrUnsupported},
		{stack.PathAttr{Src: addrs[0], Dst: netip.IPv6Loopback(), Via: [6]byte{2}}, syscall.ENETUNREACH},
		{stack.PathAttr{Src: addrs[0], Dst: elsewhere, Via: [6]byte{2}}, nil},
	} {
		if _, err := dg.Path(c.attr); !errors.Is(err, c.want) || (err == nil) != (c.want == nil) {
			t.Errorf("%+v: %v", c.attr, err)
		}
	}
	if _, _, err := a.nic.Source(elsewhere); !errors.Is(err, syscall.ENETUNREACH) {
		t.Error(err)
	}
	if src, _, err := a.nic.Source(addrs[1]); err != nil || src != addrs[0] {
		t.Error(src, err)
	}
	if _, err := a.DialStream(context.Background(), netip.AddrPort{}, netip.AddrPort{}); !errors.Is(err, errors.ErrUnsupported) {
		t.Error(err)
	}
	if _, err := a.ListenStream(netip.AddrPort{}); !errors.Is(err, errors.ErrUnsupported) {
		t.Error(err)
	}
	if err := a.nic.Join(netip.MustParseAddr("224.0.0.1")); !errors.Is(err, errors.ErrUnsupported) {
		t.Error(err)
	}
	var s pipe.Switch
	p := s.Port()
	if _, err := static.New(p, &static.Config{Addr: netip.IPv6Loopback()}); err == nil {
		t.Error("an IPv6 address is no error")
	}
	if _, err := p.Write([]link.Frame{{Data: make([]byte, 60)}}); err == nil {
		t.Error("the link is open after New has failed")
	}
}

// TestHostile: frames that are damaged or for others are not passed on.
func TestHostile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := hosts(t)
		var frame []byte
		var s pipe.Switch // a host with the address of a, whose frames can be seen
		tap, sniffer := s.Port(), s.Port()
		sniffer.Attach(func(frames []link.Frame) { frame = slices.Clone(frames[0].Data) })
		h, err := static.New(tap, &static.Config{Addr: addrs[0],
			Neighbour: func(netip.Addr) ([6]byte, bool) { return [6]byte(sniffer.MAC()), true }})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = h.Close(); _ = sniffer.Close() })
		e := &end{Host: h, nic: h.NICs()[0]}
		e.send(0, 1, e.path(t, addrs[1]))
		synctest.Wait()
		copy(frame, b.port.MAC())
		write := func(f []byte) {
			if _, err := a.port.Write([]link.Frame{{Data: f}}); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		write(frame)
		b.check(t, 1, addrs[0], false)
		malformed := 0
		for name, c := range map[string]struct {
			at        int
			to        byte
			malformed bool
		}{
			"EtherType": {12, 0x86, false}, "options": {14, 0x46, false}, "length": {17, 200, true}, "short": {17, 20, true},
			"fragment": {20, 0x60, true}, "offset": {21, 1, true}, "TTL": {22, 9, true}, "TCP": {23, 6, false},
			"destination": {33, 9, false}, "port": {37, 1, false}, "UDP": {39, 7, true}, "UDP length": {39, 10, true},
		} {
			f := slices.Clone(frame)
			f[c.at] = c.to
			write(f)
			if c.malformed {
				malformed++
			}
			if n := b.nic.Counters().RxMalformed; len(b.got) > 0 || n != uint64(malformed) {
				t.Errorf("%s: %d datagrams, %d malformed, want %d", name, len(b.got), n, malformed)
				malformed = int(n)
			}
		}
		for n := 14; n < len(frame); n++ {
			write(frame[:n])
		}
		if len(b.got) > 0 {
			t.Errorf("%d truncated frames", len(b.got))
		}
		// What a switch leaves of a packet is passed on as such.
		s2 := e.nic.Datagrams().Sender()
		_, payload := s2.Datagram(e.path(t, addrs[1]), 100)
		clear(payload)
		s2.Flush()
		synctest.Wait()
		copy(frame, b.port.MAC())
		for n := 14; n <= len(frame); n++ {
			b.got = nil
			write(frame[:n])
			if left := n - 14 - 28; left <= 0 && len(b.got) > 0 || left > 0 &&
				(len(b.got) != 1 || len(b.got[0].Payload) != left || b.got[0].Truncated != (left < 100)) {
				t.Errorf("%d bytes of a frame: %+v", n, b.got)
			}
		}
		b.nic.Datagrams().Receive(nil)
		write(frame)
		if n := b.nic.Counters().RxDropped; n != 1 {
			t.Errorf("%d are dropped without a receiver", n)
		}
	})
}

// TestChanges: a host tells what happens to its link.
func TestChanges(t *testing.T) {
	a, _ := hosts(t)
	var all []stack.Change
	a.nic.Watch(func(c stack.Change) { all = append(all, c) })
	a.port.SetCarrier(false)
	down := a.nic.State()
	a.port.SetCarrier(true)
	if want := []stack.Change{stack.LinkWentDown, stack.LinkCameUp}; !slices.Equal(all, want) || down == a.nic.State() {
		t.Errorf("%v, want %v; the state is %v, and was %v", all, want, a.nic.State(), down)
	}
	a.nic.Watch(nil)
	a.port.SetCarrier(false)
	if len(all) != 2 {
		t.Error("it tells nobody")
	}
}
