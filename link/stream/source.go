package stream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"strings"
	"syscall"
	"time"
)

// address is the address of a socket.
type address struct {
	network, addr string // as in package net
}

// parse parses the path of a unix socket, or "tcp:HOST:PORT".
func parse(s string) (address, error) {
	if hostPort, ok := strings.CutPrefix(s, "tcp:"); ok {
		if _, _, err := net.SplitHostPort(hostPort); err != nil {
			return address{}, fmt.Errorf("stream: %q: must be tcp:HOST:PORT or the path of a unix socket", s)
		}
		return address{"tcp", hostPort}, nil
	}
	if s == "" {
		return address{}, errors.New("stream: the address is empty: must be the path of a unix socket, or tcp:HOST:PORT")
	}
	if len(s) > maxPath {
		return address{}, fmt.Errorf("stream: path of %d bytes, but a unix socket allows %d: %q: use a shorter one",
			len(s), maxPath, s)
	}
	return address{"unix", s}, nil
}

// keepAlive detects within ten seconds that the other machine has disappeared, over TCP.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 5 * time.Second, Interval: time.Second, Count: 5}

// listen listens at the address, and replaces an abandoned unix socket. If two programs find the
// same abandoned socket at once, both may listen, the first on a socket without a name. It is a
// mistake anyway to give two programs the same address.
func (a address) listen() (net.Listener, error) {
	lc := net.ListenConfig{KeepAliveConfig: keepAlive}
	l, err := lc.Listen(context.Background(), a.network, a.addr)
	if err != nil && a.network == "unix" && errors.Is(err, syscall.EADDRINUSE) && a.abandoned() {
		if err := os.Remove(a.addr); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("stream: %w", err)
		}
		l, err = lc.Listen(context.Background(), a.network, a.addr)
	}
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("stream: %w: another program listens there: use another address or connect to it", err)
	case err != nil:
		return nil, fmt.Errorf("stream: %w", err)
	}
	return l, nil
}

// abandoned reports whether the unix socket exists and no program listens on it.
func (a address) abandoned() bool {
	info, err := os.Lstat(a.addr)
	if err != nil || info.Mode().Type() != fs.ModeSocket {
		return false
	}
	c, err := net.Dial(a.network, a.addr)
	if err == nil {
		_ = c.Close()
	}
	return errors.Is(err, syscall.ECONNREFUSED)
}

// source provides a link's connections, one after the other.
type source interface {
	// next waits for a connection. An error says that there will be no more, or that ctx has
	// ended.
	next(ctx context.Context) (net.Conn, error)
	close() error
}

// dialer connects. The pauses between attempts grow from retryMin to retryMax.
type dialer struct {
	address
	since time.Time // when the last connection began
	pause time.Duration
}

const (
	dialTimeout = 10 * time.Second
	retryMin    = 10 * time.Millisecond
	retryMax    = time.Second
)

func (d *dialer) dial(ctx context.Context) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	nd := net.Dialer{KeepAliveConfig: keepAlive}
	c, err := nd.DialContext(ctx, d.network, d.addr)
	// The kernel does not wait for room in the backlog of a unix socket, and QEMU's backlog is
	// one connection.
	for errors.Is(err, syscall.EAGAIN) && ctx.Err() == nil {
		time.Sleep(retryMin)
		c, err = nd.DialContext(ctx, d.network, d.addr)
	}
	if errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("stream: %w: no process listens there: start the other side first, or listen", err)
	}
	if err != nil {
		return nil, fmt.Errorf("stream: %w", err)
	}
	d.since = time.Now()
	return c, nil
}

func (d *dialer) next(ctx context.Context) (net.Conn, error) {
	// If a server closes connections at once, the dialer retries no more often than if it refused
	// them.
	if d.pause == 0 || time.Since(d.since) > retryMax {
		d.pause = retryMin
	}
	for {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(d.pause):
		}
		d.pause = min(2*d.pause, retryMax)
		if c, err := d.dial(ctx); err == nil {
			return c, nil
		}
	}
}

func (d *dialer) close() error { return nil }

// acceptor accepts one connection at a time. A second client waits for acceptTimeout, because the
// first connection may just be ending. It is then disconnected, so that it is not left without an
// answer.
type acceptor struct {
	l     net.Listener
	conns chan net.Conn
}

const acceptTimeout = time.Second

// acceptPause is the pause after an error, such as running out of descriptors.
const acceptPause = 100 * time.Millisecond

func newAcceptor(l net.Listener) *acceptor {
	a := &acceptor{l: l, conns: make(chan net.Conn)}
	go a.accept()
	return a
}

func (a *acceptor) accept() {
	defer close(a.conns)
	for {
		c, err := a.l.Accept()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil:
			time.Sleep(acceptPause)
			continue
		}
		select {
		case a.conns <- c:
		case <-time.After(acceptTimeout):
			_ = c.Close()
		}
	}
}

func (a *acceptor) next(ctx context.Context) (net.Conn, error) {
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case c, ok := <-a.conns:
		if !ok {
			return nil, net.ErrClosed
		}
		return c, nil
	}
}

// close also disconnects waiting clients. No connection is accepted after it.
func (a *acceptor) close() error {
	err := a.l.Close()
	for c := range a.conns {
		_ = c.Close()
	}
	return err
}

// noSource is a source without further connections.
type noSource struct{}

func (noSource) next(context.Context) (net.Conn, error) { return nil, io.EOF }

func (noSource) close() error { return nil }
