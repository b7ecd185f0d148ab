package rsocket

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/internal/wakeup"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// Listener accepts connections.
type Listener struct {
	l      *rdmacm.Listener
	clock  verbs.Clock
	cfg    atomic.Pointer[Config]
	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	conns  chan *Conn    // for Accept
	slots  chan struct{} // a semaphore of connections that Accept has not returned
	ended  chan struct{} // closed when accepting has failed
	err    error         // the reason; set before ended is closed

	mu       sync.Mutex
	halfOpen []*halfOpen // the oldest first

	closing    wakeup.Once
	goroutines wakeup.Group
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
		l: cm, clock: dev.Clock(), conns: make(chan *Conn, 1), ended: make(chan struct{}),
		// Backlog slots for peers with a validated address, and as many for the others.
		slots: make(chan struct{}, 2*full.Backlog),
	}
	l.cfg.Store(full)
	l.ctx, l.cancel = context.WithCancel(context.Background())
	l.goroutines.Go(l.clock, l.serve)
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
	for l.takeSlot() {
		r, err := l.l.Request(l.ctx)
		if err != nil {
			if l.ctx.Err() == nil {
				l.err = err
				close(l.ended)
			}
			return
		}
		l.goroutines.Go(l.clock, func() {
			defer func() { <-l.slots }()
			c, err := l.accept(r)
			if err != nil {
				return // the request is rejected
			}
			if l.clock.Virtual() {
				l.clock.Park(func() bool { return len(l.conns) < cap(l.conns) || l.ctx.Err() != nil })
			}
			select {
			case l.conns <- c:
			case <-l.ctx.Done():
				_ = c.Close()
			}
		})
	}
}

// halfOpen is a connection that the peer has not completed. It may hold this off for long. Package
// admission would end the peer's oldest one at its share, and so a handshake of many at once.
type halfOpen struct {
	peer  netip.Addr
	since time.Time
	end   context.CancelFunc
}

// begin begins a half-open connection of a peer, until its context ends or established is called.
func (l *Listener) begin(peer netip.Addr) (ctx context.Context, established func()) {
	ctx, end := context.WithCancel(l.ctx)
	h := &halfOpen{peer, l.clock.Now(), end}
	l.mu.Lock()
	l.halfOpen = append(l.halfOpen, h)
	l.mu.Unlock()
	return ctx, func() {
		end()
		l.mu.Lock()
		l.halfOpen = slices.DeleteFunc(l.halfOpen, func(other *halfOpen) bool { return other == h })
		l.mu.Unlock()
	}
}

// takeSlot waits for a slot. While there is none, it ends half-open connections, so that peers
// which complete none do not keep the listener from others. It returns false if the listener ends.
func (l *Listener) takeSlot() bool {
	for {
		select {
		case l.slots <- struct{}{}:
			return true
		default:
		}
		mayEnd, timer := l.clock.NewTimer(l.endOldest())
		if l.clock.Virtual() {
			l.clock.Park(func() bool { return len(l.slots) < cap(l.slots) || l.ctx.Err() != nil || len(mayEnd) > 0 })
		}
		select {
		case l.slots <- struct{}{}:
			timer.Stop()
			return true
		case <-l.ctx.Done():
			timer.Stop()
			return false
		case <-mayEnd:
		}
	}
}

// endOldest ends the oldest half-open connection of the peer with most, if it has lasted for
// mostHalfOpen. It returns the time after which another one may end.
func (l *Listener) endOldest() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	of, most := map[netip.Addr]int{}, 0
	for _, h := range l.halfOpen {
		of[h.peer]++
		most = max(most, of[h.peer])
	}
	for i, h := range l.halfOpen {
		if of[h.peer] < most {
			continue
		}
		if left := mostHalfOpen - l.clock.Since(h.since); left > 0 {
			return left
		}
		h.end()
		l.halfOpen = slices.Delete(l.halfOpen, i, i+1)
		return endInterval
	}
	return mostHalfOpen
}

const (
	// mostHalfOpen is the time that a peer has to complete a connection when all slots are taken.
	mostHalfOpen = time.Second
	// endInterval is the time that a connection that is ended has to free its slot.
	endInterval = 10 * time.Millisecond
)

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
	ctx, established := l.begin(r.PeerAddr().Addr())
	cm, err := r.Accept(ctx, c.cmConfig())
	established()
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
	if l.clock.Virtual() {
		l.clock.Park(func() bool {
			return len(l.conns) > 0 || l.ctx.Err() != nil || wakeup.Closed(l.ended) || ctx.Err() != nil
		})
	}
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
	l.closing.Do(l.clock, func() {
		first = true
		l.cancel()
		err = l.l.Close()
		l.goroutines.Wait(l.clock)
		select {
		case c := <-l.conns:
			_ = c.Close()
		default:
		}
	})
	if !first {
		return &net.OpError{Op: "close", Net: "rsocket", Addr: l.Addr(), Err: net.ErrClosed}
	}
	return err
}
