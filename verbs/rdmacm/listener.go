package rdmacm

import (
	"context"
	"errors"
	"net/netip"
	"sync"

	"github.com/softrnic/softrnic/verbs"
)

// Listener waits for connections.
type Listener struct {
	id     *SyncID
	cfg    Config
	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	conns  chan *Conn // established, for Accept
	slots  chan struct{}
	ended  chan struct{} // closed when requests cannot be taken any more, though Close was not called
	err    error         // why; set before
	pump   sync.Once
	work   sync.WaitGroup
}

// Listen listens on "host:port"; ":port" means all addresses of the device, port 0 draws one. cfg is for Accept.
func Listen(dev *verbs.Device, addr string, cfg *Config) (*Listener, error) {
	l := &Listener{conns: make(chan *Conn), ended: make(chan struct{})}
	if cfg != nil {
		l.cfg = *cfg
	}
	if l.cfg.Backlog < 1 {
		l.cfg.Backlog = 1024
	}
	l.slots = make(chan struct{}, l.cfg.Backlog)
	addrs, err := LookupHost(context.Background(), addr)
	if err != nil {
		return nil, err
	}
	if l.id, err = CreateSyncID(TCP, dev); err != nil {
		return nil, err
	}
	err = errors.Join(l.id.SetTOS(l.cfg.TOS), l.id.SetTransports(l.cfg.transports()...))
	if err == nil {
		err = l.id.Bind(addrs[0])
	}
	if err == nil {
		err = l.id.listen(l.cfg.Backlog, true)
	}
	if err != nil {
		return nil, errors.Join(err, l.id.Destroy())
	}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	return l, nil
}

// Addr is the address that the listener is bound to.
func (l *Listener) Addr() netip.AddrPort { return l.id.LocalAddr() }

// Accept waits for the next connection that is established, made with the Config of Listen. Peers that do not complete
// their handshake hold up nobody; they are dropped. From the first call on the listener accepts by itself: it takes
// either Accept or Request. When its device is gone, Accept fails with ENODEV.
func (l *Listener) Accept(ctx context.Context) (*Conn, error) {
	const op = "accept"
	l.pump.Do(func() { l.work.Go(l.accept) })
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.ctx.Done():
		return nil, verbs.Errorf(verbs.ErrDestroyed, op, "the listener is closed")
	case <-l.ended:
		return nil, &verbs.Error{Op: op, Detail: l.err.Error(), Err: l.err}
	case <-ctx.Done():
		return nil, &verbs.Error{Op: op, Detail: ctx.Err().Error(), Err: ctx.Err()}
	}
}

// accept answers requests, as many at a time as the backlog has room for.
func (l *Listener) accept() {
	for {
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
		l.work.Go(func() {
			defer func() { <-l.slots }()
			c, err := r.Accept(l.ctx, &l.cfg)
			if err != nil {
				return
			}
			select {
			case l.conns <- c:
			case <-l.ctx.Done():
				_ = c.Close()
			}
		})
	}
}

// Request waits for a connection request, to be looked at before it is accepted or rejected.
func (l *Listener) Request(ctx context.Context) (*Request, error) {
	id, err := l.id.GetRequest(ctx)
	if err != nil {
		return nil, err
	}
	return &Request{id}, nil
}

// Close ends the listener, with the connections and requests that nobody has taken. Those taken live on.
func (l *Listener) Close() error {
	l.cancel()
	err := l.id.Destroy()
	l.work.Wait()
	return err
}

// Request is a peer that asks for a connection. It must be accepted or rejected.
type Request struct{ id *SyncID }

// Peer is what the peer sent: private data, and depths as seen from here.
func (r *Request) Peer() ConnParam { return r.id.Event().Param }

// Transport is the wire protocol that it came over.
func (r *Request) Transport() verbs.Transport { return r.id.Transport() }

// LocalAddr is the address and port that it came to.
func (r *Request) LocalAddr() netip.AddrPort { return r.id.LocalAddr() }

// PeerAddr is the peer's address and port.
func (r *Request) PeerAddr() netip.AddrPort { return r.id.PeerAddr() }

// Device is the device that it came in on.
func (r *Request) Device() *verbs.Device { return r.id.Device() }

// Accept makes the connection and waits until it is established. If that fails the request is gone, and the peer has
// been told.
func (r *Request) Accept(ctx context.Context, cfg *Config) (*Conn, error) {
	if cfg == nil {
		cfg = &Config{}
	}
	c, err := newConn(r.id, cfg)
	if err == nil {
		err = r.id.Accept(ctx, cfg.param())
	}
	if err != nil {
		return nil, errors.Join(err, r.id.Destroy())
	}
	return c, nil
}

// Reject turns the request down; the peer's error has the private data.
func (r *Request) Reject(privateData []byte) error {
	return errors.Join(r.id.Reject(privateData), r.id.Destroy())
}
