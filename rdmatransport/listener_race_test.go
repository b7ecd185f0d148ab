package rdmatransport_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/netip"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/softrnic/softrnic/tests/stacktest"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// TestCloseListenerDuringDials closes one listener after another while peers dial. Neither
// Close nor the waiting GetRequest may fail or hang, in any interleaving with the provider.
func TestCloseListenerDuringDials(t *testing.T) {
	overAll(t, func(t *testing.T, m medium, transport verbs.Transport) {
		rounds := stacktest.Size(25, 50, 1000)
		if m.Name == direct.Name {
			rounds = stacktest.Size(25, 50, 10_000)
		}
		a, b := m.stations(t, nil)
		dialling, stop := context.WithCancel(t.Context())
		var dials sync.WaitGroup
		defer dials.Wait()
		defer stop()
		for range 8 {
			dials.Go(func() {
				for dialling.Err() == nil {
					ctx, cancel := context.WithTimeout(dialling, 3*time.Millisecond)
					c, err := rdmacm.Dial(ctx, a.dev, b.at(7471), &rdmacm.Config{Transport: transport})
					cancel()
					if err == nil {
						c.Close()
					}
				}
			})
		}
		for round := range rounds {
			l := must(rdmacm.CreateSyncID(rdmacm.TCP, b.dev))(t)
			ok(t, l.SetTransports(transport))
			ok(t, l.Bind(netip.AddrPortFrom(b.addr, 7471)))
			ok(t, l.Listen(64))
			ended := make(chan error, 1)
			go func() {
				for {
					r, err := l.GetRequest(context.Background())
					if err != nil {
						ended <- err
						return
					}
					if err := r.Close(); err != nil {
						t.Error(err)
					}
				}
			}()
			// At random times. Waiting for a certain event would leave out most interleavings.
			time.Sleep(time.Duration(rand.IntN(3000)) * time.Microsecond)
			if err := l.Close(); err != nil {
				t.Fatalf("round %d: %v", round, err)
			}
			select {
			case err := <-ended:
				if !errors.Is(err, verbs.ErrClosed) {
					t.Fatalf("round %d: GetRequest: %v", round, err)
				}
			case <-time.After(20 * time.Second):
				t.Fatalf("round %d: GetRequest still waits after Close", round)
			}
		}
	})
}

// A request that GetRequest has returned outlives the listener, and can still be accepted. Other
// requests are rejected.
func TestRequestOutlivesListener(t *testing.T) {
	overAll(t, func(t *testing.T, m medium, transport verbs.Transport) {
		a, b := m.stations(t, nil)
		l := must(rdmacm.Listen(b.dev, b.at(7471), &rdmacm.Config{Transport: transport}))(t)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		dial := func() chan error {
			done := make(chan error, 1)
			go func() {
				c, err := rdmacm.Dial(ctx, a.dev, b.at(7471), &rdmacm.Config{Transport: transport})
				if err == nil {
					err = c.Close()
				}
				done <- err
			}()
			return done
		}
		first := dial()
		r := must(l.Request(ctx))(t)
		second := dial()
		ok(t, l.Close())
		if err := <-second; !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("dial that is not accepted: %v", err)
		}
		c := must(r.Accept(ctx, nil))(t)
		<-c.Done()
		ok(t, c.Close())
		ok(t, <-first)
	})
}

// TestCloseListenerDuringAccept checks that an Accept during Close reports that the listener is
// closed.
func TestCloseListenerDuringAccept(t *testing.T) {
	overAll(t, func(t *testing.T, m medium, transport verbs.Transport) {
		s, _ := m.stations(t, nil)
		for range stacktest.Size(100, 200, 200) {
			l := must(rdmacm.Listen(s.dev, ":0", &rdmacm.Config{Transport: transport}))(t)
			accepted := make(chan error, 1)
			go func() {
				_, err := l.Accept(t.Context())
				accepted <- err
			}()
			ok(t, l.Close())
			if err := <-accepted; !errors.Is(err, verbs.ErrClosed) {
				t.Fatal(err)
			}
		}
	})
}
