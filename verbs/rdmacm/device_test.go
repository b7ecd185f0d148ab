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

// drain takes and acknowledges the events in a channel.
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

// types returns the types of an ID's events.
func types(events []*rdmacm.Event, id *rdmacm.ID) (t []rdmacm.EventType) {
	for _, ev := range events {
		if ev.ID == id {
			t = append(t, ev.Type)
		}
	}
	return t
}

// When a device fails, each of its IDs gets DeviceRemoval once, in any state. An ID without a
// device does not. Peers get the same messages as from Close, posted work requests are flushed,
// and the ID can only be closed.
func TestDeviceRemoval(t *testing.T) {
	bubble(t, func(t *testing.T, a, b *end) {
		l, s, c := connected(a, b)
		must(t, s.QP().PostRecv(&verbs.RecvWR{WRID: 9}))
		unanswered := b.resolve(rdmacm.TCP, v4A+":7471")
		must(t, unanswered.Connect(nil))
		request := a.next(rdmacm.ConnectRequest).ID
		idle, bound, wildcard, resolved := a.id(rdmacm.TCP), a.id(rdmacm.TCP), a.id(rdmacm.TCP), a.resolve(rdmacm.TCP, v4B+":1")
		must(t, bound.Bind(netip.MustParseAddrPort(v4A+":0")))
		must(t, wildcard.Bind(netip.AddrPort{}))
		cancelled := make(chan struct{})
		a.fake.resolve = func(ctx context.Context, _ rdmacm.Route) error { <-ctx.Done(); close(cancelled); return ctx.Err() }
		resolving := a.id(rdmacm.TCP)
		must(t, resolving.ResolveAddr(netip.MustParseAddrPort(v4A+":0"), netip.MustParseAddrPort(v4B+":1"), 0))

		undelivered := b.resolve(rdmacm.TCP, v4A+":7471")
		must(t, undelivered.Connect(nil))
		synctest.Wait() // its request is in a's channel

		a.fake.event(verbs.EventDeviceFatal, 0)
		a.fake.event(verbs.EventDeviceFatal, 0)
		<-cancelled // the resolution of the peer's address has ended
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
			t.Fatalf("the undelivered request is not followed by DEVICE_REMOVAL")
		}
		if err := events[len(events)-1].Err(); err == nil {
			t.Error("DEVICE_REMOVAL is not a failure")
		}
		for _, id := range []*rdmacm.ID{l, s, request, bound, resolved, resolving} {
			wantErr(t, id.SetTOS(1), syscall.ENODEV)
		}
		wantErr(t, s.Disconnect(), syscall.ENODEV)
		wantErr(t, request.Accept(nil), syscall.ENODEV)
		wantErr(t, resolved.Connect(nil), syscall.ENODEV)
		<-s.Done()
		var wcs [2]verbs.WC
		if n, _ := s.QP().RecvCQ().Poll(wcs[:]); n != 1 || wcs[0].WRID != 9 || wcs[0].Status != verbs.WCWRFlushErr {
			t.Errorf("%d completions, %+v; want the receive flushed", n, wcs[0])
		}

		// The events at the peers.
		for _, want := range []struct {
			id *rdmacm.ID
			t  rdmacm.EventType
		}{{c, rdmacm.Disconnected}, {unanswered, rdmacm.Rejected}, {undelivered, rdmacm.Rejected}} {
			if ev := b.drainFor(want.id); ev == nil || ev.Type != want.t {
				t.Errorf("the peer has %v, want %v", ev, want.t)
			}
		}

		// The device accepts no new calls.
		wantErr(t, idle.Bind(netip.MustParseAddrPort(v4A+":0")), syscall.ENODEV)
		wantErr(t, wildcard.Listen(0), syscall.ENODEV)
		a.fake.resolve = nil
		must(t, wildcard.ResolveAddr(netip.AddrPort{}, netip.MustParseAddrPort(v4B+":1"), 0))
		if ev := a.next(rdmacm.AddrError); ev.Status != -int(syscall.ENODEV) {
			t.Errorf("ADDR_ERROR with status %d", ev.Status)
		}

		must(t, c.Disconnect())
		b.close(c, unanswered, undelivered)
		a.close(l, s, request, events[i].ID, idle, bound, wildcard, resolved, resolving)
	})
}

// A QP is flushed before DeviceRemoval reports the end of its connection. A poll after the event
// therefore returns the flushed work requests.
func TestDeviceRemovalAfterFlush(t *testing.T) {
	bubble(t, func(t *testing.T, a, b *end) {
		l, s, c := connected(a, b)
		must(t, l.Close())
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
			case <-s.Done():
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

// drainFor returns the first event of an ID. It keeps earlier events of other IDs for later calls.
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

// A listener on several devices gets DeviceRemoval with the last of them, and serves the others
// until then.
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
		must(t, s.Close())
		must(t, l.Close())
		must(t, ch.Close())
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
		wantErr(t, l.Listen(0), verbs.ErrNotSupported)
		f1.event(verbs.EventDeviceFatal, 0)
		e := &end{T: t, ch: ch}
		e.noEvent()
		must(t, l.SetTransports(verbs.RoCEv2))
		must(t, l.Close())
	})
}

// The memory of a closed ID can be garbage collected while its device stays open.
func TestClosedIDIsFreed(t *testing.T) {
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
		must(t, id.Close())
		return weak.Make(id)
	}()
	runtime.GC()
	if freed.Value() != nil {
		t.Error("the closed ID is still referenced")
	}
	must(t, keeps.Close())
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
		must(t, l.Close())
		must(t, a.ch.Close())
	})
}

// Waiting calls return when the device fails, and later calls return immediately.
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
				wantErr(t, err, syscall.ENODEV)
			})
			work.Go(func() {
				_, err := listener.Accept(t.Context())
				wantErr(t, err, syscall.ENODEV)
			})
		}
		dialled, err := rdmacm.Listen(b, ":7471", nil)
		must(t, err)
		work.Go(func() {
			_, err := rdmacm.Dial(t.Context(), a, v4B+":7471", nil) // no accept follows
			wantErr(t, err, syscall.ENODEV)
		})
		synctest.Wait()
		l.devs[0].event(verbs.EventDeviceFatal, 0)
		work.Wait()
		_, err = sync1.GetRequest(t.Context())
		wantErr(t, err, syscall.ENODEV)
		_, err = listener.Accept(t.Context())
		wantErr(t, err, syscall.ENODEV)
		must(t, sync1.Close())
		must(t, listener.Close())
		_, err = listener.Accept(t.Context())
		if err == nil {
			t.Error("a closed listener accepts")
		}
		must(t, dialled.Close())
		checkEmpty(t, a, b)
	})
}

// An ID gets AddrChange each time its local address is removed from the device. At most one of
// these events is in the channel at a time. IDs with other addresses, or without one, get no event.
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
					t.Errorf("ADDR_CHANGE is the error %v, want none", ev.Err())
				}
			}
			set(both[1]) // another address has changed
			set(both...)
			if len(a.drain()) != 0 {
				t.Error("adding an address, or removing it again, raised an event")
			}
		}

		// The event is only a hint: the connection still works.
		must(t, c.Disconnect())
		a.next(rdmacm.Disconnected)
		must(t, s.Disconnect())
		b.next(rdmacm.Disconnected)
		b.close(c)
		a.close(s, l, l4, l6)
	})
}

// A ConnectRequest may be followed by events of the ID's device. They migrate with it when its
// listener does.
func TestMigrateMovesRequestEvents(t *testing.T) {
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
		a.noEvent()
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
		must(t, request.Close())
		must(t, l.Close())
		must(t, to.Close())
		must(t, c.Close())
	})
}
