//go:build linux

// Package sockets carries the TCP connections of a program over RDMA, as rsockets. libsoftrnic-sockets.so, which is loaded into the
// program, asks an Agent before it connects or listens. Where the other side speaks rsockets, the agent connects to that, and to the
// program by the machine's loopback interface, and passes the bytes on; the program's own socket stays what it was. Where it does not,
// the program connects by TCP itself.
package sockets

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softrnic/softrnic/verbs"

	"github.com/softrnic/softrnic/cmd/internal/node"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/relay"
)

// Config says how an agent connects.
type Config struct {
	// Transports are the wire protocols to listen for. Connections are made over the first. On the machine's own stack iWARP is not
	// among them: it would need the TCP ports that the program has.
	Transports []verbs.Transport
	// Wait is how long to wait for an rsocket to answer before TCP is used.
	Wait time.Duration
	// Counters count the connections.
	Counters *relay.Counters
}

// Agent answers the library in a program's processes.
type Agent struct {
	cfg   Config
	node  *node.Node
	log   *slog.Logger
	token [tokenLen]byte
	l     *net.UnixListener
	slots chan struct{} // for requests that have not come yet

	undelivered chan struct{} // a place for each connection that has come over RDMA, and that the program does not have
	accepted    chan struct{} // a place for each that has come, until it has ended

	ctx    context.Context
	cancel context.CancelFunc
	work   sync.WaitGroup // whoever answers, accepts or passes on

	mu        sync.Mutex
	names     map[ends]ends                  // what a connection of the program is called where it is passed on to, by its own addresses
	bound     recent[uint64, netip.AddrPort] // what a socket is bound to over RDMA, by its cookie
	listeners map[netip.AddrPort]*listener
	silent    recent[netip.Addr, time.Time] // hosts that did not answer, and until when they are not asked again
	pending   map[uint64]struct{}           // sockets that wait for their connection, by their cookies
	failures  recent[uint64, failure]       // sockets that waited in vain
}

// ends are the addresses of a connection.
type ends struct{ local, peer netip.AddrPort }

// New makes an agent for a node, which outlives it.
func New(n *node.Node, cfg Config) (*Agent, error) {
	if n.OnMachinesStack() {
		cfg.Transports = slices.DeleteFunc(slices.Clone(cfg.Transports), func(t verbs.Transport) bool { return t == verbs.IWARP })
	}
	if len(cfg.Transports) == 0 {
		return nil, errors.New("iWARP over the machine's own sockets would need the TCP ports that the program has: use RoCEv2, or another link")
	}
	a := &Agent{
		cfg: cfg, node: n, log: n.Log, slots: make(chan struct{}, maxUnread),
		undelivered: make(chan struct{}, maxUndelivered), accepted: make(chan struct{}, maxAccepted),
		names: map[ends]ends{}, bound: newRecent[uint64, netip.AddrPort](maxRecent), listeners: map[netip.AddrPort]*listener{},
		silent: newRecent[netip.Addr, time.Time](maxRecent), pending: map[uint64]struct{}{}, failures: newRecent[uint64, failure](maxRecent),
	}
	_, _ = rand.Read(a.token[:])
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: "@softrnic-sockets-" + rand.Text(), Net: "unixpacket"})
	if err != nil {
		return nil, fmt.Errorf("listen for the program's requests: %w", err)
	}
	a.l = l
	a.ctx, a.cancel = context.WithCancel(context.Background())
	a.work.Go(a.serve)
	a.work.Go(a.watch)
	return a, nil
}

// Env is the value of SOFTRNIC_SOCKETS for the program. The name is in the abstract namespace, so that it is there in chroots and for
// other users that the program becomes; the token is what others do not know.
func (a *Agent) Env() string {
	return a.l.Addr().String()[1:] + ":" + hex.EncodeToString(a.token[:])
}

// Close ends all connections that are passed on.
func (a *Agent) Close() error {
	a.cancel()
	err := a.l.Close()
	a.mu.Lock()
	for at, l := range a.listeners {
		err = errors.Join(err, a.forget(at, l))
	}
	a.mu.Unlock()
	a.work.Wait()
	return err
}

// Drain waits until nobody listens any more, and no connection is made or passed on, or until ctx ends: what the program has started may go on
// when it has ended itself.
func (a *Agent) Drain(ctx context.Context) {
	for a.busy() {
		select {
		case <-ctx.Done():
			return
		case <-time.After(watchInterval):
		}
	}
}

func (a *Agent) busy() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.listeners) > 0 || len(a.names) > 0 || len(a.pending) > 0
}

func (a *Agent) serve() {
	for {
		a.slots <- struct{}{}
		c, err := a.l.AcceptUnix()
		switch {
		case a.ctx.Err() != nil:
			if err == nil {
				_ = c.Close()
			}
			return
		case err != nil: // too many files are open: what is to be accepted stays there
			<-a.slots
			a.log.Warn("a request of the program could not be taken", "error", err)
			time.Sleep(watchInterval)
			continue
		}
		a.work.Go(func() {
			defer c.Close()
			_ = c.SetDeadline(time.Now().Add(requestTimeout))
			r, err := readRequest(c, a.token)
			<-a.slots
			if err != nil {
				a.log.Warn("a request of the program is refused", "error", err)
				return
			}
			defer func() { _ = unix.Close(r.socket) }()
			_ = c.SetDeadline(time.Time{})
			_, _ = c.Write(answer(a.do(&r)))
		})
	}
}

// Who connects may be another user, without the token: so many wait at most, and a request must come in so long.
const (
	maxUnread      = 256
	requestTimeout = time.Second
)

// Bounds on what peers, and the program, can have the agent keep.
const (
	// maxUndelivered and maxAccepted are how many connections that have come over RDMA wait for the program, whose own queue is full,
	// and how many there are. Beyond, none is accepted: the peers wait in the rsocket's backlog, or are refused.
	maxUndelivered = 128
	maxAccepted    = 16384
	// maxPending is how many sockets of the program wait for a connection. Beyond, TCP makes it.
	maxPending = 1024
	// maxRecent is how many sockets that are bound, or whose connect has failed, and how many silent hosts are remembered.
	maxRecent = 4096
)

// do does what a request asks for, and returns its answer.
func (a *Agent) do(r *request) (status int32, name netip.AddrPort) {
	if p, err := unix.GetsockoptInt(r.socket, unix.SOL_SOCKET, unix.SO_PROTOCOL); err != nil || p != unix.IPPROTO_TCP {
		return declined, name
	}
	switch r.op {
	case opConnect:
		return a.connect(r.socket, r.name), name
	case opBind:
		return a.bind(r.socket, r.name), name
	case opListen:
		a.listen(r.socket)
		return done, name
	case opPeer, opLocal:
		return a.named(r)
	case opFailure:
		return a.failed(cookieOf(r.socket)), name
	}
	return declined, name
}

// named answers what a socket's address is over RDMA.
func (a *Agent) named(r *request) (status int32, name netip.AddrPort) {
	e := ends{localOf(r.socket), peerOf(r.socket)}
	cookie := cookieOf(r.socket)
	a.mu.Lock()
	defer a.mu.Unlock()
	if names, ok := a.names[e]; ok && r.op == opPeer {
		return done, names.peer
	} else if ok {
		return done, names.local
	}
	if bound, ok := a.bound.get(cookie); ok && r.op == opLocal && !e.peer.IsValid() {
		return done, bound
	}
	return declined, name
}

// passOn passes a connection on to one that the program has, until both have ended, and then calls ended. The program calls its own e.
func (a *Agent) passOn(program, far net.Conn, e ends, ended func()) {
	a.work.Go(func() {
		defer ended()
		defer func() {
			_ = far.Close()
			a.forgetNames(e)
			_ = program.Close() // from now on another connection may have the ports of e
		}()
		if err := a.cfg.Counters.Relay(a.ctx, program, far); err != nil && a.ctx.Err() == nil {
			a.cfg.Counters.Failed.Add(1)
			a.log.Debug("a connection has failed", "peer", far.RemoteAddr(), "error", err)
		}
	})
}

// remember notes what a connection is called where it is passed on to.
func (a *Agent) remember(e ends, far net.Conn) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.names[e] = ends{parse(far.LocalAddr()), parse(far.RemoteAddr())}
}

func (a *Agent) forgetNames(e ends) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.names, e)
}

// parse is the address of an rsocket or of TCP.
func parse(addr net.Addr) netip.AddrPort {
	p, _ := netip.ParseAddrPort(addr.String())
	return netip.AddrPortFrom(p.Addr().Unmap(), p.Port())
}
