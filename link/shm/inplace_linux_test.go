package shm

import (
	"bytes"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/linktest"
)

// placed builds a frame in a reservation. It returns false if there is no room.
func placed(t testing.TB, l *Link, f link.Frame) bool {
	t.Helper()
	r := l.Reserve([6]byte(f.Data), len(f.Data)+100)
	if r.Data == nil {
		return false
	}
	if len(r.Data) != len(f.Data)+100 {
		t.Fatalf("a reservation of %d bytes, want %d", len(r.Data), len(f.Data)+100)
	}
	n := copy(r.Data, f.Data)
	r.Owner.Commit(r.At, &f, n)
	return true
}

// TestInPlace checks that frames are built in the memory of a host that accepts them in place, and
// not for other hosts. They arrive in order with written frames.
func TestInPlace(t *testing.T) {
	dir := directory(t)
	a, b, c := join(t, dir, nil), join(t, dir, nil), join(t, dir, nil)
	await(t, "three are connected", func() bool { return len(a.Peers()) == 2 && len(b.Peers()) == 2 && len(c.Peers()) == 2 })
	super := linktest.Superframe(b.MAC(), a.MAC(), true, 60, 1040)
	super.NoICRC = true
	if placed(t, a, super) {
		t.Error("Reserve succeeds for a host without AllowInPlace")
	}
	type got struct {
		f     link.Frame
		whole []byte
		in    bool
	}
	frames := make(chan got, 16)
	b.AllowInPlace()
	b.Attach(func(batch []link.Frame) {
		for _, f := range batch {
			g := got{f: f, in: len(f.More) > 0, whole: bytes.Clone(f.Data)}
			if g.in {
				if len(f.Data) != int(f.HeaderLen) {
					t.Errorf("%d bytes of headers, want %d", len(f.Data), f.HeaderLen)
				}
				g.whole = append(g.whole, f.More[0]...)
			}
			frames <- g
		}
	})
	c.Attach(func([]link.Frame) {})
	await(t, "there is room", func() bool {
		r := a.Reserve([6]byte(b.MAC()), 100)
		if r.Data != nil {
			r.Owner.Commit(r.At, &link.Frame{}, 0)
		}
		return r.Data != nil
	})
	plain := linktest.Plain(b.MAC(), a.MAC(), 4200, "largest")
	short := linktest.Plain(b.MAC(), a.MAC(), 50, "short")
	short.NoICRC, short.HeaderLen = true, 42
	for i := range 300 { // wraps around the ring many times
		if !placed(t, a, super) {
			t.Fatalf("no room, frame %d", i)
		}
		send(t, a, plain)
		if !placed(t, a, short) {
			t.Fatalf("no room, frame %d", i)
		}
		for _, want := range []struct {
			f  link.Frame
			in bool
		}{{super, true}, {plain, false}, {short, false}} {
			if g := <-frames; !bytes.Equal(g.whole, want.f.Data) || g.in != want.in ||
				g.f.NoICRC != want.f.NoICRC || g.f.Segmentation != want.f.Segmentation {
				t.Fatalf("round %d: %d bytes in place: %t, without ICRC: %t; want %d, %t",
					i, len(g.whole), g.in, g.f.NoICRC, len(want.f.Data), want.in)
			}
		}
	}
	if r := a.Reserve([6]byte(c.MAC()), 100); r.Data != nil {
		t.Error("Reserve succeeds for another host without AllowInPlace")
	}
	if r := a.Reserve([6]byte{2, 9, 9}, 100); r.Data != nil {
		t.Error("Reserve succeeds for an unknown address")
	}
	// A host without AllowInPlace drops frames without an ICRC.
	p := a.medium.(*segment).peer([6]byte(c.MAC()))
	f := linktest.Superframe(c.MAC(), a.MAC(), true, 60, 1040)
	f.NoICRC = true
	p.Send([]link.Frame{f})
	await(t, "the frame is counted as malformed", func() bool { return c.Malformed() == 1 })
}

// TestReservationOutlivesPair checks that memory stays mapped while a frame is built in it, even
// after the pair has ended.
func TestReservationOutlivesPair(t *testing.T) {
	dir := directory(t)
	a, b := join(t, dir, nil), join(t, dir, nil)
	await(t, "two are connected", func() bool { return len(a.Peers()) == 1 && len(b.Peers()) == 1 })
	_, before := descriptorsOpen(t)
	b.AllowInPlace()
	b.Attach(func([]link.Frame) {})
	a.Attach(func([]link.Frame) {})
	var r link.Reservation
	await(t, "there is room", func() bool { r = a.Reserve([6]byte(b.MAC()), 1000); return r.Data != nil })
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	await(t, "the peer has left", func() bool { return len(a.Peers()) == 0 })
	clear(r.Data)
	await(t, "three of four mappings are unmapped", func() bool { _, m := descriptorsOpen(t); return m == before-3 })
	r.Owner.Commit(r.At, &link.Frame{}, len(r.Data))
	await(t, "the fourth is unmapped", func() bool { _, m := descriptorsOpen(t); return m == before-4 })
}

// TestPollingStartsAndStops checks reception by polling, by the link's goroutine, and changes
// between the two.
func TestPollingStartsAndStops(t *testing.T) {
	dir := directory(t)
	a, b := join(t, dir, nil), join(t, dir, nil)
	await(t, "two are connected", func() bool { return len(a.Peers()) == 1 && len(b.Peers()) == 1 })
	linktest.Polling(t, a, b, 2000)
}

// TestPollersEndAtOnce checks that a frame arrives if one of two pollers calls EndPoll while the
// other is in its last Poll.
func TestPollersEndAtOnce(t *testing.T) {
	dir := directory(t)
	a, b := join(t, dir, nil), join(t, dir, nil)
	await(t, "two are connected", func() bool { return len(a.Peers()) == 1 && len(b.Peers()) == 1 })
	arrived := make(chan struct{}, 1)
	b.Attach(func([]link.Frame) { arrived <- struct{}{} })
	f := linktest.Plain(b.MAC(), a.MAC(), 50, "")
	timeout := time.NewTimer(0)
	for i := range 10_000 {
		var pollers sync.WaitGroup
		for range 2 {
			pollers.Go(func() {
				b.Poll()
				b.EndPoll()
			})
		}
		pollers.Wait()
		send(t, a, f)
		timeout.Reset(5 * time.Second)
		select {
		case <-arrived:
		case <-timeout.C:
			t.Fatalf("frame %d has not arrived: neither poller nor the link's goroutine receives", i)
		}
	}
}

// TestPolledPeerDies checks that a poller notices a peer's death, and that queued frames proceed
// while the sender polls.
func TestPolledPeerDies(t *testing.T) {
	dir := directory(t)
	a, b, c := join(t, dir, nil), join(t, dir, nil), join(t, dir, &Config{Ring: 256 << 10})
	await(t, "three are connected", func() bool { return len(a.Peers()) == 2 && len(b.Peers()) == 2 && len(c.Peers()) == 2 })
	a.Attach(func([]link.Frame) {})
	b.Attach(func([]link.Frame) {})
	a.Poll()
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	await(t, "the peer has left", func() bool { a.Poll(); return len(a.Peers()) == 1 })
	const frames = 1000
	f := linktest.Plain(c.MAC(), a.MAC(), 4200, "")
	for range frames {
		send(t, a, f)
		a.Poll()
	}
	if a.Backlog([6]byte(c.MAC())) == 0 {
		t.Error("no bytes wait for room")
	}
	var got atomic.Int64
	c.Attach(func(batch []link.Frame) { got.Add(int64(len(batch))) })
	await(t, "all frames have arrived", func() bool { a.Poll(); return got.Load() == frames })
	if n := a.Backlog([6]byte(c.MAC())); n != 0 {
		t.Errorf("%d bytes wait", n)
	}
}

// TestCloseWhilePolled checks that Close returns, and that nothing is received afterwards.
func TestCloseWhilePolled(t *testing.T) {
	dir := directory(t)
	b := join(t, dir, nil)
	b.Attach(func([]link.Frame) {})
	for range 20 {
		a := join(t, dir, nil)
		await(t, "two are connected", func() bool { return len(a.Peers()) == 1 && len(b.Peers()) == 1 })
		linktest.CloseWhilePolled(t, a, func() { send(t, b, linktest.Plain(a.MAC(), b.MAC(), 50, "")) })
		await(t, "one process is left", func() bool { return len(b.Peers()) == 0 })
	}
}
