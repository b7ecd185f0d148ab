package rdmacm_test

import (
	"context"
	"errors"
	"net/netip"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// Close waits for the acknowledgement of events that GetEvent has returned, and drops the others.
func TestCloseWaitsForAck(t *testing.T) {
	bubble(t, func(t *testing.T, a, b *end) {
		l, s, c := connected(a, b)
		must(t, c.Disconnect())
		ev, err := a.ch.GetEvent(t.Context())
		must(t, err)
		must(t, s.Disconnect())
		time.Sleep(time.Minute) // TimewaitExit is in both channels, and no goroutine takes it

		var acked bool
		done := make(chan error)
		go func() { done <- s.Close() }()
		synctest.Wait()
		select {
		case <-done:
			t.Fatal("Close did not wait for the event")
		default:
		}
		wantErr(t, s.Disconnect(), verbs.ErrClosed)
		must(t, ev.Ack())
		acked = true
		must(t, <-done)
		if !acked {
			t.Error("Close returned before Ack")
		}
		wantErr(t, ev.Ack(), syscall.EINVAL)
		b.close(c)
		a.close(l)
	})
}

// Events of a closed ID are dropped, and requests of a closed listener are rejected.
func TestCloseDropsEvents(t *testing.T) {
	bubble(t, func(t *testing.T, a, b *end) {
		l := a.listen(rdmacm.TCP)
		c := b.resolve(rdmacm.TCP, v4A+":7471")
		must(t, c.Connect(nil))
		synctest.Wait()
		must(t, l.Close())
		a.noEvent()
		b.next(rdmacm.Rejected)
		b.close(c)
		a.close()
	})
}

// WriteEvent adds an event in any state but closed, in order with those of the device.
func TestWriteEvent(t *testing.T) {
	bubble(t, func(t *testing.T, a, b *end) {
		l := a.listen(rdmacm.TCP)
		must(t, l.WriteEvent(rdmacm.User, -7, 1<<63))
		c := b.resolve(rdmacm.TCP, v4A+":7471")
		must(t, c.Connect(nil))
		synctest.Wait()
		must(t, l.WriteEvent(rdmacm.AddrInfoResolved, 0, 2))
		if e := a.next(rdmacm.User); e.ID != l || e.ListenID != nil || e.Status != -7 || e.Arg != 1<<63 {
			t.Errorf("event %+v", e)
		}
		s := a.next(rdmacm.ConnectRequest).ID
		if e := a.next(rdmacm.AddrInfoResolved); e.ID != l || e.Status != 0 || e.Arg != 2 {
			t.Errorf("event %+v", e)
		}
		must(t, s.WriteEvent(rdmacm.User, 0, 3))
		if e := a.next(rdmacm.User); e.ID != s || e.Arg != 3 {
			t.Errorf("event %+v", e)
		}
		for _, e := range []rdmacm.EventType{rdmacm.AddrResolved, rdmacm.TimewaitExit, rdmacm.AddrInfoError, rdmacm.User + 1, 255} {
			wantErr(t, l.WriteEvent(e, 0, 0), syscall.EINVAL)
		}
		must(t, l.WriteEvent(rdmacm.User, 0, 0)) // Close drops it
		a.close(s, l)
		wantErr(t, l.WriteEvent(rdmacm.User, 0, 0), verbs.ErrClosed)
		b.next(rdmacm.Rejected)
		b.close(c)
	})
}

func TestChannelClosed(t *testing.T) {
	bubble(t, func(t *testing.T, a, b *end) {
		id := a.id(rdmacm.TCP)
		wantErr(t, a.ch.Close(), syscall.EBUSY)
		got := make(chan error)
		go func() { _, err := a.ch.GetEvent(context.Background()); got <- err }()
		synctest.Wait()
		must(t, id.Close())
		must(t, a.ch.Close())
		wantErr(t, <-got, verbs.ErrClosed)
		wantErr(t, a.ch.Close(), verbs.ErrClosed)
		_, err := a.ch.CreateID(rdmacm.TCP, nil)
		wantErr(t, err, verbs.ErrClosed)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err = b.ch.GetEvent(ctx)
		wantErr(t, err, context.Canceled)
	})
}

// Migrate moves an ID's events to the other channel, in order; for a listener, also the events of
// its requests.
func TestMigrate(t *testing.T) {
	bubble(t, func(t *testing.T, a, b *end) {
		l := a.listen(rdmacm.TCP)
		c := b.resolve(rdmacm.TCP, v4A+":7471")
		must(t, c.Connect(nil))
		synctest.Wait()
		other := b.resolve(rdmacm.TCP, v4A+":7471")
		must(t, other.Connect(nil))
		synctest.Wait()

		to, err := rdmacm.CreateEventChannel(a.dev)
		must(t, err)
		must(t, l.Migrate(t.Context(), to))
		if l.Channel() != to {
			t.Error("the ID is in its old channel")
		}
		a.noEvent()
		s := next(t, to, rdmacm.ConnectRequest).ID
		if s.Channel() != to {
			t.Error("the request is in the listener's old channel")
		}
		next(t, to, rdmacm.ConnectRequest)
		must(t, s.Accept(&rdmacm.ConnParam{QPNum: 5}))
		b.next(rdmacm.ConnectResponse)
		must(t, c.Establish())
		must(t, c.Disconnect())
		synctest.Wait()
		must(t, s.Migrate(t.Context(), a.ch))
		a.next(rdmacm.Established)
		ev, err := a.ch.GetEvent(t.Context())
		must(t, err)
		if ev.Type != rdmacm.Disconnected {
			t.Errorf("event %v, want DISCONNECTED", ev.Type)
		}

		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		wantErr(t, s.Migrate(ctx, to), context.DeadlineExceeded) // the event is not acknowledged
		if s.Channel() != to {
			t.Error("the ID did not move")
		}
		must(t, ev.Ack())
		must(t, s.Migrate(t.Context(), to))

		wantErr(t, s.Migrate(t.Context(), nil), syscall.EINVAL)
		wantErr(t, s.Migrate(t.Context(), b.ch), syscall.EINVAL)
		must(t, a.ch.Close())
		wantErr(t, s.Migrate(t.Context(), a.ch), verbs.ErrClosed)
		must(t, s.Close())
		wantErr(t, s.Migrate(t.Context(), to), verbs.ErrClosed)
	})
}

// Two events that are added together wake two waiting goroutines, although the first may take the
// only token.
func TestTwoEventsWakeTwoGoroutines(t *testing.T) {
	bubble(t, func(t *testing.T, a, b *end) {
		l, s, c := connected(a, b)
		must(t, c.Disconnect())
		synctest.Wait()
		must(t, s.Disconnect())
		time.Sleep(time.Minute) // Disconnected and TimewaitExit are in the channel

		to, err := rdmacm.CreateEventChannel(a.dev)
		must(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		got := make(chan *rdmacm.Event, 2)
		for range 2 {
			go func() {
				ev, err := to.GetEvent(ctx)
				if err != nil {
					t.Error(err)
				} else if err := ev.Ack(); err != nil {
					t.Error(err)
				}
				got <- ev
			}()
		}
		synctest.Wait() // both wait
		must(t, s.Migrate(t.Context(), to))
		for range 2 {
			<-got
		}
		must(t, s.Close())
		must(t, to.Close())
		b.close(c)
		a.close(l)
	})
}

// Requests that are still in the listener's channel migrate with the listener, except those whose
// peers have disconnected. Their later events are in the new channel.
func TestMigrateMovesRequests(t *testing.T) {
	bubble(t, func(t *testing.T, a, b *end) {
		l := a.listen(rdmacm.TCP)
		gone, stays := b.resolve(rdmacm.TCP, v4A+":7471"), b.resolve(rdmacm.TCP, v4A+":7471")
		must(t, gone.Connect(nil))
		synctest.Wait()
		must(t, stays.Connect(nil))
		synctest.Wait()
		must(t, gone.Close()) // the sender cancels its request
		synctest.Wait()

		to, err := rdmacm.CreateEventChannel(a.dev)
		must(t, err)
		must(t, l.Migrate(t.Context(), to))
		request := next(t, to, rdmacm.ConnectRequest)
		must(t, stays.Close())
		<-request.ID.Done()
		must(t, request.ID.Close())
		a.noEvent()
		must(t, l.Close())
		must(t, to.Close())
		b.close()
		a.close()
	})
}

// IDs can share an address and port only if all of them have called SetReuseAddr and none listens.
func TestPorts(t *testing.T) {
	bubble(t, func(t *testing.T, a, b *end) {
		bind := func(space rdmacm.PortSpace, addr string, opts ...func(*rdmacm.ID) error) (*rdmacm.ID, error) {
			id := a.id(space)
			for _, o := range opts {
				must(t, o(id))
			}
			return id, id.Bind(netip.MustParseAddrPort(addr))
		}
		reuse := func(id *rdmacm.ID) error { return id.SetReuseAddr(true) }
		own := func(id *rdmacm.ID) error { return id.SetAFOnly(true) }
		var ids []*rdmacm.ID
		for i, c := range []struct {
			space rdmacm.PortSpace
			addr  string
			opts  []func(*rdmacm.ID) error
			want  error
		}{
			{rdmacm.TCP, v4A + ":100", nil, nil},
			{rdmacm.TCP, v4A + ":100", nil, syscall.EADDRINUSE},
			{rdmacm.UDP, v4A + ":100", nil, nil},
			{rdmacm.TCP, "[" + v6A + "]:100", nil, nil},
			{rdmacm.TCP, "0.0.0.0:100", nil, syscall.EADDRNOTAVAIL},
			{rdmacm.TCP, "10.0.0.77:100", nil, syscall.EADDRNOTAVAIL},
			{rdmacm.TCP, v4B + ":101", nil, syscall.EADDRNOTAVAIL},
			{rdmacm.TCP, "[::ffff:" + v4A + "]:102", nil, nil},
			{rdmacm.TCP, v4A + ":102", nil, syscall.EADDRINUSE},
			{rdmacm.TCP, "0.0.0.0:103", nil, nil},
			// The wildcard of IPv6 is for both families, that of IPv4 for its own.
			{rdmacm.TCP, "[::]:103", nil, syscall.EADDRNOTAVAIL},
			{rdmacm.TCP, "0.0.0.0:104", nil, nil},
			{rdmacm.TCP, "[::]:104", []func(*rdmacm.ID) error{own}, nil},
			{rdmacm.TCP, "[::]:104", nil, syscall.EADDRNOTAVAIL},
			{rdmacm.TCP, v4A + ":105", []func(*rdmacm.ID) error{reuse}, nil},
			{rdmacm.TCP, v4A + ":105", []func(*rdmacm.ID) error{reuse}, nil},
			{rdmacm.TCP, v4A + ":105", nil, syscall.EADDRINUSE},
		} {
			id, err := bind(c.space, c.addr, c.opts...)
			if !errors.Is(err, c.want) {
				t.Errorf("%d: bind %v: %v, want %v", i, c.addr, err, c.want)
			}
			if err == nil && id.LocalAddr().Port() == 0 {
				t.Errorf("%d: bound to %v", i, id.LocalAddr())
			}
			ids = append(ids, id)
		}
		wantErr(t, ids[14].Listen(1), syscall.EADDRINUSE) // another ID shares the port
		must(t, ids[15].Close())
		must(t, ids[14].Listen(1))
		id, err := bind(rdmacm.TCP, v4A+":105", reuse)
		wantErr(t, err, syscall.EADDRINUSE)
		must(t, id.Close())
		must(t, ids[14].Close())
		// An ID can allow it after Bind, but not forbid it.
		first, err := bind(rdmacm.TCP, v4A+":106")
		must(t, err)
		second, err := bind(rdmacm.TCP, v4A+":106", reuse)
		wantErr(t, err, syscall.EADDRINUSE)
		must(t, first.SetReuseAddr(true))
		must(t, second.Bind(netip.MustParseAddrPort(v4A+":106")))
		wantErr(t, first.SetReuseAddr(false), syscall.EINVAL)
		must(t, first.Close())
		must(t, second.Close())
		a.close(append(ids[:14], ids[16:]...)...)

		// Another device has ports of its own, and released ports are free.
		id, err = bind2(b, v4B+":100")
		must(t, err)
		must(t, id.Close())
		id, err = bind2(b, v4B+":100")
		must(t, err)
		b.close(id)
	})
}

func bind2(e *end, addr string) (*rdmacm.ID, error) {
	id := e.id(rdmacm.TCP)
	return id, id.Bind(netip.MustParseAddrPort(addr))
}

func TestEphemeralPortsRunOut(t *testing.T) {
	if testing.Short() {
		t.Skip("binds every ephemeral port")
	}
	bubble(t, func(t *testing.T, a, b *end) {
		const n = 60999 - 32768 + 1
		seen := make(map[uint16]bool)
		var ids []*rdmacm.ID
		for range n {
			id, err := bind2(a, v4A+":0")
			must(t, err)
			seen[id.LocalAddr().Port()] = true
			ids = append(ids, id)
		}
		if len(seen) != n {
			t.Errorf("%d different ports, want %d", len(seen), n)
		}
		id, err := bind2(a, v4A+":0")
		wantErr(t, err, syscall.EADDRNOTAVAIL)
		a.close(append(ids, id)...)
	})
}

func TestBacklog(t *testing.T) {
	bubble(t, func(t *testing.T, a, b *end) {
		l := a.listen(rdmacm.TCP) // 2
		var ids []*rdmacm.ID
		for range 3 {
			id := b.resolve(rdmacm.TCP, v4A+":7471")
			must(t, id.Connect(nil))
			ids = append(ids, id)
		}
		if ev := b.next(rdmacm.Rejected); ev.ID != ids[2] || ev.Status != rdmacm.RejectNoResources {
			t.Errorf("the wrong one is rejected, with %d", ev.Status)
		}
		must(t, l.Close())
		b.close(ids...)
		a.close()
	})
}

// A listener for one address family rejects the other; a listener on an address gets requests to
// that address only.
func TestListenScope(t *testing.T) {
	bubble(t, func(t *testing.T, a, b *end) {
		l4, lAddr := a.id(rdmacm.TCP), a.id(rdmacm.TCP)
		must(t, l4.Bind(netip.MustParseAddrPort("0.0.0.0:1")))
		must(t, l4.Listen(0))
		must(t, lAddr.Bind(netip.MustParseAddrPort("["+v6A+"]:2")))
		must(t, lAddr.Listen(0))
		var ids []*rdmacm.ID
		for _, c := range []struct {
			to   string
			want rdmacm.EventType
			l    *rdmacm.ID
		}{{v4A + ":1", rdmacm.ConnectRequest, l4}, {"[" + v6A + "]:1", rdmacm.Rejected, nil},
			{v4A + ":2", rdmacm.Rejected, nil}, {"[" + v6A + "]:2", rdmacm.ConnectRequest, lAddr}} {
			id := b.resolve(rdmacm.TCP, c.to)
			must(t, id.Connect(nil))
			ids = append(ids, id)
			if c.want == rdmacm.Rejected {
				b.next(rdmacm.Rejected)
			} else if ev := a.next(c.want); ev.ListenID != c.l {
				t.Errorf("%s came to the wrong listener", c.to)
			} else {
				must(t, ev.ID.Close())
				b.next(rdmacm.Rejected)
			}
		}
		b.close(ids...)
		a.close(l4, lAddr)
	})
}

// A listener may serve several transports, and each request has its own; a transport that the
// device lacks is an error.
func TestTransports(t *testing.T) {
	bubble(t, func(t *testing.T, a, b *end) {
		l := a.id(rdmacm.TCP)
		must(t, l.SetTransports(verbs.IWARP, verbs.RoCEv2))
		must(t, l.Bind(netip.MustParseAddrPort("[::]:7471")))
		must(t, l.Listen(0))
		var ids []*rdmacm.ID
		for _, tr := range []verbs.Transport{verbs.RoCEv2, verbs.IWARP} {
			id := b.id(rdmacm.TCP)
			must(t, id.SetTransports(tr))
			must(t, id.ResolveAddr(netip.AddrPort{}, netip.MustParseAddrPort(v4A+":7471"), 0))
			b.next(rdmacm.AddrResolved)
			must(t, id.ResolveRoute())
			b.next(rdmacm.RouteResolved)
			must(t, id.Connect(nil))
			if got := a.next(rdmacm.ConnectRequest).ID; got.Transport() != tr || id.Transport() != tr {
				t.Errorf("transports %v and %v, want %v", got.Transport(), id.Transport(), tr)
			} else {
				ids = append(ids, id)
				must(t, got.Close())
				b.next(rdmacm.Rejected)
			}
		}
		b.close(ids...)
		a.close(l)

		old := newEnd(t, newLAN(), "rocev2-only", v4A)
		id := old.id(rdmacm.TCP)
		must(t, id.SetTransports(verbs.RoCEv2, verbs.IWARP))
		wantErr(t, id.Listen(0), verbs.ErrNotSupported)
		must(t, id.SetTransports(verbs.RoCEv2))
		must(t, id.Listen(0))
		old.close(id)
	})
}

// A channel can have several devices: a listener listens on all of them, an active ID uses one that
// has a route.
func TestSeveralDevices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := newLAN()
		b := newEnd(t, net, "b", v4B)
		d1, _ := net.open(t, "d1", v4A)
		d2, _ := net.open(t, "d2", v6A)
		ch, err := rdmacm.CreateEventChannel(d1, d2)
		must(t, err)
		l, err := ch.CreateID(rdmacm.TCP, nil)
		must(t, err)
		must(t, l.Bind(netip.MustParseAddrPort("0.0.0.0:7471")))
		must(t, l.Listen(0))
		c := b.resolve(rdmacm.TCP, v4A+":7471")
		must(t, c.Connect(nil))
		if s := next(t, ch, rdmacm.ConnectRequest).ID; s.Device() != d1 {
			t.Errorf("request on %v", s.Device())
		}
		id, err := ch.CreateID(rdmacm.TCP, nil)
		must(t, err)
		must(t, id.ResolveAddr(netip.AddrPort{}, netip.MustParseAddrPort("["+v6B+"]:1"), 0))
		next(t, ch, rdmacm.AddrResolved)
		if id.Device() != d2 || id.PortNum() != 1 {
			t.Errorf("IPv6 is on %v, want d2", id.Device().Name())
		}
	})
}
