// Package accept serves the connections of listeners, within limits for all peers and for each.
package accept

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"github.com/softrnic/softrnic/verbs/admission"
)

// Gate has the places for the connections of a server, by the peer's address.
type Gate = admission.Gate[netip.Addr]

// Serve accepts connections until ctx ends, and then returns nil. It calls f for each that the gate
// admits, and closes others. f closes its connection. Its ctx ends with that of Serve, or when
// another connection needs the place, which no longer happens once f has called prove. Serve closes
// the listener, and returns when all calls have.
func Serve(ctx context.Context, l net.Listener, gate *Gate, log *slog.Logger,
	f func(ctx context.Context, conn net.Conn, prove func())) error {
	ctx, cancel := context.WithCancel(ctx)
	closeListener := sync.OnceValue(l.Close)
	stop := context.AfterFunc(ctx, func() { _ = closeListener() })
	var work sync.WaitGroup
	err := loop(ctx, l, log, func(conn net.Conn) {
		ctx, end := context.WithCancel(ctx)
		place, err := gate.Enter(Peer(conn), end)
		if err != nil {
			end()
			refuse(conn)
			log.Warn("a connection is refused", "from", conn.RemoteAddr(), "error", err)
			return
		}
		work.Go(func() {
			defer place.Leave()
			defer end()
			if err := Wait(ctx, place); err != nil {
				refuse(conn)
				log.Warn("a connection is refused", "from", conn.RemoteAddr(), "error", err)
				return
			}
			f(ctx, conn, func() { place.Prove() })
		})
	})
	stop()
	closed := closeListener()
	cancel()
	work.Wait()
	return errors.Join(err, closed)
}

// waitTimeout is how long a connection waits for others to make room, which have no reason to take
// longer than a busy machine does.
const waitTimeout = 10 * time.Second

// Wait is place.Wait, for a limited time.
func Wait(ctx context.Context, place *admission.Place[netip.Addr]) error {
	ctx, cancel := context.WithTimeout(ctx, waitTimeout)
	defer cancel()
	return place.Wait(ctx)
}

// loop accepts connections until ctx ends or the listener fails for good.
func loop(ctx context.Context, l net.Listener, log *slog.Logger, start func(net.Conn)) error {
	pause := Pause{}
	for {
		conn, err := l.Accept()
		switch {
		case ctx.Err() != nil:
			if err == nil {
				_ = conn.Close()
			}
			return nil
		case err == nil:
			pause = Pause{}
			start(conn)
		case !pause.After(ctx, err):
			return err
		default:
			log.Warn("a connection could not be accepted", "error", err)
		}
	}
}

// Pause is the pause before the next Accept after one that has failed. The zero value is that of
// the first.
type Pause struct{ last time.Duration }

const (
	firstPause = 5 * time.Millisecond // these are those of net/http
	maxPause   = time.Second
)

// After waits, if the error of an Accept passes, such as a lack of descriptors or a connection that
// its peer has ended. It returns false if the error does not pass.
func (p *Pause) After(ctx context.Context, err error) bool {
	var temporary interface{ Temporary() bool }
	passes := errors.As(err, &temporary) && temporary.Temporary() || errors.Is(err, syscall.ECONNABORTED) ||
		errors.Is(err, syscall.ENOBUFS) || errors.Is(err, syscall.ENOMEM)
	if !passes {
		return false
	}
	p.last = min(max(2*p.last, firstPause), maxPause)
	select {
	case <-time.After(p.last):
	case <-ctx.Done():
	}
	return true
}

// Peer returns the address of a connection's peer.
func Peer(conn net.Conn) netip.Addr {
	p, _ := netip.ParseAddrPort(conn.RemoteAddr().String())
	return p.Addr().Unmap()
}

// Guard returns a listener whose Accept returns only connections that the gate admits. It closes
// others, and those that are displaced. All are strangers' until they are closed.
func Guard(l net.Listener, gate *Gate) net.Listener { return &guarded{l, gate} }

type guarded struct {
	net.Listener
	gate *Gate
}

// Accept implements net.Listener.
func (g *guarded) Accept() (net.Conn, error) {
	for {
		conn, err := g.Listener.Accept()
		if err != nil {
			return nil, err
		}
		c := &admitted{Conn: conn}
		if c.place, err = g.gate.Enter(Peer(conn), func() { _ = c.Close() }); err == nil {
			err = Wait(context.Background(), c.place) // the connections that Enter displaces leave in the call
		}
		if err == nil {
			return c, nil
		}
		refuse(conn)
	}
}

// refuse closes a connection without a wait for its peer, so that the next one is accepted at once.
func refuse(conn net.Conn) {
	if c, ok := conn.(interface{ Abort() error }); ok {
		_ = c.Abort()
		return
	}
	_ = conn.Close()
}

// admitted is a connection with a place.
type admitted struct {
	net.Conn
	place *admission.Place[netip.Addr]
}

// Close implements net.Conn.
func (c *admitted) Close() error {
	c.place.Leave()
	return c.Conn.Close()
}
