package accept

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/softrnic/softrnic/verbs/admission"
)

// listener returns what is in accepted, an error or a connection, until it is closed.
type listener struct {
	accepted chan any
	closed   chan struct{}
}

func newListener() *listener { return &listener{make(chan any, 64), make(chan struct{})} }

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

// conn is a connection of a peer.
type conn struct {
	net.Conn
	peer string
}

func (c *conn) RemoteAddr() net.Addr {
	return net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(c.peer), 1))
}

// dial makes a connection of a peer to l.
func (l *listener) dial(peer string) net.Conn {
	near, far := net.Pipe()
	l.accepted <- &conn{near, peer}
	return far
}

// answer answers each byte with itself, until the connection is silent for a minute.
func answer(ctx context.Context, c net.Conn, _ func()) {
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	var b [1]byte
	for c.SetDeadline(time.Now().Add(time.Minute)) == nil {
		if _, err := io.ReadFull(c, b[:]); err != nil {
			return
		}
		if _, err := c.Write(b[:]); err != nil {
			return
		}
	}
}

func ask(c net.Conn) error {
	if err := c.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		return err
	}
	if _, err := c.Write([]byte{7}); err != nil {
		return err
	}
	_, err := io.ReadFull(c, make([]byte, 1))
	return err
}

// TestServe: silent connections of one address, and errors that pass, such as a lack of
// descriptors, keep nobody out, neither at another address nor at the same.
func TestServe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, limits := newListener(), new(Limits)
		ctx, cancel := context.WithCancel(t.Context())
		served := make(chan error, 1)
		go func() {
			served <- Serve(ctx, l, limits.Gate("test", 8), slog.New(slog.DiscardHandler), answer)
		}()
		good := l.dial("10.0.0.2")
		defer good.Close()
		for i := range 50 {
			if i%10 == 0 {
				l.accepted <- &net.OpError{Op: "accept", Err: syscall.EMFILE}
			}
			defer l.dial("10.0.0.3").Close()
			time.Sleep(time.Second)
			if err := ask(good); err != nil {
				t.Fatal(i, err)
			}
		}
		for _, peer := range []string{"10.0.0.3", "10.0.0.4"} {
			c := l.dial(peer)
			defer c.Close()
			if err := ask(c); err != nil {
				t.Error(peer, err)
			}
		}
		limits.Reached("test", "memory", func() uint64 { return 3 })
		servers, reached := 0, 0
		limits.Each(func(server string, s admission.Stats) {
			servers++
			if server != "test" || s.Displaced != 47 || s.Refused != 0 {
				t.Errorf("%s: %+v", server, s)
			}
		}, func(server, of string, count uint64) {
			reached++
			if server != "test" || of != "memory" || count != 3 {
				t.Error(server, of, count)
			}
		})
		if servers != 1 || reached != 1 {
			t.Errorf("%d servers and %d other limits, want one of each", servers, reached)
		}
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
}

// TestProved: connections that have proved something are not ended for others: these are refused.
func TestProved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, limits := newListener(), new(Limits)
		ctx, cancel := context.WithCancel(t.Context())
		gate := limits.Gate("test", 4)
		var serving atomic.Int32
		var done sync.WaitGroup
		done.Go(func() {
			err := Serve(ctx, l, gate, slog.New(slog.DiscardHandler), func(ctx context.Context, c net.Conn, prove func()) {
				prove()
				serving.Add(1)
				<-ctx.Done()
				serving.Add(-1)
				_ = c.Close()
			})
			if err != nil {
				t.Error(err)
			}
		})
		for range 5 {
			l.dial("10.0.0.2")
			synctest.Wait()
		}
		l.dial("10.0.0.3")
		synctest.Wait()
		if s := gate.Stats(); serving.Load() != 3 || s.Refused != 3 || s.Displaced != 0 {
			t.Errorf("%d are served: %+v", serving.Load(), s)
		}
		cancel()
		done.Wait()
		if n := serving.Load(); n != 0 {
			t.Errorf("%d are left", n)
		}
	})
}

// TestServeError: an error of the listener that does not pass ends it, and the connections.
func TestServeError(t *testing.T) {
	l := newListener()
	far := l.dial("10.0.0.2")
	defer far.Close()
	failure := errors.New("failure")
	l.accepted <- failure
	err := Serve(t.Context(), l, new(Limits).Gate("test", 2), slog.New(slog.DiscardHandler),
		func(ctx context.Context, conn net.Conn, _ func()) {
			<-ctx.Done()
			_ = conn.Close()
		})
	if !errors.Is(err, failure) {
		t.Error(err)
	}
}

// TestGuard: silent connections to an HTTP server are ended for others.
func TestGuard(t *testing.T) {
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	gate := new(Limits).Gate("test", 4)
	s := &http.Server{Handler: http.NotFoundHandler()}
	s.SetKeepAlivesEnabled(false)
	served := make(chan struct{})
	go func() {
		_ = s.Serve(Guard(inner, gate))
		close(served)
	}()
	for range 20 {
		c, err := net.Dial("tcp", inner.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	resp, err := http.Get("http://" + inner.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	<-served
	if s := gate.Stats(); s.Held != 0 || s.Displaced == 0 {
		t.Errorf("%+v", s)
	}
}
