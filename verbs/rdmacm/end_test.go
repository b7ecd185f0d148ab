package rdmacm_test

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// end is one side of a test: a device and an event channel on it.
type end struct {
	*testing.T
	dev  *verbs.Device
	fake *device
	ch   *rdmacm.EventChannel
	kept []*rdmacm.Event // see drainFor
}

func newEnd(t *testing.T, l *lan, name string, addrs ...string) *end {
	dev, fake := l.open(t, name, addrs...)
	ch, err := rdmacm.CreateEventChannel(dev)
	must(t, err)
	return &end{T: t, dev: dev, fake: fake, ch: ch}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// wantErr fails the test unless err wraps want.
func wantErr(t testing.TB, err error, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("error %v, want %v", err, want)
	}
}

func (e *end) id(space rdmacm.PortSpace) *rdmacm.ID {
	e.Helper()
	id, err := e.ch.CreateID(space, e)
	must(e, err)
	return id
}

// next returns the next event, acknowledged. It fails the test if the event has another type.
func next(t *testing.T, ch *rdmacm.EventChannel, want rdmacm.EventType) *rdmacm.Event {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	ev, err := ch.GetEvent(ctx)
	must(t, err)
	if ev.Type != want {
		t.Fatalf("event %v (status %d), want %v", ev.Type, ev.Status, want)
	}
	must(t, ev.Ack())
	return ev
}

func (e *end) next(want rdmacm.EventType) *rdmacm.Event { e.Helper(); return next(e.T, e.ch, want) }

// noEvent fails the test if an event arrives within a minute.
func (e *end) noEvent() {
	e.Helper()
	ctx, cancel := context.WithTimeout(e.Context(), time.Minute)
	defer cancel()
	if ev, err := e.ch.GetEvent(ctx); err == nil {
		e.Fatalf("event %v, want none", ev.Type)
	}
}

// listen listens on port 7471 of all addresses.
func (e *end) listen(space rdmacm.PortSpace) *rdmacm.ID {
	e.Helper()
	id := e.id(space)
	must(e, id.Bind(netip.MustParseAddrPort("[::]:7471")))
	must(e, id.Listen(2))
	return id
}

// resolve resolves the address of another end and the route to it.
func (e *end) resolve(space rdmacm.PortSpace, to string) *rdmacm.ID {
	e.Helper()
	id := e.id(space)
	must(e, id.ResolveAddr(netip.AddrPort{}, netip.MustParseAddrPort(to), 2*time.Second))
	e.next(rdmacm.AddrResolved)
	must(e, id.ResolveRoute())
	e.next(rdmacm.RouteResolved)
	return id
}

func qp(t *testing.T, id *rdmacm.ID) *verbs.QP {
	t.Helper()
	must(t, id.CreateQP(nil, &verbs.QPInitAttr{Cap: verbs.QPCap{MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 1, MaxRecvSGE: 1}}))
	return id.QP()
}

// close closes IDs, the channel and the device. It fails the test if connections or listeners
// remain.
func (e *end) close(ids ...*rdmacm.ID) {
	e.Helper()
	for _, id := range ids {
		must(e, id.Close())
	}
	must(e, e.ch.Close())
	must(e, e.dev.Close())
	synctest.Wait() // requests that were in flight when their listener was closed
	e.fake.mu.Lock()
	defer e.fake.mu.Unlock()
	if e.fake.conns != 0 || len(e.fake.listeners) != 0 {
		e.Errorf("%s is left with %d connections and %d listeners", e.fake.name, e.fake.conns, len(e.fake.listeners))
	}
}

const (
	v4A, v4B = "10.0.0.1", "10.0.0.2"
	v6A, v6B = "fd00::1", "fd00::2"
)

// bubble runs a test of two ends in virtual time.
func bubble(t *testing.T, f func(t *testing.T, a, b *end)) {
	synctest.Test(t, func(t *testing.T) {
		l := newLAN()
		f(t, newEnd(t, l, "a", v4A, v6A), newEnd(t, l, "b", v4B, v6B))
	})
}

// connected establishes a connection from b to a.
func connected(a, b *end) (listener, server, client *rdmacm.ID) {
	a.Helper()
	listener = a.listen(rdmacm.TCP)
	client = b.resolve(rdmacm.TCP, v4A+":7471")
	qp(b.T, client)
	must(b, client.Connect(nil))
	server = a.next(rdmacm.ConnectRequest).ID
	qp(a.T, server)
	must(a, server.Accept(nil))
	b.next(rdmacm.Established)
	a.next(rdmacm.Established)
	return listener, server, client
}
