// Package accept serves the connections of a listener.
package accept

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"sync"
	"syscall"
	"time"
)

// pause is the time before another try when descriptors have run out.
const pause = 100 * time.Millisecond

// Serve accepts connections until ctx ends, and then returns nil. It calls f for each, at most
// limit at a time; more wait in the backlog. It closes the listener, and returns when all calls
// have. f closes the connection, and its ctx ends with the listener.
func Serve(ctx context.Context, l net.Listener, limit int, log *slog.Logger, f func(context.Context, net.Conn)) error {
	ctx, cancel := context.WithCancel(ctx)
	closeListener := sync.OnceValue(l.Close)
	stop := context.AfterFunc(ctx, func() { _ = closeListener() })
	var work sync.WaitGroup
	err := loop(ctx, l, limit, log, func(conn net.Conn, done func()) {
		work.Go(func() {
			defer done()
			f(ctx, conn)
		})
	})
	stop()
	closed := closeListener()
	cancel()
	work.Wait()
	return errors.Join(err, closed)
}

func loop(ctx context.Context, l net.Listener, limit int, log *slog.Logger, start func(conn net.Conn, done func())) error {
	slots := make(chan struct{}, limit)
	for {
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			return nil
		}
		conn, err := l.Accept()
		switch {
		case ctx.Err() != nil:
			if err == nil {
				_ = conn.Close()
			}
			return nil
		case errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) || errors.Is(err, syscall.ECONNABORTED):
			<-slots
			log.Warn("a connection could not be accepted", "error", err)
			select {
			case <-time.After(pause):
			case <-ctx.Done():
			}
		case err != nil:
			return err
		default:
			start(conn, func() { <-slots })
		}
	}
}
