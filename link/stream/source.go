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

// address is where a socket is.
type address struct {
	network, addr string // as package net has them
}

// parse takes the path of a unix socket, or "tcp:HOST:PORT".
func parse(s string) (address, error) {
	if hostPort, ok := strings.CutPrefix(s, "tcp:"); ok {
		if _, _, err := net.SplitHostPort(hostPort); err != nil {
			return address{}, fmt.Errorf("stream: %q: give tcp:HOST:PORT, or the path of a unix socket", s)
		}
		return address{"tcp", hostPort}, nil
	}
	if s == "" {
		return address{}, errors.New("stream: the address is empty: give the path of a unix socket, or tcp:HOST:PORT")
	}
	if len(s) > maxPath {
		return address{}, fmt.Errorf("stream: path of %d bytes, and a unix socket's has at most %d: %q: give a shorter one", len(s), maxPath, s)
	}
	return address{"unix", s}, nil
}

// alive finds out within ten seconds that the other side's machine has gone, where TCP is the carrier.
var alive = net.KeepAliveConfig{Enable: true, Idle: 5 * time.Second, Interval: time.Second, Count: 5}

// listen listens, in place of whoever left a unix socket behind. Two programs that find the same one at the same time may
// both listen, the first on a socket without a name: they have the same address, which is a mistake in any case.
func (a address) listen() (net.Listener, error) {
	lc := net.ListenConfig{KeepAliveConfig: alive}
	l, err := lc.Listen(context.Background(), a.network, a.addr)
	if err != nil && a.network == "unix" && errors.Is(err, syscall.EADDRINUSE) && a.abandoned() {
		if err := os.Remove(a.addr); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("stream: %w", err)
		}
		l, err = lc.Listen(context.Background(), a.network, a.addr)
	}
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("stream: %w: another program listens there: give another address, or connect to it", err)
	case err != nil:
		return nil, fmt.Errorf("stream: %w", err)
	}
	return l, nil
}

// abandoned reports whether there is a unix socket that nobody listens on.
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

// source is where a link's connections come from, one after the other.
type source interface {
	// next waits for a connection. An error says that there will be none, or that ctx has ended.
	next(ctx context.Context) (net.Conn, error)
	close() error
}

// dialer connects. The pauses between its attempts grow from retryMin to retryMax.
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
	nd := net.Dialer{KeepAliveConfig: alive}
	c, err := nd.DialContext(ctx, d.network, d.addr)
	// The kernel does not wait for room in the queue of a unix socket, which for QEMU's is one connection.
	for errors.Is(err, syscall.EAGAIN) && ctx.Err() == nil {
		time.Sleep(retryMin)
		c, err = nd.DialContext(ctx, d.network, d.addr)
	}
	if errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("stream: %w: nobody listens there: start the other side first, or listen", err)
	}
	if err != nil {
		return nil, fmt.Errorf("stream: %w", err)
	}
	d.since = time.Now()
	return c, nil
}

func (d *dialer) next(ctx context.Context) (net.Conn, error) {
	// One that takes connections and ends them at once is not asked more often than one that does not take them.
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

// acceptor takes connections one at a time. Whoever connects while another is connected waits for patience, since the other
// may just be about to end, and is then hung up on, so as to know that nobody listens.
type acceptor struct {
	l     net.Listener
	conns chan net.Conn
}

const patience = time.Second

// acceptPause is how long an acceptor waits after an error, such as that all descriptors are used up.
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
		case <-time.After(patience):
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

// close also hangs up on whoever is waiting.
func (a *acceptor) close() error {
	err := a.l.Close()
	for c := range a.conns {
		_ = c.Close()
	}
	return err
}

// single has no connection after the first.
type single struct{}

func (single) next(context.Context) (net.Conn, error) { return nil, io.EOF }

func (single) close() error { return nil }
