package rpcrdma

import (
	"context"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/admission"
	"github.com/softrnic/softrnic/verbs/internal/wakeup"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// Call is an RPC call that a client has sent.
type Call struct {
	// Message is the RPC call message, from the XID on. It is valid until HandleRPC returns.
	Message []byte
	// Room is the number of bytes for a reply that the client has room for, or a few more.
	Room int
	// LocalAddr and PeerAddr are the addresses of the connection.
	LocalAddr, PeerAddr netip.AddrPort
}

// Handler answers RPC calls. Its method may be called for several calls at the same time, also of
// one client: at most Config.Credits of a connection.
type Handler interface {
	// HandleRPC returns the RPC reply message, from the XID on. The transport uses it until it is
	// sent. If it is nil, the client gets no reply. ctx ends with the connection.
	HandleRPC(ctx context.Context, call *Call) (reply []byte)
}

// HandlerFunc is a function that is a Handler.
type HandlerFunc func(ctx context.Context, call *Call) (reply []byte)

// HandleRPC calls f.
func (f HandlerFunc) HandleRPC(ctx context.Context, call *Call) []byte { return f(ctx, call) }

// Listener accepts the connections of clients and serves their calls.
type Listener struct {
	l      *rdmacm.Listener
	clock  verbs.Clock
	cfg    *Config
	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	gate   *admission.Gate[netip.Addr] // of connections
	memory *budget
	stats  counters

	mu         sync.Mutex // orders Serve and Close
	closed     bool
	closing    wakeup.Once
	closeErr   error
	goroutines wakeup.Group
}

// Stats are counters of a listener, since it was created, except Connections.
type Stats struct {
	Connections uint64 // at present
	Accepted    uint64 // connections
	// Admission has the places of connections. Those without a call are strangers'.
	Admission admission.Stats
	Calls     uint64
	Replies   uint64
	Errors    uint64 // error messages sent
	// Waited are the calls that had to wait for memory, because their peer or all had as much as they
	// may.
	Waited uint64
	// Received and Sent are the lengths of RPC messages. ByRead and ByWrite are the parts of them
	// that RDMA READs and WRITEs moved.
	Received, Sent, ByRead, ByWrite uint64
}

type counters struct {
	connections                                                       atomic.Int64
	accepted, calls, replies, errors, received, sent, byRead, byWrite atomic.Uint64
}

// Stats returns the counters.
func (l *Listener) Stats() Stats {
	c := &l.stats
	return Stats{
		Connections: uint64(c.connections.Load()), Accepted: c.accepted.Load(), Admission: l.gate.Stats(),
		Calls: c.calls.Load(), Replies: c.replies.Load(), Errors: c.errors.Load(), Waited: l.memory.waits(),
		Received: c.received.Load(), Sent: c.sent.Load(), ByRead: c.byRead.Load(), ByWrite: c.byWrite.Load(),
	}
}

// Listen listens on "host:port"; ":port" means all addresses of the device, and port 0 an ephemeral
// port. Connections are accepted by Serve.
func Listen(dev *verbs.Device, addr string, cfg *Config) (*Listener, error) {
	full, err := cfg.check()
	if err != nil {
		return nil, err
	}
	cm, err := rdmacm.Listen(dev, addr, &rdmacm.Config{Transports: full.Transports})
	if err != nil {
		return nil, err
	}
	l := &Listener{l: cm, clock: dev.Clock(), cfg: full, gate: admission.New[netip.Addr](full.MaxConns),
		memory: newBudget(dev.Clock(), full.Memory)}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	return l, nil
}

// Addr returns the address and port that the listener is bound to.
func (l *Listener) Addr() netip.AddrPort { return l.l.Addr() }

// Serve accepts connections and passes their calls to h, until Close is called; it then returns
// nil. Other errors are those of the device.
func (l *Listener) Serve(h Handler) error {
	return l.ServeConns(func(context.Context, *Conn) (Handler, error) { return h, nil })
}

// ServeConns is Serve with a handler for each connection. It calls begin with a connection that it
// is about to accept, or to reject if there is an error. ctx ends with the connection.
func (l *Listener) ServeConns(begin func(ctx context.Context, c *Conn) (Handler, error)) error {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return nil
	}
	l.goroutines.Add()
	l.mu.Unlock()
	defer l.goroutines.Done()
	for {
		r, err := l.l.Request(l.ctx)
		if err != nil {
			if l.ctx.Err() != nil {
				return nil
			}
			return err
		}
		ctx, cancel := context.WithCancel(l.ctx)
		place, err := l.gate.Enter(r.PeerAddr().Addr(), cancel)
		if err != nil {
			cancel()
			_ = r.Reject(nil)
			continue
		}
		s := &server{l: l, local: r.LocalAddr(), peer: r.PeerAddr(), admitted: place, backward: newCalls(l.clock, l.cfg.BackwardCredits),
			ctx: ctx, cancel: cancel}
		l.goroutines.Go(l.clock, func() {
			defer place.Leave()
			s.handle(r, begin)
		})
	}
}

// acceptTimeout is the time that a client has to get its place and complete its connection. rdma_cm
// alone lets a RoCE client have a quarter of an hour.
const acceptTimeout = 30 * time.Second

// handle accepts a connection and serves its calls until it ends.
func (s *server) handle(r *rdmacm.Request, begin func(context.Context, *Conn) (Handler, error)) {
	defer s.cancel()
	l := s.l
	accepting, cancel := l.clock.WithTimeout(s.ctx, acceptTimeout)
	defer cancel()
	err := s.admitted.WaitFor(accepting, l.clock, r.Done())
	if err != nil {
		_ = r.Reject(nil)
		return
	}
	c := &Conn{s: s, ready: make(chan struct{})}
	if s.handler, err = begin(s.ctx, c); err != nil {
		_ = r.Reject(nil)
		return
	}
	if s.conn, err = newConn(r.Device(), l.cfg); err != nil {
		_ = r.Reject(nil)
		return
	}
	peer := parsePrivate(r.Peer().PrivateData)
	s.invalidate = peer.invalidate
	cm, err := r.Accept(accepting, s.cmConfig(private{invalidate: true, send: l.cfg.Inline, recv: l.cfg.Inline}))
	cancel()
	if err != nil {
		_ = s.release()
		return
	}
	l.stats.accepted.Add(1)
	l.stats.connections.Add(1)
	defer l.stats.connections.Add(-1)
	s.start(cm, peer)
	close(c.ready)
	l.clock.Go(s.keepAlive)
	s.run(s.ctx, s.received)
	s.cancel()
	s.backward.end(s.reason())
	s.calls.Wait(l.clock)
	_ = s.close()
}

// Close closes the listener and its connections, and waits for calls that are being handled.
func (l *Listener) Close() error {
	l.closing.Do(l.clock, func() {
		l.mu.Lock()
		l.closed = true
		l.mu.Unlock()
		l.cancel()
		l.closeErr = l.l.Close()
		l.goroutines.Wait(l.clock)
	})
	return l.closeErr
}
