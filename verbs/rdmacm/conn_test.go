package rdmacm_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

func pair(t *testing.T) (a, b *verbs.Device, l *lan) {
	l = newLAN()
	a, _ = l.open(t, "a", v4A, v6A)
	b, _ = l.open(t, "b", v4B, v6B)
	return a, b, l
}

// checkEmpty fails the test if a device still has connections or verbs objects.
func checkEmpty(t *testing.T, devs ...*verbs.Device) {
	t.Helper()
	for _, d := range devs {
		must(t, d.Close())
		synctest.Wait() // requests that were in flight when their listener was closed
		f := d.Provider().(*device)
		f.mu.Lock()
		if f.conns != 0 || len(f.listeners) != 0 {
			t.Errorf("%s is left with %d connections, %d listeners", f.name, f.conns, len(f.listeners))
		}
		f.mu.Unlock()
	}
}

func TestSyncID(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		a, b, _ := pair(t)
		l, err := rdmacm.CreateSyncID(rdmacm.TCP, a)
		must(t, err)
		must(t, l.Bind(netip.MustParseAddrPort("0.0.0.0:7471")))
		must(t, l.Listen(0))
		var work sync.WaitGroup
		work.Go(func() {
			s, err := l.GetRequest(ctx)
			must(t, err)
			if p := s.Event().Param; string(p.PrivateData) != "hello" {
				t.Errorf("request with %q", p.PrivateData)
			}
			qp(t, s.ID)
			must(t, s.Accept(ctx, nil))
			<-s.Done()
			must(t, s.ID.Disconnect())
			must(t, s.Close())
		})
		c, err := rdmacm.CreateSyncID(rdmacm.TCP, b)
		must(t, err)
		must(t, c.ResolveHost(ctx, netip.AddrPort{}, v4A+":7471"))
		must(t, c.ResolveRoute(ctx))
		qp(t, c.ID)
		must(t, c.Connect(ctx, &rdmacm.ConnParam{PrivateData: []byte("hello")}))
		must(t, c.Disconnect(ctx))
		work.Wait()
		must(t, c.Close())
		must(t, l.Close())
		checkEmpty(t, a, b)
	})
}

// A waiting call returns when its context ends, and when the ID is closed.
func TestSyncIDInterrupted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, l := pair(t)
		l.devs[0].resolve = func(ctx context.Context, _ rdmacm.Route) error { <-ctx.Done(); return ctx.Err() }
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		id, err := rdmacm.CreateSyncID(rdmacm.TCP, a)
		must(t, err)
		wantErr(t, id.ResolveAddr(ctx, netip.AddrPort{}, netip.MustParseAddrPort(v4B+":1")), context.DeadlineExceeded)
		must(t, id.Close())

		lis, err := rdmacm.CreateSyncID(rdmacm.TCP, b)
		must(t, err)
		must(t, lis.Listen(0))
		done := make(chan error)
		go func() { _, err := lis.GetRequest(context.Background()); done <- err }()
		synctest.Wait()
		must(t, lis.Close())
		wantErr(t, <-done, verbs.ErrClosed)
		wantErr(t, lis.Close(), verbs.ErrClosed)
		checkEmpty(t, a, b)
	})
}

// An ID can become a SyncID, and an ID again.
func TestSyncIDMigrate(t *testing.T) {
	bubble(t, func(t *testing.T, a, b *end) {
		l, s, c := connected(a, b)
		must(t, c.Disconnect())
		synctest.Wait()
		sync, err := s.MigrateToSync(t.Context())
		must(t, err)
		a.noEvent()
		id, err := sync.Migrate(t.Context(), a.ch)
		must(t, err)
		a.next(rdmacm.Disconnected)
		b.close(c)
		a.close(id, l)
	})
}

func TestDialListen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		a, b, _ := pair(t)
		prepared := 0
		l, err := rdmacm.Listen(a, ":0", &rdmacm.Config{PrivateData: []byte("served"), Prepare: func(c *rdmacm.Conn) error {
			prepared++
			return c.QP().PostRecv(&verbs.RecvWR{WRID: 9})
		}})
		must(t, err)
		for _, host := range []string{v4A, v6A} {
			addr := netip.AddrPortFrom(netip.MustParseAddr(host), l.Addr().Port())
			var s *rdmacm.Conn
			var work sync.WaitGroup
			work.Go(func() {
				c, err := l.Accept(ctx)
				must(t, err)
				s = c
			})
			c, err := rdmacm.Dial(ctx, b, addr.String(), &rdmacm.Config{PrivateData: []byte("called")})
			must(t, err)
			work.Wait()
			if string(s.Peer().PrivateData) != "called" || string(c.Peer().PrivateData) != "served" {
				t.Errorf("private data %q and %q", s.Peer().PrivateData, c.Peer().PrivateData)
			}
			if s.PeerAddr() != c.LocalAddr() || c.PeerAddr() != addr || s.LocalAddr() != addr {
				t.Errorf("addresses %v-%v and %v-%v", s.LocalAddr(), s.PeerAddr(), c.LocalAddr(), c.PeerAddr())
			}
			if s.QP().State() != verbs.StateRTS || c.QP().State() != verbs.StateRTS {
				t.Errorf("QPs in %v and %v, want RTS", s.QP().State(), c.QP().State())
			}
			start := time.Now()
			must(t, c.Close())
			must(t, c.Close())
			if took := time.Since(start); took != 0 {
				t.Errorf("Close took %v, although the peer answers immediately", took)
			}
			<-s.Done()
			var wcs [2]verbs.WC
			if n, _ := s.RecvCQ().Poll(wcs[:]); n != 1 || wcs[0].WRID != 9 || wcs[0].Status != verbs.WCWRFlushErr {
				t.Errorf("%d completions, %+v: want the receive flushed", n, wcs[0])
			}
			must(t, s.Close())
		}
		if prepared != 2 {
			t.Errorf("Prepare ran %d times, want 2", prepared)
		}
		must(t, l.Close())
		_, err = l.Accept(ctx)
		wantErr(t, err, verbs.ErrClosed)
		checkEmpty(t, a, b)
	})
}

// TestCloseContext: CloseContext waits for the peer's confirmation until its context ends, and then
// closes the objects of the Conn nevertheless. Close waits for two seconds.
func TestCloseContext(t *testing.T) {
	for name, c := range map[string]struct {
		answers bool
		close   func(t *testing.T, c *rdmacm.Conn) error
		want    time.Duration
	}{
		"the peer answers": {true, func(t *testing.T, c *rdmacm.Conn) error { return c.CloseContext(t.Context()) }, 0},
		"a deadline": {false, func(t *testing.T, c *rdmacm.Conn) error {
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			return c.CloseContext(ctx)
		}, 100 * time.Millisecond},
		"a context that has ended": {false, func(t *testing.T, c *rdmacm.Conn) error {
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			return c.CloseContext(ctx)
		}, 0},
		"Close": {false, func(t *testing.T, c *rdmacm.Conn) error { return c.Close() }, 2 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, b, lan := pair(t)
				l, err := rdmacm.Listen(a, v4A+":7471", nil)
				must(t, err)
				var s *rdmacm.Conn
				var accepted sync.WaitGroup
				accepted.Go(func() {
					c, err := l.Accept(t.Context())
					must(t, err)
					s = c
				})
				conn, err := rdmacm.Dial(t.Context(), b, v4A+":7471", nil)
				must(t, err)
				accepted.Wait()
				lan.devs[0].loseDREQ = !c.answers
				start := time.Now()
				must(t, c.close(t, conn))
				if took := time.Since(start); took != c.want {
					t.Errorf("took %v, want %v", took, c.want)
				}
				if r := b.Resources(); r.QP+r.CQ+r.CompChannel != 0 {
					t.Errorf("objects are left: %+v", r)
				}
				must(t, conn.Close())
				if took := time.Since(start); took != c.want {
					t.Errorf("a second Close waited until %v, want %v", took, c.want)
				}
				must(t, s.Close())
				must(t, l.Close())
			})
		})
	}
}

// An ephemeral port in use is replaced if the application does not know it yet. A port that the
// application chose is not.
func TestEphemeralPortInUseIsReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		a, b, lan := pair(t)
		server, client := lan.devs[0], lan.devs[1]
		server.busy = 3
		l, err := rdmacm.Listen(a, ":0", nil)
		must(t, err)
		if server.busy != 0 {
			t.Errorf("%d ports were not tried", server.busy)
		}
		to := netip.AddrPortFrom(netip.MustParseAddr(v4A), l.Addr().Port()).String()
		var work sync.WaitGroup
		work.Go(func() {
			c, err := l.Accept(ctx)
			must(t, err)
			<-c.Done()
			must(t, c.Close())
		})
		client.busy = 3
		c, err := rdmacm.Dial(ctx, b, to, nil)
		must(t, err)
		if own := c.LocalAddr().Port(); own < 32768 {
			t.Errorf("local port %d", own)
		}
		must(t, c.Close())
		work.Wait()
		must(t, l.Close())

		server.busy = 1
		_, err = rdmacm.Listen(a, ":7471", nil)
		wantErr(t, err, syscall.EADDRINUSE)
		client.busy = 1
		_, err = rdmacm.Dial(ctx, b, to, &rdmacm.Config{LocalAddr: netip.MustParseAddrPort(v4B + ":4000")})
		wantErr(t, err, syscall.EADDRINUSE)
		server.busy = 1000
		_, err = rdmacm.Listen(a, ":0", nil)
		wantErr(t, err, syscall.EADDRINUSE)
		server.busy = 1
		id, err := rdmacm.CreateSyncID(rdmacm.TCP, a)
		must(t, err)
		// The application may have announced the port.
		must(t, id.Bind(netip.MustParseAddrPort(v4A+":0")))
		wantErr(t, id.Listen(1), syscall.EADDRINUSE)
		must(t, id.Close())

		// No port is still reserved.
		ch, err := rdmacm.CreateEventChannel(a)
		must(t, err)
		var ids []*rdmacm.ID
		for range 60999 - 32768 + 1 {
			id, err := ch.CreateID(rdmacm.TCP, nil)
			must(t, err)
			must(t, id.Bind(netip.AddrPort{}))
			ids = append(ids, id)
		}
		for _, id := range ids {
			must(t, id.Close())
		}
		must(t, ch.Close())
		checkEmpty(t, a, b)
	})
}

// Request returns requests one by one, to be accepted or rejected.
func TestRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		a, b, _ := pair(t)
		l, err := rdmacm.Listen(a, v4A+":7471", nil)
		must(t, err)
		_, err = rdmacm.Listen(a, ":7471", nil)
		wantErr(t, err, syscall.EADDRNOTAVAIL)
		var work sync.WaitGroup
		work.Go(func() {
			for range 2 {
				r, err := l.Request(ctx)
				must(t, err)
				if string(r.Peer().PrivateData) != "please" {
					must(t, r.Reject([]byte("say please")))
					continue
				}
				c, err := r.Accept(ctx, &rdmacm.Config{PrivateData: []byte("welcome")})
				must(t, err)
				<-c.Done()
				must(t, c.Close())
			}
		})
		_, err = rdmacm.Dial(ctx, b, v4A+":7471", nil)
		var why *rdmacm.EventError
		if !errors.As(err, &why) || string(why.PrivateData) != "say please" {
			t.Errorf("error %v", err)
		}
		wantErr(t, err, syscall.ECONNREFUSED)
		c, err := rdmacm.Dial(ctx, b, v4A+":7471", &rdmacm.Config{PrivateData: []byte("please")})
		must(t, err)
		must(t, c.Close())
		work.Wait()
		must(t, l.Close())
		checkEmpty(t, a, b)
	})
}

// TestTransportAndTransports: a Config with both is refused, and the error names both values.
func TestTransportAndTransports(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, _ := pair(t)
		bad := &rdmacm.Config{Transport: verbs.IWARP, Transports: []verbs.Transport{verbs.RoCEv2}}
		refused := func(err error) {
			t.Helper()
			wantErr(t, err, verbs.ErrInvalid)
			if want := "Transport iWARP and Transports [RoCEv2]"; !strings.Contains(err.Error(), want) {
				t.Errorf("%v, want %q", err, want)
			}
		}
		_, err := rdmacm.Listen(a, ":7471", bad)
		refused(err)
		_, err = rdmacm.Dial(t.Context(), b, v4A+":7471", bad)
		refused(err)

		l, err := rdmacm.Listen(a, ":7471", &rdmacm.Config{Transports: []verbs.Transport{verbs.RoCEv2}})
		must(t, err)
		dialled := make(chan error, 1)
		go func() {
			_, err := rdmacm.Dial(t.Context(), b, v4A+":7471", nil)
			dialled <- err
		}()
		r, err := l.Request(t.Context())
		must(t, err)
		_, err = r.Accept(t.Context(), bad)
		refused(err)
		wantErr(t, <-dialled, syscall.ECONNREFUSED)
		must(t, l.Close())
		checkEmpty(t, a, b)
	})
}

func TestDialFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, _ := pair(t)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := rdmacm.Dial(ctx, b, "10.0.0.3:1", nil)
		wantErr(t, err, context.DeadlineExceeded)
		_, err = rdmacm.Dial(t.Context(), b, "10.0.0.3:1", nil) // without a deadline of its own
		wantErr(t, err, syscall.ETIMEDOUT)
		_, err = rdmacm.Dial(t.Context(), b, v4A+":1", nil)
		wantErr(t, err, syscall.ECONNREFUSED)
		_, err = rdmacm.Dial(t.Context(), b, v4A, nil)
		wantErr(t, err, syscall.EINVAL)
		_, err = rdmacm.Dial(t.Context(), b, v4A+":1", &rdmacm.Config{Prepare: func(*rdmacm.Conn) error { return syscall.EIO }})
		wantErr(t, err, syscall.EIO)
		checkEmpty(t, a, b)
	})
}

// A peer that never completes its handshake does not delay others, and Close closes its
// connection.
func TestAcceptIsNotDelayed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, lan := pair(t)
		l, err := rdmacm.Listen(a, ":7471", nil)
		must(t, err)
		lan.loseRTU = true
		var got *rdmacm.Conn
		var work sync.WaitGroup
		work.Go(func() {
			c, err := l.Accept(t.Context())
			must(t, err)
			got = c
		})
		slow, err := rdmacm.Dial(t.Context(), b, v4A+":7471", nil)
		must(t, err)
		synctest.Wait()
		lan.loseRTU = false
		c, err := rdmacm.Dial(t.Context(), b, v4A+":7471", nil)
		must(t, err)
		work.Wait()
		if got.PeerAddr() != c.LocalAddr() {
			t.Errorf("accepted %v, want %v", got.PeerAddr(), c.LocalAddr())
		}
		must(t, l.Close())
		must(t, slow.Close())
		must(t, c.Close())
		must(t, got.Close())
		checkEmpty(t, a, b)
	})
}

// Many goroutines connect, disconnect, migrate and close at random; no call hangs, and no object
// is left.
func TestConcurrentCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const peers, rounds = 8, 40
		a, b, _ := pair(t)
		ch, err := rdmacm.CreateEventChannel(a)
		must(t, err)
		l, err := ch.CreateID(rdmacm.TCP, nil)
		must(t, err)
		must(t, l.Bind(netip.MustParseAddrPort("[::]:7471")))
		must(t, l.Listen(peers))
		ctx, stop := context.WithCancel(t.Context())
		var server, clients sync.WaitGroup
		for range 3 { // on one channel: each may get events of the same ID
			server.Go(func() {
				for {
					ev, err := ch.GetEvent(ctx)
					if err != nil {
						return
					}
					must(t, ev.Ack())
					switch id := ev.ID; ev.Type {
					case rdmacm.ConnectRequest:
						_ = id.CreateQP(nil, &verbs.QPInitAttr{})
						server.Go(func() { _ = id.Accept(nil) })
						if rand.IntN(4) == 0 {
							server.Go(func() { _ = id.Reject(nil) })
						}
						if rand.IntN(4) == 0 {
							server.Go(func() { _ = id.Disconnect() })
						}
						server.Go(func() { <-id.Done(); _ = id.Close() })
						if rand.IntN(8) == 0 {
							server.Go(func() { _ = id.Close() })
						}
					case rdmacm.Disconnected, rdmacm.Rejected:
						_ = id.Disconnect()
					}
				}
			})
		}
		for range peers {
			clients.Go(func() {
				for range rounds {
					ctx, cancel := context.WithTimeout(ctx, time.Duration(rand.IntN(3))*time.Minute)
					c, err := rdmacm.Dial(ctx, b, v4A+":7471", nil)
					cancel()
					if err != nil {
						continue
					}
					clients.Go(func() { _ = c.Close() })
					clients.Go(func() { _ = c.ID().Disconnect() })
					clients.Go(func() { _ = c.ID().Notify() })
					if rand.IntN(4) == 0 {
						clients.Go(func() { _ = c.ID().Close() })
					}
				}
			})
		}
		clients.Wait()
		time.Sleep(time.Hour)
		stop()
		must(t, l.Close())
		server.Wait()
		must(t, ch.Close())
		checkEmpty(t, a, b)
	})
}

// Peers that disconnect immediately cause no errors in calls that wait for requests.
func TestRequestsOfPeersThatDisconnect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, _ := pair(t)
		l, err := rdmacm.CreateSyncID(rdmacm.TCP, a)
		must(t, err)
		must(t, l.Bind(netip.MustParseAddrPort(v4A+":7471")))
		must(t, l.Listen(0))
		ctx, stop := context.WithCancel(t.Context())
		var work sync.WaitGroup
		for range 4 {
			work.Go(func() {
				for {
					r, err := l.GetRequest(ctx)
					if err != nil {
						if ctx.Err() == nil {
							t.Error(err)
						}
						return
					}
					<-r.Done()
					must(t, r.Close())
				}
			})
		}
		for range 400 {
			must(t, requestAndLeave(t, b, v4A+":7471"))
		}
		synctest.Wait()
		stop()
		work.Wait()
		must(t, l.Close())
		checkEmpty(t, a, b)
	})
}

// requestAndLeave sends a connection request to a listener and closes its ID.
func requestAndLeave(t *testing.T, dev *verbs.Device, to string) error {
	t.Helper()
	c, err := rdmacm.CreateSyncID(rdmacm.TCP, dev)
	must(t, err)
	must(t, c.ResolveAddr(t.Context(), netip.AddrPort{}, netip.MustParseAddrPort(to)))
	must(t, c.ResolveRoute(t.Context()))
	must(t, c.ID.Connect(nil))
	return c.Close()
}

// A request whose peer disconnects before GetEvent has returned it is removed from the channel.
// After that, and until Accept, the disconnection ends the ID without an event, as in Linux.
func TestUndeliveredRequestsAreDiscarded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, _ := pair(t)
		l, err := rdmacm.CreateSyncID(rdmacm.TCP, a)
		must(t, err)
		must(t, l.Bind(netip.MustParseAddrPort(v4A+":7471")))
		must(t, l.Listen(0))
		for range 100 {
			must(t, requestAndLeave(t, b, v4A+":7471"))
		}
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if r, err := l.GetRequest(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("request %v, %v of a peer that has disconnected", r, err)
		}
		// The IDs are closed too, because the channel cannot be closed before them.
		must(t, l.Close())
		checkEmpty(t, a, b)
	})
	synctest.Test(t, func(t *testing.T) {
		a, b, _ := pair(t)
		ch, err := rdmacm.CreateEventChannel(a)
		must(t, err)
		l, err := ch.CreateID(rdmacm.TCP, nil)
		must(t, err)
		must(t, l.Bind(netip.MustParseAddrPort(v4A+":7471")))
		must(t, l.Listen(0))
		c, err := rdmacm.CreateSyncID(rdmacm.TCP, b)
		must(t, err)
		must(t, c.ResolveAddr(t.Context(), netip.AddrPort{}, netip.MustParseAddrPort(v4A+":7471")))
		must(t, c.ResolveRoute(t.Context()))
		must(t, c.ID.Connect(nil))
		e, err := ch.GetEvent(t.Context())
		must(t, err)
		id := e.ID
		must(t, e.Ack())
		must(t, c.Close())
		<-id.Done()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if e, err := ch.GetEvent(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("event %v, %v of a request that was taken back: Linux has none before rdma_accept", e, err)
		}
		wantErr(t, id.Accept(nil), syscall.EINVAL)
		must(t, id.Close())
		must(t, l.Close())
		must(t, ch.Close())
		checkEmpty(t, a, b)
	})
}
