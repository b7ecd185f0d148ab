package rsocket

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"

	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// Listener accepts connections.
type Listener struct {
	l      *rdmacm.Listener
	cfg    atomic.Pointer[Config]
	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	conns  chan *Conn    // for Accept
	slots  chan struct{} // a semaphore of connections that Accept has not returned
	ended  chan struct{} // closed when accepting has failed
	err    error         // the reason; set before ended is closed

	closing    sync.Once
	goroutines sync.WaitGroup
}

var _ net.Listener = (*Listener)(nil)

// Listen listens on "host:port"; ":port" means all addresses of the device, and port 0 an ephemeral
// port. Requests are accepted in the background, before Accept is called: see Config.Backlog.
func Listen(dev *verbs.Device, addr string, cfg *Config) (*Listener, error) {
	full, err := cfg.check()
	if err != nil {
		return nil, &net.OpError{Op: "listen", Net: "rsocket", Addr: socketAddr{addr}, Err: err}
	}
	cm, err := rdmacm.Listen(dev, addr, &rdmacm.Config{
		Transports: full.Transports, TOS: full.TOS, AFOnly: full.AFOnly, Backlog: full.Backlog,
	})
	if err != nil {
		return nil, &net.OpError{Op: "listen", Net: "rsocket", Addr: socketAddr{addr}, Err: err}
	}
	l := &Listener{
		l: cm, conns: make(chan *Conn), ended: make(chan struct{}),
		// Backlog slots for peers with a validated address, and as many for the others.
		slots: make(chan struct{}, 2*full.Backlog),
	}
	l.cfg.Store(full)
	l.ctx, l.cancel = context.WithCancel(context.Background())
	l.goroutines.Go(l.serve)
	return l, nil
}

// SetConfig sets the options of connections that are requested from now on. It does not change the
// options of the listener itself.
func (l *Listener) SetConfig(cfg *Config) error {
	full, err := cfg.check()
	if err == nil {
		l.cfg.Store(full)
	}
	return err
}

// serve accepts requests.
func (l *Listener) serve() {
	for {
		select {
		case l.slots <- struct{}{}:
		case <-l.ctx.Done():
			return
		}
		r, err := l.l.Request(l.ctx)
		if err != nil {
			if l.ctx.Err() == nil {
				l.err = err
				close(l.ended)
			}
			return
		}
		l.goroutines.Go(func() {
			defer func() { <-l.slots }()
			c, err := l.accept(r)
			if err != nil {
				return // the request is rejected
			}
			select {
			case l.conns <- c:
			case <-l.ctx.Done():
				_ = c.Close()
			}
		})
	}
}

// accept establishes the connection of a request, or rejects the request.
func (l *Listener) accept(r *rdmacm.Request) (*Conn, error) {
	peer, err := parseConnData(r.Peer().PrivateData)
	if err != nil {
		return nil, errors.Join(err, r.Reject(nil))
	}
	c, err := newConn(r.Device(), r.Transport(), l.cfg.Load())
	if err != nil {
		return nil, errors.Join(err, r.Reject(nil))
	}
	cm, err := r.Accept(l.ctx, c.cmConfig())
	if err != nil {
		return nil, errors.Join(err, c.release())
	}
	c.start(cm, &peer)
	return c, nil
}

// Accept waits for the next connection.
func (l *Listener) Accept() (net.Conn, error) {
	c, err := l.AcceptContext(context.Background())
	if err != nil {
		return nil, err
	}
	return c, nil
}

// AcceptContext waits for the next connection, within ctx.
func (l *Listener) AcceptContext(ctx context.Context) (*Conn, error) {
	var err error
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.ctx.Done():
		err = net.ErrClosed
	case <-l.ended:
		err = l.err
	case <-ctx.Done():
		err = ctx.Err()
	}
	return nil, &net.OpError{Op: "accept", Net: "rsocket", Addr: l.Addr(), Err: err}
}

// Addr returns the address and port that the listener is bound to.
func (l *Listener) Addr() net.Addr { return socketAddr{l.l.Addr().String()} }

// Close closes the listener, and connections that Accept has not returned. Other connections are
// not affected. A second Close returns net.ErrClosed.
func (l *Listener) Close() (err error) {
	first := false
	l.closing.Do(func() {
		first = true
		l.cancel()
		err = l.l.Close()
		l.goroutines.Wait()
	})
	if !first {
		return &net.OpError{Op: "close", Net: "rsocket", Addr: l.Addr(), Err: net.ErrClosed}
	}
	return err
}
