package rdmacm

import (
	"context"
	"errors"
	"net/netip"
	"sync"

	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/internal/wakeup"
)

// Listener accepts connections: see Listen.
type Listener struct {
	id         *SyncID
	cfg        Config
	ctx        context.Context // ends with Close
	cancel     context.CancelFunc
	conns      chan *Conn // established connections, for Accept
	slots      chan struct{}
	ended      chan struct{} // closed when accepting has failed before Close was called
	err        error         // the reason; set before ended is closed
	accepting  sync.Once
	goroutines wakeup.Group
}

// Listen listens on "host:port"; ":port" means all addresses of the device, and port 0 an ephemeral
// port. cfg has the options of the connections that Listener.Accept returns.
func Listen(dev *verbs.Device, addr string, cfg *Config) (*Listener, error) {
	l := &Listener{conns: make(chan *Conn, 1), ended: make(chan struct{})}
	if cfg != nil {
		l.cfg = *cfg
	}
	if l.cfg.Backlog < 1 {
		l.cfg.Backlog = 1024
	}
	l.slots = make(chan struct{}, maxConcurrentAccepts(l.cfg.Backlog))
	transports, err := l.cfg.transports("listen on " + addr)
	if err != nil {
		return nil, err
	}
	addrs, err := LookupHost(context.Background(), addr)
	if err != nil {
		return nil, err
	}
	if l.id, err = CreateSyncID(TCP, dev); err != nil {
		return nil, err
	}
	err = errors.Join(l.id.SetTOS(l.cfg.TOS), l.id.SetTransports(transports...))
	if err == nil && l.cfg.AFOnly {
		err = l.id.SetAFOnly(true)
	}
	if err == nil {
		err = l.id.Bind(addrs[0])
	}
	if err == nil {
		err = l.id.listen(l.cfg.Backlog, true)
	}
	if err != nil {
		return nil, errors.Join(err, l.id.close())
	}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	return l, nil
}

// Addr returns the address and port that the listener is bound to.
func (l *Listener) Addr() netip.AddrPort { return l.id.LocalAddr() }

// Accept waits for the next established connection, which has the options of Listen's Config. A
// peer that does not complete its handshake is dropped, and does not delay others. From the first
// Accept on, the listener accepts requests in the background. A program must therefore call either
// Accept or Request, not both. When the device has failed or is closed, Accept fails with ENODEV.
func (l *Listener) Accept(ctx context.Context) (*Conn, error) {
	const op = "accept"
	l.accepting.Do(func() { l.goroutines.Go(l.clock(), l.accept) })
	if c := l.clock(); c.Virtual() {
		c.Park(func() bool {
			return len(l.conns) > 0 || l.ctx.Err() != nil || wakeup.Closed(l.ended) || ctx.Err() != nil
		})
	}
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.ctx.Done():
		return nil, verbs.Errorf(verbs.ErrClosed, op, "the listener is closed")
	case <-l.ended:
		return nil, &verbs.Error{Op: op, Err: l.err}
	case <-ctx.Done():
		return nil, &verbs.Error{Op: op, Err: ctx.Err()}
	}
}

// clock returns the clock of waits.
func (l *Listener) clock() verbs.Clock { return l.id.ch.clock() }

// maxConcurrentAccepts returns the number of requests that a listener accepts at a time. There are
// three backlogs (see Provider.Listen). One is for peers whose address is not validated. Its
// requests may be forged, and a forged request occupies a slot until its timeout. The other two are
// for all others, so that one of these, which has one backlog, leaves room.
func maxConcurrentAccepts(backlog int) int { return 3 * backlog }

// accept accepts requests, at most cap(l.slots) at a time.
func (l *Listener) accept() {
	clock := l.clock()
	for {
		if clock.Virtual() {
			clock.Park(func() bool { return len(l.slots) < cap(l.slots) || l.ctx.Err() != nil })
		}
		select {
		case l.slots <- struct{}{}:
		case <-l.ctx.Done():
			return
		}
		r, err := l.Request(l.ctx)
		if err != nil {
			if l.ctx.Err() == nil {
				l.err = err
				close(l.ended)
			}
			return
		}
		l.goroutines.Go(clock, func() {
			defer func() { <-l.slots }()
			c, err := r.Accept(l.ctx, &l.cfg)
			if err != nil {
				return
			}
			if clock.Virtual() {
				clock.Park(func() bool { return len(l.conns) < cap(l.conns) || l.ctx.Err() != nil })
			}
			select {
			case l.conns <- c:
			case <-l.ctx.Done():
				_ = c.Close()
			}
		})
	}
}

// Request waits for a connection request. The application accepts or rejects it.
func (l *Listener) Request(ctx context.Context) (*Request, error) {
	id, err := l.id.GetRequest(ctx)
	if err != nil {
		return nil, err
	}
	return &Request{id, id.Event().Param}, nil
}

// Close closes the listener, and the connections and requests that Accept or Request has not
// returned. Returned ones are not affected. The error is that of ID.Close.
func (l *Listener) Close() error {
	l.accepting.Do(func() {}) // no later Accept starts it
	l.cancel()
	err := l.id.close()
	l.goroutines.Wait(l.clock())
	select {
	case c := <-l.conns:
		_ = c.Close()
	default:
	}
	return err
}

// Request is a connection request of a peer. It must be accepted or rejected.
type Request struct {
	id   *SyncID
	peer ConnParam
}

// Peer returns the request's parameters: private data, and the depths from this side's view.
func (r *Request) Peer() ConnParam { return r.peer }

// Transport returns the wire protocol.
func (r *Request) Transport() verbs.Transport { return r.id.Transport() }

// LocalAddr returns the local address and port.
func (r *Request) LocalAddr() netip.AddrPort { return r.id.LocalAddr() }

// PeerAddr returns the peer's address and port.
func (r *Request) PeerAddr() netip.AddrPort { return r.id.PeerAddr() }

// Device returns the device that received the request.
func (r *Request) Device() *verbs.Device { return r.id.Device() }

// Done returns a channel that is closed when the peer has given up, or the request was rejected or
// has failed. It is that of the connection after Accept.
func (r *Request) Done() <-chan struct{} { return r.id.Done() }

// Accept accepts the request and waits until the connection is established. If that fails the
// request is closed, and the peer gets an error.
func (r *Request) Accept(ctx context.Context, cfg *Config) (*Conn, error) {
	if cfg == nil {
		cfg = &Config{}
	}
	var c *Conn
	_, err := cfg.transports("accept") // the request has chosen one of the listener's
	if err == nil {
		c, err = newConn(r.id, cfg)
	}
	if err == nil {
		err = r.id.Accept(ctx, cfg.param())
	}
	if err != nil {
		return nil, errors.Join(err, r.id.close())
	}
	return c, nil
}

// Reject rejects the request. The peer's *EventError has the private data.
func (r *Request) Reject(privateData []byte) error {
	return errors.Join(r.id.Reject(privateData), r.id.close())
}
