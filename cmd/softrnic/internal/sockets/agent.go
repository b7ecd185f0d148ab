//go:build linux

// Package sockets carries the TCP connections of a program over RDMA as rsockets.
// libsoftrnic-sockets.so is preloaded into the program. It sends a request to an Agent before the
// program connects or listens. If the peer has an rsocket, the agent connects to it, and to the
// program over the loopback interface, and forwards the bytes. The program's socket remains a
// kernel socket. Otherwise the program connects over TCP itself.
//
// If both programs are on this machine, their agents may hand the connection over (Config.Direct):
// meet.go has how agents find each other, direct.go what they keep of such a connection, and
// abort.go how resets reach the other program.
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
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softrnic/softrnic/link/userdir"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/admission"

	"github.com/softrnic/softrnic/cmd/internal/node"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/relay"
)

// Config is the configuration of an agent.
type Config struct {
	// Transports are the wire protocols to listen for. Connections are made over the first. On the
	// machine's own stack iWARP is not used, as it needs the program's TCP ports.
	Transports []verbs.Transport
	// Wait is how long to wait for an rsocket's answer before TCP is used.
	Wait time.Duration
	// Direct makes the agent hand connections between programs of this machine over to them.
	Direct bool
	// Counters count the connections.
	Counters *relay.Counters
}

// Agent answers requests from the library that is preloaded into the program's processes.
type Agent struct {
	cfg   Config
	node  *node.Node
	log   *slog.Logger
	token [tokenLen]byte
	l     *net.UnixListener

	unread   *admission.Gate[uint32]     // Unix connections that have not sent their request, by user
	accepted *admission.Gate[netip.Addr] // connections accepted over RDMA, until they end

	undelivered chan struct{} // a semaphore: connections accepted over RDMA, but not yet by the program

	// Connects with too many pending, and connections that waited as the program had not accepted as
	// many yet.
	declined, backlogged atomic.Uint64
	notDirect            atomic.Uint64 // connections relayed since there are too many direct ones or visits

	ctx    context.Context
	cancel context.CancelFunc
	work   sync.WaitGroup // goroutines that answer, accept or forward

	mu sync.Mutex
	// Addresses over RDMA, by the addresses over the loopback interface.
	names     map[endpoints]endpoints
	bound     recent[uint64, netip.AddrPort] // RDMA address of a bound socket, by its cookie
	listeners map[netip.AddrPort]*rdmaListener
	// Hosts that did not answer, and until when they are not tried again.
	silent  recent[netip.Addr, time.Time]
	pending map[uint64]struct{}     // sockets with a pending connection, by cookie
	direct  map[uint64]*directConn  // by inode of the program's end
	takes   map[endpoints]*handover // by the addresses over the loopback interface
	// Results of connects that have failed, by the socket's cookie.
	failures recent[uint64, failure]
}

// endpoints are the two addresses of a connection.
type endpoints struct{ local, peer netip.AddrPort }

// New returns an agent for a node. The node outlives the agent.
func New(n *node.Node, cfg Config) (*Agent, error) {
	if n.OnMachinesStack() {
		cfg.Transports = slices.DeleteFunc(slices.Clone(cfg.Transports), func(t verbs.Transport) bool { return t == verbs.IWARP })
	}
	if len(cfg.Transports) == 0 {
		return nil, errors.New("iWARP over the machine's own sockets would need the TCP ports that the program has: use RoCEv2, or " +
			"another link")
	}
	a := &Agent{
		cfg: cfg, node: n, log: n.Log, unread: admission.New[uint32](maxUnread),
		accepted: admission.New[netip.Addr](maxAccepted), undelivered: make(chan struct{}, maxUndelivered),
		names: map[endpoints]endpoints{}, bound: newRecent[uint64, netip.AddrPort](maxRecent), listeners: map[netip.AddrPort]*rdmaListener{},
		silent: newRecent[netip.Addr, time.Time](maxRecent), pending: map[uint64]struct{}{},
		direct: map[uint64]*directConn{}, takes: map[endpoints]*handover{},
		failures: newRecent[uint64, failure](maxRecent),
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

// Env returns the value of SOFTRNIC_SOCKETS for the program. The socket's name is in the abstract
// namespace, so that it is reachable from chroots and after a change of user. The token keeps out
// other processes.
func (a *Agent) Env() string {
	env := a.l.Addr().String()[1:] + ":" + hex.EncodeToString(a.token[:])
	if a.cfg.Direct {
		env += ":direct"
	}
	return env
}

// Close ends all forwarded connections.
func (a *Agent) Close() error {
	a.cancel()
	err := a.l.Close()
	a.mu.Lock()
	for at, l := range a.listeners {
		err = errors.Join(err, a.closeListener(at, l))
	}
	a.mu.Unlock()
	a.work.Wait() // from now on nothing uses the descriptors of direct connections
	a.mu.Lock()
	for inode, c := range a.direct {
		a.forgetDirect(inode, c)
	}
	a.mu.Unlock()
	a.work.Wait()
	return err
}

// Drain waits until no socket listens and no connection is pending or forwarded, or until ctx ends.
// It is for processes that the program has started, which may run longer than the program.
func (a *Agent) Drain(ctx context.Context) {
	// Most programs have no such processes, and their direct connections have just ended.
	for wait := watchInterval / 10; a.busy(); wait = min(2*wait, watchInterval) {
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		a.endDirect()
	}
}

func (a *Agent) busy() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.listeners) > 0 || len(a.names) > 0 || len(a.pending) > 0 || len(a.direct) > 0
}

func (a *Agent) serve() {
	userdir.Accept(a.l, func(c *net.UnixConn) {
		place, err := a.admit(c)
		if err != nil {
			a.log.Warn("a connection is refused", "from", c.LocalAddr(), "error", err)
			_ = c.Close()
			return
		}
		a.work.Go(func() {
			defer c.Close()
			r, err := a.read(c, place)
			if err != nil {
				a.log.Warn("a connection is refused", "from", c.LocalAddr(), "error", err)
				return
			}
			defer func() { _ = unix.Close(r.socket) }()
			_ = c.SetDeadline(time.Time{})
			status, name, socket := a.do(&r)
			var rights []byte
			if socket >= 0 {
				rights = unix.UnixRights(socket)
				defer func() { _ = unix.Close(socket) }()
			}
			_, _, _ = c.WriteMsgUnix(answer(status, name), rights, nil)
		})
	})
}

// read reads the request of a connection, and leaves its place.
func (a *Agent) read(c *net.UnixConn, place *admission.Place[uint32]) (r request, err error) {
	defer place.Leave()
	ctx, cancel := context.WithTimeout(a.ctx, requestTimeout)
	defer cancel()
	if err := place.Wait(ctx); err != nil {
		return r, err
	}
	_ = c.SetDeadline(time.Now().Add(requestTimeout))
	return readRequest(c, a.token)
}

// admit admits a connection of the program. Only root's program can have changed its user.
func (a *Agent) admit(c *net.UnixConn) (*admission.Place[uint32], error) {
	cred, err := userdir.Credentials(c)
	if err != nil {
		return nil, err
	}
	if own := uint32(os.Geteuid()); own != 0 && cred.Uid != own && cred.Uid != 0 {
		return nil, fmt.Errorf("it is of user %d", cred.Uid)
	}
	return a.unread.Enter(cred.Uid, func() { _ = c.Close() })
}

// Unread returns the numbers of connections that have not sent their request.
func (a *Agent) Unread() admission.Stats { return a.unread.Stats() }

// Declined returns the number of connects that were left to TCP, because too many were pending.
func (a *Agent) Declined() uint64 { return a.declined.Load() }

// Accepted returns the numbers of connections that have come over RDMA.
func (a *Agent) Accepted() admission.Stats { return a.accepted.Stats() }

// Backlogged returns the number of those that had to wait, because the program had not accepted as
// many yet.
func (a *Agent) Backlogged() uint64 { return a.backlogged.Load() }

// NotDirect returns the number of connections that were not handed over, because too many are or
// too many agents visit.
func (a *Agent) NotDirect() uint64 { return a.notDirect.Load() }

// Any local user may connect to the Unix socket. Therefore the number of connections without a
// request, and the time for sending it, are limited.
const (
	maxUnread      = 512 // a user has half of what the others leave
	requestTimeout = time.Second
)

// Limits of the state that peers and the program can create.
const (
	// maxAccepted limits the open connections accepted over RDMA, of which a peer has half of what the
	// others leave: further ones end at once.
	maxAccepted = 16384
	// maxUndelivered limits those that wait for room in the program's backlog. At this limit the agent
	// stops calling Accept. Peers then wait in the listener's backlog. When that is full, iWARP
	// rejects requests, and RoCE drops them.
	maxUndelivered = 128
	// maxPending limits the program's sockets with a pending connection. Further connections use TCP.
	maxPending = 1024
	// maxRecent limits the entries of each map of recent bound sockets, failed connects, or silent
	// hosts.
	maxRecent = 4096
)

// do handles a request and returns its answer. socket is a descriptor for the program, or -1.
func (a *Agent) do(r *request) (status int32, name netip.AddrPort, socket int) {
	if status, name, socket, ok := a.doDirect(r); ok {
		return status, name, socket
	}
	if p, err := unix.GetsockoptInt(r.socket, unix.SOL_SOCKET, unix.SO_PROTOCOL); err != nil || p != unix.IPPROTO_TCP {
		return declined, name, -1
	}
	switch r.op {
	case opConnect:
		status, socket = a.connectAs(r.socket, r.name, true)
		return status, name, socket
	case opBind:
		return a.bind(r.socket, r.name), name, -1
	case opListen:
		a.listen(r.socket)
		return done, name, -1
	case opTake:
		if status, name, socket, ok := a.takeEnd(r); ok {
			return status, name, socket
		}
		r.op = opPeer
	case opPeer, opLocal:
	case opFailure:
		return a.takeFailure(cookieOf(r.socket)), name, -1
	default:
		return declined, name, -1
	}
	status, name = a.named(r)
	return status, name, -1
}

// named returns a socket's address over RDMA.
func (a *Agent) named(r *request) (status int32, name netip.AddrPort) {
	e := endpoints{localOf(r.socket), peerOf(r.socket)}
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

// forward copies bytes between the connection far and the program's connection, which has the
// addresses e. It returns at once. When both directions have ended, ended is called.
func (a *Agent) forward(program, far net.Conn, e endpoints, ended func()) {
	a.work.Go(func() {
		defer ended()
		defer func() {
			_ = far.Close()
			a.forgetNames(e)
			_ = program.Close() // from now on another connection may reuse the ports of e
		}()
		if err := a.cfg.Counters.Relay(a.ctx, program, far); err != nil && a.ctx.Err() == nil {
			a.cfg.Counters.Failed.Add(1)
			a.log.Debug("a connection has failed", "peer", far.RemoteAddr(), "error", err)
		}
	})
}

// remember records the addresses of a connection over RDMA.
func (a *Agent) remember(e endpoints, far net.Conn) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.names[e] = endpoints{parse(far.LocalAddr()), parse(far.RemoteAddr())}
}

func (a *Agent) forgetNames(e endpoints) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.names, e)
	delete(a.takes, e)
}

// parse returns the address of an rsocket or of TCP.
func parse(addr net.Addr) netip.AddrPort {
	p, _ := netip.ParseAddrPort(addr.String())
	return netip.AddrPortFrom(p.Addr().Unmap(), p.Port())
}
