package accept

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// listener returns what is in accepted, an error or a connection, until it is closed.
type listener struct {
	accepted chan any
	closed   chan struct{}
}

func (l *listener) Accept() (net.Conn, error) {
	select {
	case a := <-l.accepted:
		if err, failed := a.(error); failed {
			return nil, err
		}
		return a.(net.Conn), nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *listener) Close() error { close(l.closed); return nil }
func (*listener) Addr() net.Addr { return nil }

// TestServe: at most two connections are served at a time, also after descriptors have run out. All
// end with ctx.
func TestServe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &listener{make(chan any, 8), make(chan struct{})}
		ctx, cancel := context.WithCancel(t.Context())
		var begun, ended atomic.Int32
		served := make(chan error, 1)
		release := make(chan struct{})
		go func() {
			served <- Serve(ctx, l, 2, slog.New(slog.DiscardHandler), func(ctx context.Context, conn net.Conn) {
				begun.Add(1)
				select {
				case <-release:
				case <-ctx.Done():
				}
				ended.Add(1)
				_ = conn.Close()
			})
		}()
		for range 4 {
			l.accepted <- &net.OpError{Op: "accept", Err: syscall.EMFILE}
			near, far := net.Pipe()
			defer far.Close()
			l.accepted <- near
		}
		for n := range int32(3) { // are released
			time.Sleep(time.Second)
			if begun.Load() != min(n+2, 4) || ended.Load() != n {
				t.Errorf("%d connections were served and %d have ended, after %d were released", begun.Load(), ended.Load(), n)
			}
			release <- struct{}{}
		}
		cancel()
		if err := <-served; err != nil || ended.Load() != 4 {
			t.Errorf("%v; %d connections have ended", err, ended.Load())
		}
	})
}

// TestServeError: an error of the listener ends it, and the connections.
func TestServeError(t *testing.T) {
	l := &listener{make(chan any, 2), make(chan struct{})}
	near, far := net.Pipe()
	defer far.Close()
	failure := errors.New("failure")
	l.accepted <- near
	l.accepted <- failure
	err := Serve(t.Context(), l, 2, slog.New(slog.DiscardHandler), func(ctx context.Context, conn net.Conn) {
		<-ctx.Done()
		_ = conn.Close()
	})
	if !errors.Is(err, failure) {
		t.Error(err)
	}
}
