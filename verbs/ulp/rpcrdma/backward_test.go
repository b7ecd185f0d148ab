package rpcrdma_test

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/softrnic/softrnic/tests/stacktest"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/ulp/rpcrdma"
)

// serveConns is serve with a handler for each connection, and passes on the connections.
func serveConns(t *testing.T, l *rpcrdma.Listener, h rpcrdma.Handler) <-chan *rpcrdma.Conn {
	t.Helper()
	conns, served := make(chan *rpcrdma.Conn, 8), make(chan error, 1)
	go func() {
		served <- l.ServeConns(func(_ context.Context, c *rpcrdma.Conn) (rpcrdma.Handler, error) {
			conns <- c
			return h, nil
		})
	}()
	t.Cleanup(func() {
		ok(t, l.Close())
		ok(t, <-served)
	})
	return conns
}

// TestBackward: the server calls the client while the client calls the server, with the same XIDs,
// and has no more calls outstanding than the client grants.
func TestBackward(t *testing.T) {
	overAll(t, func(t *testing.T, m stacktest.Medium, transport verbs.Transport) {
		to, from, at := devices(t, m)
		const credits, callers = 3, 12
		d := &disk{file: random(100_000, 1)}
		l, err := rpcrdma.Listen(to, at.String()+":0", &rpcrdma.Config{Transport: transport, Binding: rpcrdma.NFS, BackwardCredits: 8})
		ok(t, err)
		conns := serveConns(t, l, d)
		var inside, most atomic.Int32
		client := dial(t, from, l, &rpcrdma.Config{Transport: transport, Binding: rpcrdma.NFS, Credits: 4, BackwardCredits: credits,
			Backward: rpcrdma.HandlerFunc(func(_ context.Context, c *rpcrdma.Call) []byte {
				most.Store(max(most.Load(), inside.Add(1)))
				defer inside.Add(-1)
				return append(done(c.Message), c.Message[header:]...)
			})})
		conn := <-conns
		if conn.PeerAddr() != client.LocalAddr() || conn.LocalAddr() != client.PeerAddr() {
			t.Errorf("%v to %v, and %v to %v", conn.LocalAddr(), conn.PeerAddr(), client.LocalAddr(), client.PeerAddr())
		}
		var all sync.WaitGroup
		for i := range callers {
			all.Go(func() {
				for round := range 5 {
					xid := uint32(i<<8 | round)
					want := random(100*i, byte(i))
					reply, err := conn.Call(t.Context(), append(message(xid, 1), want...))
					if err != nil || be.Uint32(reply) != xid || !bytes.Equal(reply[24:], want) {
						t.Errorf("call %d: %x, %v", i, reply, err)
					}
				}
			})
			all.Go(func() {
				for round := range 5 {
					reply, err := client.Call(t.Context(), readCall(uint32(i<<8|round), 0, 70_000))
					if err != nil || len(reply) != 44+70_000 {
						t.Errorf("call %d: %d bytes, %v", i, len(reply), err)
					}
				}
			})
		}
		all.Wait()
		if n := most.Load(); n > credits {
			t.Errorf("%d calls at a time, and %d credits", n, credits)
		}
		if _, err := conn.Call(t.Context(), make([]byte, 4096)); !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("a call that is too long: %v", err)
		}
		if _, err := conn.Call(t.Context(), nil); !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("an empty call: %v", err)
		}
	})
}

// TestBackwardEnd: calls to a client that does not answer end with their context, or with the
// connection.
func TestBackwardEnd(t *testing.T) {
	overAll(t, func(t *testing.T, m stacktest.Medium, transport verbs.Transport) {
		to, from, at := devices(t, m)
		l, err := rpcrdma.Listen(to, at.String()+":0", &rpcrdma.Config{Transport: transport, BackwardCredits: 1})
		ok(t, err)
		conns := serveConns(t, l, &disk{})
		called := make(chan struct{}, 1)
		client := dial(t, from, l, &rpcrdma.Config{Transport: transport, BackwardCredits: 1,
			Backward: rpcrdma.HandlerFunc(func(context.Context, *rpcrdma.Call) []byte {
				called <- struct{}{}
				return nil
			})})
		conn := <-conns
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			<-called
			cancel()
		}()
		if _, err := conn.Call(ctx, message(1, 1)); !errors.Is(err, context.Canceled) {
			t.Errorf("a call that was cancelled: %v", err)
		}
		failed := make(chan error, 1)
		go func() { // waits for the credit
			_, err := conn.Call(t.Context(), message(2, 1))
			failed <- err
		}()
		conn.Close()
		if err := <-failed; err == nil {
			t.Error("a call on a connection that has ended succeeds")
		}
		if _, err := client.Call(t.Context(), message(3, 0)); err == nil {
			t.Error("a call of the client succeeds")
		}
	})
}

// TestRejected: a client is rejected if its connection gets no handler, and is not when it does.
func TestRejected(t *testing.T) {
	overAll(t, func(t *testing.T, m stacktest.Medium, transport verbs.Transport) {
		to, from, at := devices(t, m)
		cfg := &rpcrdma.Config{Transport: transport}
		l, err := rpcrdma.Listen(to, at.String()+":0", cfg)
		ok(t, err)
		var refuse atomic.Bool
		served := make(chan error, 1)
		go func() {
			served <- l.ServeConns(func(context.Context, *rpcrdma.Conn) (rpcrdma.Handler, error) {
				if refuse.Load() {
					return nil, errors.New("refused")
				}
				return &disk{}, nil
			})
		}()
		for _, refused := range []bool{true, false, true} {
			refuse.Store(refused)
			client, err := rpcrdma.Dial(t.Context(), from, l.Addr().String(), cfg)
			if (err != nil) != refused {
				t.Errorf("refused %v: %v", refused, err)
			}
			if err == nil {
				ok(t, client.Close())
			}
		}
		ok(t, l.Close())
		ok(t, <-served)
	})
}
