package rpcrdma_test

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/impair"
	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/rdmatransport"
	"github.com/softrnic/softrnic/stack/netstack"
	"github.com/softrnic/softrnic/tests/stacktest"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
	"github.com/softrnic/softrnic/verbs/ulp/rpcrdma"
)

// TestUnreadAnswers: a client that takes no answers, to calls or to what is none, is not served
// without limit, and loses its connection. Time is virtual.
func TestUnreadAnswers(t *testing.T) {
	call := (&rpcrdma.Header{XID: 7, Version: 1, Credits: 1}).Append(nil)
	for name, b := range map[string][]byte{
		"calls":         append(call, message(7, 0)...),
		"wrong headers": (&rpcrdma.Header{XID: 7, Version: 2}).Append(nil),
		"wrong chunks":  (&rpcrdma.Header{XID: 7, Version: 1, Type: rpcrdma.NoMsg}).Append(nil),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				to, from, _ := cuttable(t)
				const credits = 4
				l := serve(t, to, netip.MustParseAddr("10.0.0.1"), &rpcrdma.Config{Credits: credits}, &disk{})
				r := attack(t, from, l, verbs.RoCEv2, private)
				copy(r.send.Buf(), b)
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
				defer cancel()
				sent, wcs := 0, [1]verbs.WC{}
				for ; sent < 1000; sent++ {
					ok(t, r.conn.QP().PostSend(&verbs.SendWR{Opcode: verbs.Send, SGList: []verbs.SGE{r.send.SGE(0, len(b))}}))
					if _, err := r.conn.SendCQ().Wait(ctx, wcs[:]); err != nil || wcs[0].Status != verbs.WCSuccess {
						break
					}
				}
				if sent > rogueReceives+2*credits { // the client takes some answers
					t.Errorf("%d messages were received", sent)
				}
				synctest.Wait()
				if n := l.Stats().Connections; n != 0 {
					t.Errorf("%d connections are left", n)
				}
			})
		})
	}
}

// TestFullMemory: the memory of a connection's calls is bounded by Config.Memory, whatever the
// chunks of the calls promise, and calls that need none are not more than the credits.
func TestFullMemory(t *testing.T) {
	overAll(t, func(t *testing.T, m stacktest.Medium, transport verbs.Transport) {
		to, from, at := devices(t, m)
		const credits, message = 64, 1 << 20
		cfg := &rpcrdma.Config{Transport: transport, Binding: rpcrdma.NFS, Credits: credits, MaxMessage: message, Memory: 2 * message}
		release, entered := make(chan struct{}), make(chan struct{}, credits)
		l := serve(t, to, at, cfg, rpcrdma.HandlerFunc(func(ctx context.Context, c *rpcrdma.Call) []byte {
			entered <- struct{}{}
			select {
			case <-release:
			case <-ctx.Done():
			}
			return done(c.Message)
		}))
		r := attack(t, from, l, transport, private)
		seg := r.segment(0, 4)
		seg.Length = 1<<32 - 1
		h := &rpcrdma.Header{Version: 1, Credits: 1, Write: [][]rpcrdma.Segment{{seg, seg}}, Reply: []rpcrdma.Segment{seg}}
		for xid := range uint32(rogueReceives) {
			h.XID = xid
			r.sends(append(h.Append(nil), readCall(xid, 0, 1<<30)...))
		}
		<-entered // with all of the memory
		synchronize(t, from, l, transport)
		if n := len(entered); n != 0 {
			t.Errorf("%d further calls were served", n)
		}
		for until := time.Now().Add(20 * time.Second); l.Stats().Waited == 0; time.Sleep(time.Millisecond) {
			if time.Now().After(until) {
				t.Fatal("no call waits for memory")
			}
		}
		close(release)
		for range rogueReceives {
			if got, _, wc := r.receives(); got == nil {
				t.Fatal(wc.Err())
			}
		}
	})
}

// TestShares: the clients at one address, which hold connections and memory of calls that do not
// end, leave others theirs.
func TestShares(t *testing.T) {
	for _, transport := range []verbs.Transport{verbs.RoCEv2, verbs.IWARP} {
		t.Run(transport.String(), func(t *testing.T) {
			lan := new(pipe.Switch)
			to, from, other := open(t, lan.Port(), "10.0.0.1/24"), open(t, lan.Port(), "10.0.0.2/24"), open(t, lan.Port(), "10.0.0.3/24")
			const message = 1 << 20
			cfg := &rpcrdma.Config{Transport: transport, Binding: rpcrdma.NFS, MaxMessage: message, Memory: 8 * message, MaxConns: 8}
			hostile := netip.MustParseAddr("10.0.0.2")
			release, entered := make(chan struct{}), make(chan struct{}, 64)
			l := serve(t, to, netip.MustParseAddr("10.0.0.1"), cfg, rpcrdma.HandlerFunc(func(ctx context.Context, c *rpcrdma.Call) []byte {
				if c.PeerAddr.Addr() == hostile {
					entered <- struct{}{}
					select {
					case <-release:
					case <-ctx.Done():
					}
				}
				return done(c.Message)
			}))
			defer close(release)
			for range 12 { // silent: the oldest end
				attack(t, from, l, transport, private)
			}
			r := attack(t, from, l, transport, private)
			seg := r.segment(0, 4)
			seg.Length = message
			for xid := range uint32(8) { // each could have a reply of 1 MiB
				h := &rpcrdma.Header{Version: 1, Credits: 1, XID: xid, Write: [][]rpcrdma.Segment{{seg}}}
				r.sends(append(h.Append(nil), readCall(xid, 0, message)...))
			}
			for range 4 {
				<-entered
			}
			b := attack(t, other, l, transport, private)
			seg = b.segment(0, 4)
			seg.Length = message
			for xid := range uint32(4) {
				b.sends(append((&rpcrdma.Header{Version: 1, Credits: 1, XID: xid, Write: [][]rpcrdma.Segment{{seg}}}).Append(nil),
					readCall(xid, 0, message)...))
				if got, _, wc := b.receives(); got == nil {
					t.Fatal(wc.Err())
				}
			}
			if n := len(entered); n > 0 {
				t.Errorf("%d calls more than half of the memory are served", n)
			}
			if s := l.Stats().Admission; s.Displaced != 9 || s.Refused != 0 {
				t.Errorf("%+v", s)
			}
		})
	}
}

// open opens a device on a link.
func open(t *testing.T, l link.Link, addr string) *verbs.Device {
	t.Helper()
	host, err := netstack.New(l, &netstack.Config{Addrs: []string{addr}})
	ok(t, err)
	dev, err := rdmatransport.Open(host, nil)
	ok(t, err)
	t.Cleanup(func() {
		dev.Close()
		host.Close()
	})
	return dev
}

// synchronize waits until the server has handled what other connections have sent before, by a
// connection of its own.
func synchronize(t *testing.T, from *verbs.Device, l *rpcrdma.Listener, transport verbs.Transport) {
	t.Helper()
	r := attack(t, from, l, transport, private)
	r.sends((&rpcrdma.Header{XID: 7, Version: 2}).Append(nil))
	if got, _, wc := r.receives(); got == nil {
		t.Fatal(wc.Err())
	}
}

// cuttable opens two RoCE devices on a network of their own. While cut is set, all packets are
// lost.
func cuttable(t *testing.T) (to, from *verbs.Device, cut *atomic.Bool) {
	t.Helper()
	cut = new(atomic.Bool)
	lost := impair.Direction{Rules: []impair.Rule{{Match: func([]byte) bool { return cut.Load() }, Count: -1}}}
	lan := new(pipe.Switch)
	wire, err := impair.New(lan.Port(), &impair.Config{In: lost, Out: lost})
	ok(t, err)
	return open(t, lan.Port(), "10.0.0.1/24"), open(t, wire, "10.0.0.2/24"), cut
}

// TestSilentClient: a client that sends nothing keeps its connection, until it is gone. Time is
// virtual.
func TestSilentClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		to, from, cut := cuttable(t)
		l := serve(t, to, netip.MustParseAddr("10.0.0.1"), nil, &disk{})
		client, err := rpcrdma.Dial(t.Context(), from, l.Addr().String(), nil)
		ok(t, err)
		time.Sleep(time.Hour)
		if _, err := client.Call(t.Context(), message(1, 0)); err != nil {
			t.Error("after an hour:", err)
		}
		cut.Store(true)
		began := time.Now()
		for l.Stats().Connections > 0 && time.Since(began) < time.Hour {
			time.Sleep(time.Second)
		}
		if took := time.Since(began); took > 3*time.Minute {
			t.Errorf("the connection is there for %v", took)
		}
		ok(t, client.Close())
	})
}

// TestHalfOpen: clients that do not complete their connections leave room for others. Time is
// virtual.
func TestHalfOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		to, from, _ := cuttable(t)
		const most = 8
		l := serve(t, to, netip.MustParseAddr("10.0.0.1"), &rpcrdma.Config{MaxConns: most}, &disk{})
		for i := range uint32(most) {
			id, err := rdmacm.CreateSyncID(rdmacm.TCP, from)
			ok(t, err)
			defer id.Close()
			ok(t, id.ResolveAddr(t.Context(), netip.AddrPort{}, l.Addr()))
			ok(t, id.ResolveRoute(t.Context()))
			ok(t, id.Connect(t.Context(), &rdmacm.ConnParam{QPNum: 100 + i})) // without Establish
		}
		synctest.Wait() // those that make room have ended
		client, err := rpcrdma.Dial(t.Context(), from, l.Addr().String(), nil)
		ok(t, err)
		_, err = client.Call(t.Context(), message(1, 0))
		ok(t, err)
		ok(t, client.Close())
		time.Sleep(time.Minute)
		synctest.Wait()
		if s := l.Stats().Admission; s.Displaced != most/2+1 {
			t.Errorf("%+v", s)
		}
		if n := to.Resources().QP; n > 1 {
			t.Errorf("%d QPs are left", n)
		}
	})
}

// TestWaitingHangsUp: a client that waits for a place and hangs up leaves its place in the queue to
// the next one. Time is virtual.
func TestWaitingHangsUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		to, from, _ := cuttable(t)
		release, entered := make(chan struct{}), make(chan struct{})
		var first sync.Once
		hold := func(_ context.Context, c *rpcrdma.Call) []byte {
			first.Do(func() {
				close(entered)
				<-release // although its connection ends
			})
			return done(c.Message)
		}
		// One place may be waited for, by one.
		l := serve(t, to, netip.MustParseAddr("10.0.0.1"), &rpcrdma.Config{MaxConns: 2}, rpcrdma.HandlerFunc(hold))
		stranger := dial(t, from, l, nil)
		go func() { _, _ = stranger.Call(t.Context(), message(1, 0)) }()
		<-entered
		dial(t, from, l, nil) // the stranger leaves for it, when its call has returned
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := rpcrdma.Dial(ctx, from, l.Addr().String(), nil); !errors.Is(err, context.DeadlineExceeded) {
			t.Error("it does not wait: ", err)
		}
		synctest.Wait()
		time.AfterFunc(time.Second, func() { close(release) })
		dial(t, from, l, nil)
	})
}
