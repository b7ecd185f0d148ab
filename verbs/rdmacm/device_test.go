package rdmacm_test

import (
	"context"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// drain returns the events that are in a channel, acknowledged.
func (e *end) drain() (events []*rdmacm.Event) {
	e.Helper()
	ctx, cancel := context.WithTimeout(e.Context(), time.Millisecond)
	defer cancel()
	for {
		ev, err := e.ch.GetEvent(ctx)
		if err != nil {
			return events
		}
		must(e, ev.Ack())
		events = append(events, ev)
	}
}

// types are the types of those events that are of an ID.
func types(events []*rdmacm.Event, id *rdmacm.ID) (t []rdmacm.EventType) {
	for _, ev := range events {
		if ev.ID == id {
			t = append(t, ev.Type)
		}
	}
	return t
}

// When a device fails, each of its IDs gets DeviceRemoval once, in any state; an ID without a device does not. Peers get the
// same messages as from Destroy, everything posted is flushed, and the ID can only be destroyed.
func TestDeviceRemoval(t *testing.T) {
	bubble(t, func(t *testing.T, a, b *end) {
		l, s, c := connected(a, b)
		must(t, s.QP().PostRecv(&verbs.RecvWR{ID: 9}))
		asks := b.resolve(rdmacm.TCP, v4A+":7471")
		must(t, asks.Connect(nil))
		request := a.next(rdmacm.ConnectRequest).ID
		idle, bound, wildcard, resolved := a.id(rdmacm.TCP), a.id(rdmacm.TCP), a.id(rdmacm.TCP), a.resolve(rdmacm.TCP, v4B+":1")
		must(t, bound.Bind(netip.MustParseAddrPort(v4A+":0")))
		must(t, wildcard.Bind(netip.AddrPort{}))
		stays := make(chan struct{})
		a.fake.resolve = func(ctx context.Context, _ rdmacm.Route) error { <-ctx.Done(); close(stays); return ctx.Err() }
		resolving := a.id(rdmacm.TCP)
		must(t, resolving.ResolveAddr(netip.MustParseAddrPort(v4A+":0"), netip.MustParseAddrPort(v4B+":1"), 0))

		unseen := b.resolve(rdmacm.TCP, v4A+":7471")
		must(t, unseen.Connect(nil))
		synctest.Wait() // its request is in a's channel

		a.fake.event(verbs.EventDeviceFatal, 0)
		a.fake.event(verbs.EventDeviceFatal, 0)
		<-stays // the way to the peer is not looked for any more
		events := a.drain()
		gone := []rdmacm.EventType{rdmacm.DeviceRemoval}
		for name, c := range map[string]struct {
			id   *rdmacm.ID
			want []rdmacm.EventType
		}{
			"listener": {l, gone}, "connection": {s, gone}, "request": {request, gone}, "bound": {bound, gone},
			"resolved": {resolved, gone}, "resolving": {resolving, gone},
			"idle": {idle, nil}, "bound to all addresses": {wildcard, nil},
		} {
			if got := types(events, c.id); !slices.Equal(got, c.want) {
				t.Errorf("%s: %v, want %v", name, got, c.want)
			}
		}
		i := slices.IndexFunc(events, func(ev *rdmacm.Event) bool { return ev.Type == rdmacm.ConnectRequest })
		if i < 0 || !slices.Equal(types(events, events[i].ID), []rdmacm.EventType{rdmacm.ConnectRequest, rdmacm.DeviceRemoval}) {
			t.Fatalf("the request that nobody had seen yet is not followed by DEVICE_REMOVAL")
		}
		if err := events[len(events)-1].Err(); err == nil {
			t.Error("DEVICE_REMOVAL is no failure")
		}
		for _, id := range []*rdmacm.ID{l, s, request, bound, resolved, resolving} {
			wants(t, id.SetTOS(1), syscall.ENODEV)
		}
		wants(t, s.Disconnect(), syscall.ENODEV)
		wants(t, request.Accept(nil), syscall.ENODEV)
		wants(t, resolved.Connect(nil), syscall.ENODEV)
		<-s.Ended()
		var wcs [2]verbs.WC
		if n, _ := s.QP().RecvCQ().Poll(wcs[:]); n != 1 || wcs[0].WRID != 9 || wcs[0].Status != verbs.WCWRFlushErr {
			t.Errorf("%d completions, %+v; want the receive flushed", n, wcs[0])
		}

		// What peers see.
		for _, want := range []struct {
			id *rdmacm.ID
			t  rdmacm.EventType
		}{{c, rdmacm.Disconnected}, {asks, rdmacm.Rejected}, {unseen, rdmacm.Rejected}} {
			if ev := b.drainFor(want.id); ev == nil || ev.Type != want.t {
				t.Errorf("the peer has %v, want %v", ev, want.t)
			}
		}

		// Nothing new comes on the device.
		wants(t, idle.Bind(netip.MustParseAddrPort(v4A+":0")), syscall.ENODEV)
		wants(t, wildcard.Listen(0), syscall.ENODEV)
		a.fake.resolve = nil
		must(t, wildcard.ResolveAddr(netip.AddrPort{}, netip.MustParseAddrPort(v4B+":1"), 0))
		if ev := a.next(rdmacm.AddrError); ev.Status != -int(syscall.ENODEV) {
			t.Errorf("ADDR_ERROR with status %d", ev.Status)
		}

		must(t, c.Disconnect())
		b.close(c, asks, unseen)
		a.close(l, s, request, events[i].ID, idle, bound, wildcard, resolved, resolving)
	})
}

// A connection is flushed before DeviceRemoval tells of its end: who then polls finds what was posted.
func TestDeviceRemovalAfterFlush(t *testing.T) {
	bubble(t, func(t *testing.T, a, b *end) {
		l, s, c := connected(a, b)
		must(t, l.Destroy())
		flushed := false
		a.fake.modifies = func(to verbs.QPState) {
			if to != verbs.StateErr || flushed {
				return
			}
			flushed = true
			if _, err := a.ch.TryGetEvent(); err == nil {
				t.Error("an event came before the QP was flushed")
			}
			select {
			case <-s.Ended():
				t.Error("the ID ended before its QP was flushed")
			default:
			}
		}
		a.fake.event(verbs.EventDeviceFatal, 0)
		if !flushed {
			t.Error("not flushed")
		}
		a.next(rdmacm.DeviceRemoval)
		b.next(rdmacm.Disconnected)
		b.close(c)
		a.close(s)
	})
}

// drainFor is the first event of an ID; those of others before it are kept for later.
func (e *end) drainFor(id *rdmacm.ID) *rdmacm.Event {
	e.Helper()
	e.kept = append(e.kept, e.drain()...)
	i := slices.IndexFunc(e.kept, func(ev *rdmacm.Event) bool { return ev.ID == id })
	if i < 0 {
		return nil
	}
	ev := e.kept[i]
	e.kept = slices.Delete(e.kept, i, i+1)
	return ev
}

// A listener on several devices gets DeviceRemoval with the last of them, and serves the others until then.
func TestListenerOutlivesDevice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := newLAN()
		b := newEnd(t, net, "b", v4B, v6B)
		d1, f1 := net.open(t, "d1", v4A)
		d2, f2 := net.open(t, "d2", v6A)
		ch, err := rdmacm.CreateEventChannel(d1, d2)
		must(t, err)
		l, err := ch.CreateID(rdmacm.TCP, nil)
		must(t, err)
		must(t, l.Bind(netip.MustParseAddrPort("[::]:7471")))
		must(t, l.Listen(0))
		f1.event(verbs.EventDeviceFatal, 0)
		c := b.resolve(rdmacm.TCP, "["+v6A+"]:7471")
		must(t, c.Connect(nil))
		s := next(t, ch, rdmacm.ConnectRequest).ID
		refused := b.resolve(rdmacm.TCP, v4A+":7471")
		must(t, refused.Connect(nil))
		b.next(rdmacm.Rejected)
		f2.event(verbs.EventDeviceFatal, 0)
		for range 2 {
			if ev := next(t, ch, rdmacm.DeviceRemoval); ev.ID != l && ev.ID != s {
				t.Error("DEVICE_REMOVAL of an unknown ID")
			}
		}
		must(t, s.Destroy())
		must(t, l.Destroy())
		must(t, ch.Destroy())
		must(t, d1.Close())
		must(t, d2.Close())
		b.close(c, refused)
	})
}

// A listener whose Listen has failed on one of its devices watches none of them.
func TestFailedListenerWatchesNoDevice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := newLAN()
		d1, f1 := net.open(t, "d1", v4A)
		d2, _ := net.open(t, "rocev2-only", v6A)
		ch, err := rdmacm.CreateEventChannel(d1, d2)
		must(t, err)
		l, err := ch.CreateID(rdmacm.TCP, nil)
		must(t, err)
		must(t, l.SetTransports(verbs.IWARP))
		must(t, l.Bind(netip.AddrPort{}))
		wants(t, l.Listen(0), verbs.ErrNotSupported)
		f1.event(verbs.EventDeviceFatal, 0)
		e := &end{T: t, ch: ch}
		e.none()
		must(t, l.SetTransports(verbs.RoCEv2))
		must(t, l.Destroy())
	})
}

// The memory of a destroyed ID can be garbage collected while its device stays open.
func TestDestroyedIDIsFreed(t *testing.T) {
	a, _, _ := pair(t)
	ch, err := rdmacm.CreateEventChannel(a)
	must(t, err)
	keeps, err := ch.CreateID(rdmacm.TCP, nil) // the device still has an ID
	must(t, err)
	must(t, keeps.Bind(netip.MustParseAddrPort(v4A+":0")))
	freed := func() weak.Pointer[rdmacm.ID] {
		id, err := ch.CreateID(rdmacm.TCP, nil)
		must(t, err)
		must(t, id.Bind(netip.MustParseAddrPort(v4A+":0")))
		must(t, id.Destroy())
		return weak.Make(id)
	}()
	runtime.GC()
	if freed.Value() != nil {
		t.Error("something holds the destroyed ID")
	}
	must(t, keeps.Destroy())
}

// Closing a device raises DeviceRemoval for its IDs too.
func TestDeviceClosed(t *testing.T) {
	bubble(t, func(t *testing.T, a, b *end) {
		l := a.listen(rdmacm.TCP)
		must(t, a.dev.Close())
		a.next(rdmacm.DeviceRemoval)
		a.fake.mu.Lock()
		if n := len(a.fake.listeners); n != 0 {
			t.Errorf("%d listeners are left on the closed device", n)
		}
		a.fake.mu.Unlock()
		must(t, l.Destroy())
		must(t, a.ch.Destroy())
	})
}

// Waiting calls return when the device fails, and later calls return at once.
func TestWaitingCallsEndWithDevice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, l := pair(t)
		sync1, err := rdmacm.CreateSyncID(rdmacm.TCP, a)
		must(t, err)
		must(t, sync1.Bind(netip.MustParseAddrPort(v4A+":1")))
		must(t, sync1.Listen(0))
		listener, err := rdmacm.Listen(a, ":7471", nil)
		must(t, err)
		var work sync.WaitGroup
		for range 2 {
			work.Go(func() {
				_, err := sync1.GetRequest(t.Context())
				wants(t, err, syscall.ENODEV)
			})
			work.Go(func() {
				_, err := listener.Accept(t.Context())
				wants(t, err, syscall.ENODEV)
			})
		}
		dialled, err := rdmacm.Listen(b, ":7471", nil)
		must(t, err)
		work.Go(func() {
			_, err := rdmacm.Dial(t.Context(), a, v4B+":7471", nil) // nobody accepts
			wants(t, err, syscall.ENODEV)
		})
		synctest.Wait()
		l.devs[0].event(verbs.EventDeviceFatal, 0)
		work.Wait()
		_, err = sync1.GetRequest(t.Context())
		wants(t, err, syscall.ENODEV)
		_, err = listener.Accept(t.Context())
		wants(t, err, syscall.ENODEV)
		must(t, sync1.Destroy())
		must(t, listener.Close())
		_, err = listener.Accept(t.Context())
		if err == nil {
			t.Error("a closed listener accepts")
		}
		must(t, dialled.Close())
		left(t, a, b)
	})
}

// An ID whose local address is removed from the device gets AddrChange, each time that it is removed, but never two that
// GetEvent has not returned. IDs with other addresses, or with none, get no event.
func TestAddrChange(t *testing.T) {
	bubble(t, func(t *testing.T, a, b *end) {
		l, s, c := connected(a, b)
		l4, l6 := a.id(rdmacm.TCP), a.id(rdmacm.TCP)
		must(t, l4.Bind(netip.MustParseAddrPort(v4A+":1")))
		must(t, l4.Listen(0))
		must(t, l6.Bind(netip.MustParseAddrPort("["+v6A+"]:1")))
		both := slices.Clone(a.fake.addrs)
		set := func(addrs ...netip.Addr) {
			a.fake.addrs = addrs
			a.fake.event(verbs.EventGIDChange, 1)
		}
		for range 3 {
			set(both[1])
			set(both...)
			set(both[1])
			events := a.drain()
			for name, x := range map[string]struct {
				id   *rdmacm.ID
				want int
			}{"connection": {s, 1}, "listener": {l4, 1}, "listener on all addresses": {l, 0}, "other address": {l6, 0}} {
				got := types(events, x.id)
				if len(got) != x.want || x.want == 1 && got[0] != rdmacm.AddrChange {
					t.Errorf("%s: %v, want %d of ADDR_CHANGE", name, got, x.want)
				}
			}
			for _, ev := range events {
				if ev.Err() != nil {
					t.Errorf("ADDR_CHANGE is no failure of a call, but %v", ev.Err())
				}
			}
			set(both[1]) // something else has changed
			set(both...)
			if len(a.drain()) != 0 {
				t.Error("an address that came, or was gone before, raised an event")
			}
		}

		// It is no more than a hint.
		must(t, c.Disconnect())
		a.next(rdmacm.Disconnected)
		must(t, s.Disconnect())
		b.next(rdmacm.Disconnected)
		b.close(c)
		a.close(s, l, l4, l6)
	})
}

// A ConnectRequest may be followed by events of the ID's device. They migrate with it when its listener does.
func TestMigrateTakesEventsOfRequests(t *testing.T) {
	bubble(t, func(t *testing.T, a, b *end) {
		l := a.listen(rdmacm.TCP)
		c := b.resolve(rdmacm.TCP, v4A+":7471")
		must(t, c.Connect(nil))
		synctest.Wait()
		a.fake.addrs = a.fake.addrs[1:]
		a.fake.event(verbs.EventGIDChange, 1)
		a.fake.event(verbs.EventDeviceFatal, 0)
		to, err := rdmacm.CreateEventChannel(a.dev)
		must(t, err)
		must(t, l.Migrate(t.Context(), to))
		a.none()
		e := &end{T: t, ch: to}
		events := e.drain()
		var request *rdmacm.ID
		for _, ev := range events {
			if ev.Type == rdmacm.ConnectRequest {
				request = ev.ID
			}
		}
		want := []rdmacm.EventType{rdmacm.ConnectRequest, rdmacm.AddrChange, rdmacm.DeviceRemoval}
		if got := types(events, request); !slices.Equal(got, want) {
			t.Errorf("events of the request: %v, want %v", got, want)
		}
		must(t, request.Destroy())
		must(t, l.Destroy())
		must(t, to.Destroy())
		must(t, c.Destroy())
	})
}
