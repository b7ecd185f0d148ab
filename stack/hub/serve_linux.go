package hub

// Design of the hub.
//
// Steering. The kernel passes most datagrams from other machines straight to the clients, on
// sockets that the hub opens for them at its addresses (see sockets_linux.go). The hub receives the
// rest:
//   - MADs, as their reader must know the connections of all processes.
//   - Datagrams for numbers without a client. The hub speaks for clients that have died.
//   - All datagrams from its own addresses: it recognizes the sending client, and drops forged ones.
//     Most data between two clients uses their rings instead.
//   - Flows in which one superframe was for two clients. GRO joins datagrams by addresses and ports,
//     and the kernel selects the socket by the first. The client that gets such a superframe drops
//     the others' datagrams, as it could forge what it passed on, and reports the flow.
//   - Everything for clients that take no sockets, and on kernels that cannot steer.
//
// A client is trusted with its socket as far as processes of one user are (see SECURITY.md). A hub
// of the machine (Config.System) therefore passes no sockets, and relays all datagrams. On Linux
// 6.18 a process of another user with one socket of the group did the following, each by one system
// call, and also with SO_LOCK_FILTER set. Of 40 datagrams for another client's socket it got:
//
//	call                                 IPv4  IPv6  with SO_LOCK_FILTER
//	attach a program                     40    40    refused (EPERM)
//	detach the program                   any   any   the same; the kernel chooses by a hash
//	connect to the peer, for that port   40    40    the same
//	SO_REUSEPORT to 0                    40    0     the same
//	SO_BINDTODEVICE                      40    0     the same
//	bind one more socket                 refused (EADDRINUSE), as it is another user's
//
// SO_BINDTODEVICE also takes the socket from the group, which changes the others' indices. A
// process that has ended may have passed its socket to another, which then shares it with the next
// client. None of these can forge a datagram for another client, or receive a MAD that is not
// visible to it otherwise. A program of eBPF at the interface (bpf_sk_assign) could select sockets
// that are not of one group. It needs CAP_NET_ADMIN and CAP_BPF.
//
// The cost of relaying: a plain receiver of superframes of 60 KiB over lo, with three busy threads
// on two processors, was measured. With another thread's recvmmsg and a copy it reached 0.51 of the
// throughput of its own socket (0.37 to 0.70 in eight interleaved runs). If hub and client share
// one processor, most of the time was lost in waiting for each other. Therefore waiting clients
// yield (package ring), and the hub's sockets use direct waits (package rxsocket).
//
// Reception. A goroutine for each address reads its socket with recvmmsg, up to eight superframes
// at a time. The classifier names the destination of each datagram. Consecutive datagrams for the
// same client are copied into its ring as one record, with the addresses that the kernel reported.
// The hub checks the ICRCs of superframes before it copies. The client then uses the data in place,
// without another copy for the check. Finally the hub wakes the client if it sleeps. If the ring
// has no room, the record is lost and counted, so that no client can make the hub wait. The client
// has created and sealed the ring's memory. The hub writes to it and reads one index, which it
// checks (see package ring).
//
// Locks. relay.mu is held while arrivals are delivered, and while the ownership of numbers changes.
// No slow operation runs under it. server.mu guards the rest: leases and their file, sockets, and
// connections.

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softrnic/softrnic/link/idle"
	"github.com/softrnic/softrnic/link/ring"
	"github.com/softrnic/softrnic/link/userdir"
)

// Limits for clients.
const (
	maxConns         = 512 // connections, including those without a hello
	maxPerProcess    = 16  // clients in one process
	maxSilent        = 32  // connections of one process without a hello
	maxUnknown       = 256 // the same for all processes without a visible PID (in other containers)
	maxAddrs         = 256 // addresses of a client
	maxServices      = 4096
	maxSourceSockets = 8 * maxAddrs // sockets that a client sends from
)

// helloTimeout limits the time until the other side has sent its hello.
const helloTimeout = 2 * time.Second

type server struct {
	cfg      Config
	listener *net.UnixListener
	lock     *os.File
	relay    *relay
	began    time.Time
	work     sync.WaitGroup
	direct   idle.DirectWait // of the sockets

	mu          sync.Mutex
	closed      bool
	leases      *leases
	conns       map[*net.UnixConn]bool
	users       map[uint32]*user
	silent      map[origin]int // connections without a hello
	members     map[*member]bool
	idle        time.Time // the time since which there are no members
	complete    time.Time // of the last check with missing clients of an earlier hub, or the first check
	sockets     map[netip.Addr]*listening
	cannotSteer sync.Once // logs that the kernel cannot steer
	pairings    map[pairKey]*pairing
	serial      uint32 // of the last pairing
}

// Serve runs a hub until ctx ends or the idle time has passed, neither of which is an error. The
// error wraps [ErrRunning] if a hub of this user is running already.
func Serve(ctx context.Context, cfg Config) error {
	if cfg.Classifier == nil {
		return errors.New("hub: a Config without a Classifier: use classify.New()")
	}
	switch {
	case cfg.Directory != "":
	case cfg.System:
		cfg.Directory = SystemDirectory()
	default:
		cfg.Directory = Directory()
	}
	cfg.Relay = cfg.Relay || cfg.System // see the design above
	if cfg.Quarantine == 0 {
		cfg.Quarantine = defaultQuarantine
	}
	if cfg.Reclaim == 0 {
		cfg.Reclaim = defaultReclaim
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if err := serveDirectory(ctx, cfg); err != nil {
		return fmt.Errorf("hub: %w", err)
	}
	return nil
}

func serveDirectory(ctx context.Context, cfg Config) error {
	makeDirectory := userdir.Make
	if cfg.System {
		makeDirectory = userdir.MakePublic
	}
	if err := makeDirectory(cfg.Directory); err != nil {
		return err
	}
	lock, err := os.OpenFile(filepath.Join(cfg.Directory, lockName), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer lock.Close() // released last, because the successor then starts
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); errors.Is(err, unix.EWOULDBLOCK) {
		return fmt.Errorf("%s: %w", cfg.Directory, ErrRunning)
	} else if err != nil {
		return fmt.Errorf("%s: %w", lock.Name(), err)
	}
	if err := errors.Join(lock.Truncate(0), os.WriteFile(lock.Name(), fmt.Appendln(nil, os.Getpid()), 0o600)); err != nil {
		return err
	}
	if cfg.Counters == nil {
		cfg.Counters = new(Counters)
	}
	s := &server{cfg: cfg, lock: lock, began: time.Now(), relay: newRelay(cfg.Classifier, cfg.Counters),
		conns: map[*net.UnixConn]bool{}, users: map[uint32]*user{}, silent: map[origin]int{}, members: map[*member]bool{}, idle: time.Now(),
		sockets: map[netip.Addr]*listening{}, pairings: map[pairKey]*pairing{}, serial: rand.Uint32()}
	if s.leases, err = loadLeases(filepath.Join(cfg.Directory, leasesName), cfg.Log); err != nil {
		return err
	}
	s.leases.owned, s.leases.fair, s.relay.system = s.owns, cfg.System, cfg.System
	for _, l := range s.leases.missing() {
		s.relay.classifier.Leased(l.numbers())
		s.relay.patient = true
	}
	if err := s.open(); err != nil {
		s.close()
		return err
	}
	cfg.Log.Info("the hub is up", "directory", cfg.Directory)
	s.work.Go(func() { userdir.Accept(s.listener, s.accept) })
	s.untilIdle(ctx)
	s.close()
	cfg.Log.Info("the hub ends", "dropped", cfg.Counters.Dropped.Load())
	return nil
}

// open opens the sockets of the hub's own addresses, and the listening socket for clients. After an
// error the caller closes them.
func (s *server) open() (err error) {
	for _, a := range s.cfg.Addrs {
		if err := s.listen(a.WithZone(""), a.Zone()); err != nil {
			return err
		}
	}
	path := filepath.Join(s.cfg.Directory, socketName)
	if len(path) > userdir.MaxPath {
		return fmt.Errorf("the path %s has %d bytes, but a unix socket allows %d: use a shorter directory",
			path, len(path), userdir.MaxPath)
	}
	_ = os.Remove(path) // left by an earlier hub
	s.listener, err = net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		return err
	}
	s.listener.SetUnlinkOnClose(false)
	if s.cfg.System {
		return os.Chmod(path, 0o666) // all users may connect
	}
	return nil
}

// owns reports whether the lock in the directory is this hub's. The directory may have been
// removed, for example at the end of a session, and another hub may have created it again.
func (s *server) owns() bool {
	is, err := os.Stat(filepath.Join(s.cfg.Directory, lockName))
	own, err2 := s.lock.Stat()
	return err == nil && err2 == nil && os.SameFile(is, own)
}

// untilIdle performs periodic work until the hub should end.
func (s *server) untilIdle(ctx context.Context) {
	reclaim := time.After(s.cfg.Reclaim)
	tick := time.NewTimer(0)
	defer tick.Stop()
	for {
		again := s.relay.sendDue()
		s.settle()
		steady := s.lookAgain()
		s.relay.forgetSenders(time.Now())
		s.mu.Lock()
		unused := len(s.conns) == 0 && len(s.leases.missing()) == 0 && again == 0
		idle := unused && s.cfg.Idle > 0 && time.Since(s.idle) >= s.cfg.Idle
		s.mu.Unlock()
		if idle {
			return
		}
		wait := time.Second
		if again > 0 {
			wait = min(wait, again)
		}
		if !steady {
			wait = min(wait, lookInterval)
		}
		if s.cfg.Idle > 0 {
			wait = min(wait, s.cfg.Idle)
		}
		tick.Reset(wait)
		select {
		case <-ctx.Done():
			return
		case <-reclaim:
			if s.dropMissing() {
				reclaim = time.After(min(s.cfg.Reclaim, time.Second))
			}
		case <-s.relay.wake:
		case <-tick.C:
		}
	}
}

// settleTime is the time for clients of an earlier hub to restore their registrations, after all
// have connected. It is a variable for tests.
var settleTime = time.Second

// settle ends the patient state of a hub that has succeeded another. Until the clients have
// restored their registrations, the hub does not know which numbers are unused, and refuses none.
// Peers retransmit.
func (s *server) settle() {
	now := time.Now() // read once: this process may get no CPU time between two reads
	s.mu.Lock()
	if len(s.leases.missing()) > 0 || s.complete.IsZero() {
		s.complete = now
	}
	settled := now.Sub(s.complete) >= settleTime
	s.mu.Unlock()
	if settled {
		s.relay.mu.Lock()
		s.relay.patient = false
		s.relay.mu.Unlock()
	}
}

// maxReclaim limits the wait for a missing client of an earlier hub whose process is alive. The
// process may get no CPU time. After maxReclaim it is most likely no client any more.
const maxReclaim = 2 * time.Minute

// dropMissing declares missing clients of an earlier hub dead, unless their processes are alive. It
// reports whether there are missing clients that are alive.
func (s *server) dropMissing() (alive bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.leases.missing() {
		if l.holder.isAlive() && time.Since(s.began) < maxReclaim {
			alive = true
			continue
		}
		s.cfg.Log.Info("a client of the previous hub has not come back", "QPNs", fmt.Sprintf("%#x", l.numbers().QPNs.Base))
		s.leases.end(l, time.Now())
		s.endPairs(l.qpnSlot)
		s.relay.died(l.numbers())
	}
	return alive
}

func (s *server) close() {
	s.mu.Lock()
	s.closed = true
	if s.listener != nil {
		_ = s.listener.Close()
		if s.owns() {
			_ = os.Remove(filepath.Join(s.cfg.Directory, socketName))
		}
	}
	for c := range s.conns {
		_ = c.Close()
	}
	sockets := s.sockets
	s.sockets = map[netip.Addr]*listening{}
	s.mu.Unlock()
	for _, in := range sockets {
		in.Close()
	}
	s.work.Wait()
	for _, p := range s.pairings { // pairs continue to exist when the hub ends
		_ = unix.Close(p.fd)
	}
	s.relay.close()
}

// accept serves a connection, unless there are too many. Limits per process and per user keep one
// from excluding the others.
func (s *server) accept(conn *net.UnixConn) {
	peer, err := userdir.Credentials(conn)
	if err != nil {
		_ = conn.Close()
		return
	}
	most := maxSilent
	if peer.Pid == 0 {
		most = maxUnknown
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	from := origin{peer.Uid, peer.Pid}
	var u *user
	if !s.closed && len(s.conns) < maxConns && s.silent[from] < most {
		u = s.enter(peer.Uid)
	}
	if u == nil {
		s.cfg.Counters.Refused.Add(1)
		_ = conn.Close()
		return
	}
	s.conns[conn] = true
	s.silent[from]++
	s.work.Go(func() { s.talk(conn, from, u) })
}

// talk serves one connection.
func (s *server) talk(conn *net.UnixConn, from origin, u *user) {
	defer func() {
		_ = conn.Close()
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.conns, conn)
		s.leave(u)
	}()
	m, err := s.handshake(conn, from.pid, u)
	s.mu.Lock()
	if s.silent[from]--; s.silent[from] == 0 {
		delete(s.silent, from)
	}
	s.mu.Unlock()
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return // the client tries again: this process may have had no CPU time
	}
	if err != nil {
		s.refused(err)
		if !isAbsent(err) { // the client has left, or only checked for a hub
			s.cfg.Log.Warn("a process was refused as a client", "error", err)
		}
		w := welcome{err: err}
		_, _ = conn.Write(w.encode())
		return
	}
	defer func() {
		_ = s.inTurn(m, func() error {
			s.remove(m)
			return nil
		})
	}()
	w := welcome{secret: m.lease.secret, span: m.lease.span}
	if _, err := conn.Write(w.encode()); err != nil {
		return
	}
	b := make([]byte, requestLen+1)
	for {
		n, fds, err := ring.Receive(conn, b)
		if err != nil || n == 0 {
			ring.CloseAll(fds)
			return
		}
		r, err := decodeRequest(b[:n])
		if err == nil && r.hasSocket() != (len(fds) == 1) {
			err = fmt.Errorf("a request of kind %d with %d descriptors", r.kind, len(fds))
		}
		var a answer
		if err == nil {
			a = answer{r.number, s.inTurn(m, func() error { return s.do(m, &r, fds) })}
			s.refused(a.err)
		}
		ring.CloseAll(fds)
		if err != nil {
			s.cfg.Log.Warn("a client is disconnected", "pid", m.pid, "error", err)
			return
		}
		if err := m.tell(a.encode()); err != nil {
			return // it does not read its answers
		}
	}
}

// handshake makes a process with a valid hello a client.
func (s *server) handshake(conn *net.UnixConn, pid int32, u *user) (*member, error) {
	if !s.cfg.System {
		if err := ownUser(conn); err != nil {
			return nil, err
		}
	}
	if err := conn.SetReadDeadline(time.Now().Add(helloTimeout)); err != nil {
		return nil, err
	}
	var h hello
	memory, err := ring.ReceiveMemory(conn, func(b []byte) (_ int, err error) {
		if len(b) == 0 {
			return 0, errGone
		}
		h, err = decodeHello(b)
		if err == nil && s.cfg.System && h.ring > defaultRing {
			err = fmt.Errorf("a ring of %d bytes, at most %d: %w", h.ring, defaultRing, unix.EINVAL)
		}
		return h.ring, err
	})
	if err != nil {
		return nil, err
	}
	m, err := newMember(conn, memory, pid, u)
	if err == nil {
		err = conn.SetReadDeadline(time.Time{})
	}
	if err == nil {
		err = s.inTurn(m, func() error { return s.add(m, &h) })
	}
	if err != nil {
		_ = unix.Munmap(memory)
		return nil, err
	}
	return m, nil
}

// ownUser returns an error if the peer process belongs to another user.
func ownUser(conn *net.UnixConn) error {
	cred, err := userdir.Credentials(conn)
	if err == nil && int(cred.Uid) != os.Geteuid() {
		err = fmt.Errorf("the process at the other end is of user %d, and this of %d: a hub is for one user, "+
			"except that of the machine, softrnic hub --system: %w", cred.Uid, os.Geteuid(), unix.EPERM)
	}
	return err
}

// add gives a client a lease.
func (s *server) add(m *member, h *hello) (err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	same := 0
	for o := range s.members {
		if o.pid == m.pid && o.user == m.user {
			same++
		}
	}
	switch {
	case s.closed:
		return net.ErrClosed
	case same >= maxPerProcess:
		return fmt.Errorf("process %d has %d clients already: %w", m.pid, same, unix.EAGAIN)
	}
	if m.lease, err = s.leases.take(h.secret, h.bits, m.user.uid, processOf(m.pid), time.Now(), s.cfg.Quarantine); err != nil {
		return err
	}
	m.numbers = m.lease.numbers()
	s.members[m] = true
	s.cfg.Counters.Clients.Add(1)
	s.relay.add(m)
	s.cfg.Log.Debug("a client has joined", "pid", m.pid, "QPNs", fmt.Sprintf("%#x", m.lease.numbers().QPNs.Base))
	return nil
}

// remove ends a client's registrations.
func (s *server) remove(m *member) {
	s.relay.remove(m) // its ring is not used from now on
	_ = unix.Munmap(m.memory)
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.members, m)
	s.cfg.Counters.Clients.Add(-1)
	for a := range m.addrs {
		s.takeBack(m, a)
		s.endShare(m, a)
		s.release(a)
	}
	if len(s.members) == 0 {
		s.idle = time.Now()
	}
	if s.closed {
		return // the successor keeps the lease
	}
	s.leases.end(m.lease, time.Now())
	s.endPairs(m.lease.qpnSlot)
	s.relay.died(m.lease.numbers())
	s.cfg.Log.Debug("a client has left", "pid", m.pid, "QPNs", fmt.Sprintf("%#x", m.lease.numbers().QPNs.Base), "dropped", m.dropped)
}

// do performs a client's request. fds came with the request.
func (s *server) do(m *member, r *request, fds []int) error {
	switch r.kind {
	case addAddr:
		return s.addAddr(m, r.addr, r.zone, r.takesSocket)
	case dropAddr:
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.relay.dropAddr(m, r.addr) {
			s.takeBack(m, r.addr)
			s.endShare(m, r.addr)
			s.release(r.addr)
			s.endPairs(m.lease.qpnSlot) // they are requested again, but not at this address
		}
	case serve:
		return s.relay.serve(m, r.service)
	case endServe:
		s.relay.endServe(m, r.service)
	case addSourceSocket:
		from, err := sender(fds[0])
		if err != nil {
			return err
		}
		return s.relay.addSender(m, from, fds[0])
	case pair:
		return s.pair(m, r.own, r.addr, r.qpn)
	case unpair:
		s.unpair(m, r.serial)
	case keepPair:
		return s.keepPair(m, r.qpn, r.serial, fds[0])
	case useSocket:
		return s.useSocket(m, r.addr)
	case mixedFlow:
		return s.addMixedFlow(m, r.own, netip.AddrPortFrom(r.addr, uint16(r.qpn)))
	}
	return nil
}

// addAddr lets a client receive at an address. takesSocket says that it takes a socket there.
func (s *server) addAddr(m *member, a netip.Addr, zone string, takesSocket bool) error {
	if !a.IsValid() || a.IsMulticast() {
		return fmt.Errorf("%v is not the address of a host: %w", a, unix.EINVAL)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return net.ErrClosed
	case m.addrs[a]:
		return nil
	case len(m.addrs) >= maxAddrs:
		return fmt.Errorf("a client has at most %d addresses: %w", maxAddrs, unix.ENOSPC)
	}
	if err := s.mayReceive(m, a); err != nil {
		return err
	}
	if err := s.listen(a, zone); err != nil {
		return err
	}
	s.relay.addAddr(m, a)
	s.openShare(m, a)
	if takesSocket && !s.cfg.Relay {
		m.sockets[a] = &memberSocket{}
		s.offerSocket(m, a)
	}
	return nil
}
