//go:build linux

package sockets

import (
	"context"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/verbs/ulp/rsocket"
)

// TestRecent: the number of entries is bounded, and the oldest are dropped, whatever is deleted
// meanwhile.
func TestRecent(t *testing.T) {
	r := newRecent[int, int](10)
	r.put(-1, 1)
	for i := range 1000 {
		r.put(i, i)
		if i%2 == 0 {
			r.delete(i)
		}
		if len(r.of) > 10 || len(r.order) > 21 {
			t.Fatalf("%d entries, %d in their order", len(r.of), len(r.order))
		}
	}
	for i := 981; i < 1000; i += 2 {
		if v, ok := r.get(i); !ok || v != i {
			t.Errorf("%d: %d, %v", i, v, ok)
		}
	}
	if _, ok := r.get(979); ok {
		t.Error("the oldest has not made room")
	}
	r.put(999, 7)
	if v, _ := r.get(999); v != 7 || len(r.of) != 10 {
		t.Errorf("changed to %d; %d entries", v, len(r.of))
	}
}

// TestFailedConnects: the agent keeps a bounded number of closed sockets that were bound or failed
// to connect.
func TestFailedConnects(t *testing.T) {
	a, _, _ := newAgent(t, nil)
	for range maxRecent + 200 {
		fd := socket(t, unix.SOCK_STREAM|unix.SOCK_NONBLOCK)
		if status := a.bind(fd, netip.MustParseAddrPort("10.0.0.1:0")); status != done {
			t.Fatalf("bind: %d", status)
		}
		if status := a.connect(fd, netip.MustParseAddrPort("10.0.0.2:80")); status != done && status != declined {
			t.Fatalf("connect: %d", status)
		}
		_ = unix.Close(fd)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.bound.of) > maxRecent || len(a.failures.of) > maxRecent || len(a.pending) > maxPending {
		t.Errorf("%d are bound, %d have failed, %d are pending", len(a.bound.of), len(a.failures.of), len(a.pending))
	}
	if len(a.failures.of) == 0 {
		t.Error("nothing has failed")
	}
}

// TestUndelivered: the agent accepts a bounded number of connections that the program does not
// accept. When the program accepts again, it gets the next ones.
func TestUndelivered(t *testing.T) {
	const many = maxUndelivered + 100
	lan, err := pipe.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	a, _, _ := newAgent(t, lan)
	dev := otherHost(t, lan, 2)
	program := socket(t, unix.SOCK_STREAM)
	if err := unix.Bind(program, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	at := localOf(program)
	a.mu.Lock()
	a.bound.put(cookieOf(program), netip.AddrPortFrom(netip.MustParseAddr("10.0.0.1"), at.Port()))
	a.mu.Unlock()
	a.listen(program)
	if err := unix.Listen(program, 0); err != nil { // a backlog of one
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var connected atomic.Int32
	var dialing sync.WaitGroup
	cfg := &rsocket.Config{SQSize: 16, RQSize: 16, SendBuffer: 4096, RecvBuffer: 4096, Linger: time.Millisecond}
	to := netip.AddrPortFrom(netip.MustParseAddr("10.0.0.1"), at.Port()).String()
	for range many {
		dialing.Go(func() {
			if c, err := rsocket.Dial(ctx, dev, to, cfg); err == nil {
				connected.Add(1)
				<-ctx.Done()
				_ = c.Close()
			}
		})
	}
	for len(a.undelivered) < maxUndelivered && ctx.Err() == nil {
		time.Sleep(time.Millisecond)
	}
	// Two more are in the kernel's backlog.
	if n := a.cfg.Counters.Accepted.Load(); n > maxUndelivered+2 {
		t.Errorf("the agent has taken %d connections", n)
	}
	for before := a.cfg.Counters.Accepted.Load(); a.cfg.Counters.Accepted.Load() <= before && ctx.Err() == nil; {
		fd, _, err := unix.Accept(program)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
	}
	if ctx.Err() != nil {
		t.Error("the agent does not go on")
	}
	if a.Backlogged() == 0 {
		t.Error("no connection has waited")
	}
	cancel()
	dialing.Wait()
}
