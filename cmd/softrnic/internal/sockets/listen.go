//go:build linux

package sockets

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softrnic/softrnic/verbs/ulp/rsocket"

	"github.com/softrnic/softrnic/cmd/softrnic/internal/relay"
)

// rdmaListener is a listening rsocket. It serves the program's sockets that listen at its address.
type rdmaListener struct {
	rsocket *rsocket.Listener
	sockets map[uint64]*programSocket // by inode
	to      netip.AddrPort            // address at which the program accepts
	meeting *meeting
}

// programSocket is a socket of the program that listens, or may be about to.
type programSocket struct {
	since  time.Time
	seen   bool   // the kernel has listed it as listening
	missed int    // listings without it since then
	cookie uint64 // as in Agent.bound
}

// bind binds a program's socket to an address that only the node has. In the kernel the socket is
// bound to the loopback address instead.
func (a *Agent) bind(socket int, to netip.AddrPort) int32 {
	if !slices.Contains(a.node.Addrs(), to.Addr()) {
		return declined
	}
	domain, err := unix.GetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_DOMAIN)
	if err != nil {
		return errnoOf(err, syscall.EADDRNOTAVAIL)
	}
	cookie, err := unix.GetsockoptUint64(socket, unix.SOL_SOCKET, unix.SO_COOKIE)
	if err != nil {
		return errnoOf(err, syscall.EADDRNOTAVAIL)
	}
	host := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	if to.Addr().Is6() {
		host = netip.IPv6Loopback()
	}
	if err := unix.Bind(socket, sockaddr(domain, netip.AddrPortFrom(host, to.Port()))); err != nil {
		return errnoOf(err, syscall.EADDRNOTAVAIL)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.bound.put(cookie, netip.AddrPortFrom(to.Addr(), localOf(socket).Port()))
	return done
}

// listen creates a listening rsocket for a program's socket that listens or is about to. If this
// fails, the program can still be reached over TCP.
func (a *Agent) listen(socket int) {
	at := localOf(socket)
	cookie := cookieOf(socket)
	var stat unix.Stat_t
	if err := unix.Fstat(socket, &stat); err != nil || !at.IsValid() {
		return
	}
	only, _ := unix.GetsockoptInt(socket, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY)
	to := at
	if at.Addr().IsUnspecified() {
		host := netip.AddrFrom4([4]byte{127, 0, 0, 1})
		if at.Addr().Is6() && only != 0 {
			host = netip.IPv6Loopback()
		}
		to = netip.AddrPortFrom(host, at.Port())
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if bound, ok := a.bound.get(cookie); ok {
		at = bound
	}
	if !at.Addr().IsUnspecified() && !slices.Contains(a.node.Addrs(), at.Addr()) || a.ctx.Err() != nil {
		return
	}
	l := a.listeners[at]
	if l == nil {
		cfg := &rsocket.Config{Transports: a.cfg.Transports, AFOnly: at.Addr().Is4() || only != 0, KeepAlive: keepAlive}
		made, err := rsocket.Listen(a.node.Dev, at.String(), cfg)
		if err != nil {
			a.log.Warn("nothing listens over RDMA where the program does", "at", at, "error", err)
			return
		}
		l = &rdmaListener{rsocket: made, sockets: map[uint64]*programSocket{}, meeting: a.openMeeting(at, cfg.AFOnly)}
		a.listeners[at] = l
		a.log.Info("the program's socket listens over RDMA, too", "at", at)
		a.work.Go(func() { a.accept(at, l) })
	}
	l.to = to
	l.sockets[stat.Ino] = &programSocket{since: time.Now(), cookie: cookie}
}

// closeListener closes a listening rsocket. a.mu is held.
func (a *Agent) closeListener(at netip.AddrPort, l *rdmaListener) error {
	if a.listeners[at] == l {
		delete(a.listeners, at)
	}
	return errors.Join(l.meeting.close(), l.rsocket.Close())
}

func (a *Agent) accept(at netip.AddrPort, l *rdmaListener) {
	for {
		c, err := l.rsocket.Accept()
		switch {
		case errors.Is(err, net.ErrClosed) || a.ctx.Err() != nil:
			if err == nil {
				relay.Abort(c)
			}
			return
		case err != nil:
			a.log.Warn("a connection over RDMA could not be accepted", "at", at, "error", err)
			select {
			case <-time.After(watchInterval):
			case <-a.ctx.Done():
			}
			continue
		}
		place, err := a.accepted.Enter(parse(c.RemoteAddr()).Addr(), func() {})
		if err != nil {
			a.log.Warn("a connection is refused", "at", at, "from", c.RemoteAddr(), "error", err)
			relay.Abort(c)
			continue
		}
		if !place.Prove() { // the program decides how long it lasts
			relay.Abort(c) // another connection has got the place since
			place.Leave()
			continue
		}
		if !take(a.ctx, a.undelivered, &a.backlogged) {
			relay.Abort(c)
			place.Leave()
			return
		}
		a.cfg.Counters.Accepted.Add(1)
		a.work.Go(func() {
			visitor := l.meeting.await(a.ctx, idOf(c, false))
			var t *handover
			if visitor != nil {
				t = &handover{conn: &directConn{}, end: visitor.end, taken: make(chan struct{})}
				a.handOver(t.conn, c, place.Leave)
			}
			program, e, err := a.deliver(l, c, t)
			<-a.undelivered
			if visitor != nil {
				visitor.reply(err == nil)
			}
			if err != nil {
				switch {
				case t == nil:
					defer place.Leave()
				case a.withdraw(t, e):
					_ = unix.Close(t.end)
					defer t.conn.ended()
				} // else the program has taken its end, and endDirect ends the connection
				a.cfg.Counters.Failed.Add(1)
				a.log.Warn("the program has not accepted a connection that came over RDMA", "at", at, "from", c.RemoteAddr(), "error", err)
				a.forgetNames(e)
				relay.Abort(c)
				return
			}
			a.confirm(l)
			a.log.Info("a connection to the program has come over RDMA", "at", at, "from", c.RemoteAddr())
			if t != nil {
				a.awaitTake(program, t, e)
				return
			}
			a.forward(program, c, e, place.Leave)
		})
	}
}

// take takes a slot, and counts if it waits for one. It returns false if the agent is closed before
// one is free.
func take(ctx context.Context, slots chan struct{}, waited *atomic.Uint64) bool {
	if len(slots) == cap(slots) {
		waited.Add(1)
	}
	select {
	case slots <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

// deliver connects to the program, which may be about to listen. If t is not nil, the program may
// take its end.
func (a *Agent) deliver(l *rdmaListener, rdma net.Conn, t *handover) (conn *net.TCPConn, e endpoints, err error) {
	ctx, cancel := context.WithTimeout(a.ctx, joinTimeout)
	defer cancel()
	for {
		a.mu.Lock()
		to := l.to
		a.mu.Unlock()
		if conn, e, err = a.dial(ctx, to, rdma, t); !errors.Is(err, syscall.ECONNREFUSED) || !a.mayListen(l) {
			return conn, e, err
		}
		a.forgetNames(e)
		select {
		case <-time.After(watchInterval / 10):
		case <-ctx.Done():
			return nil, e, err
		}
	}
}

// dial connects to the program's listening address. The addresses over RDMA are recorded before the
// program can accept the connection.
func (a *Agent) dial(ctx context.Context, to netip.AddrPort, rdma net.Conn, t *handover) (conn *net.TCPConn, e endpoints, err error) {
	d := net.Dialer{Control: func(_, _ string, raw syscall.RawConn) error {
		var bound error
		err := raw.Control(func(fd uintptr) {
			domain := unix.AF_INET
			if to.Addr().Is6() {
				domain = unix.AF_INET6
			}
			if bound = unix.Bind(int(fd), sockaddr(domain, netip.AddrPortFrom(to.Addr(), 0))); bound == nil {
				a.forgetNames(e) // of a socket that net.Dialer has dropped, as it had connected to itself
				e = endpoints{local: to, peer: localOf(int(fd))}
				a.remember(e, rdma)
				if t != nil {
					a.mu.Lock()
					a.takes[e] = t
					a.mu.Unlock()
				}
			}
		})
		return errors.Join(err, bound)
	}}
	c, err := d.DialContext(ctx, "tcp", to.String())
	if err != nil {
		return nil, e, err
	}
	return c.(*net.TCPConn), e, nil
}

// How often the agent checks whether the program still listens, and how long the program may take
// to listen.
const (
	watchInterval = 500 * time.Millisecond
	listenTimeout = 2 * time.Second
)

// missedListings is the number of listings in turn without a socket that make sure that it does not
// listen. The kernel leaves a socket out if others end while it lists them.
const missedListings = 3

// mayListen reports whether one of the listener's sockets may be about to listen.
func (a *Agent) mayListen(l *rdmaListener) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, s := range l.sockets {
		if !s.seen && time.Since(s.since) < listenTimeout {
			return true
		}
	}
	return false
}

// confirm checks which of a listener's sockets listen, after the agent has connected to the
// program.
func (a *Agent) confirm(l *rdmaListener) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, s := range l.sockets {
		if !s.seen {
			a.closeUnused()
			return
		}
	}
}

// watch closes rsockets whose sockets no longer listen, and drops expired failures.
func (a *Agent) watch() {
	for {
		select {
		case <-a.ctx.Done():
			return
		case <-time.After(watchInterval):
		}
		a.endDirect()
		a.mu.Lock()
		a.forgetFailures()
		if len(a.listeners) > 0 {
			a.closeUnused()
		}
		a.mu.Unlock()
	}
}

// closeUnused closes the listening rsockets for which no socket of the program listens. a.mu is
// held.
func (a *Agent) closeUnused() {
	inodes, err := listeningInodes(false)
	if err == nil && a.misses(inodes) {
		inodes, err = listeningInodes(true)
	}
	if err != nil {
		a.log.Warn("it is not known whether the program still listens", "error", err)
		return
	}
	for at, l := range a.listeners {
		for inode, s := range l.sockets {
			if inodes[inode] {
				s.seen, s.missed = true, 0
				continue
			}
			s.missed++
			if s.seen && s.missed >= missedListings || !s.seen && time.Since(s.since) > listenTimeout {
				delete(l.sockets, inode)
				a.bound.delete(s.cookie)
			}
		}
		if len(l.sockets) == 0 {
			a.log.Info("the program does not listen any more", "at", at)
			if err := a.closeListener(at, l); err != nil {
				a.log.Warn("a listener over RDMA did not end well", "at", at, "error", err)
			}
		}
	}
}

// misses reports whether sockets of the program are not among those that listen. a.mu is held.
func (a *Agent) misses(inodes map[uint64]bool) bool {
	for _, l := range a.listeners {
		for inode := range l.sockets {
			if !inodes[inode] {
				return true
			}
		}
	}
	return false
}

// listeningInodes returns the inodes of the machine's listening TCP sockets (proc(5),
// /proc/net/tcp): those that are listed first, or of the whole list. Linux lists these before all
// connections. gVisor does not.
func listeningInodes(whole bool) (map[uint64]bool, error) {
	const listen, requested = "0A", "03" // older kernels list requested connections beside their listener
	all := map[uint64]bool{}
	for _, file := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		f, err := os.Open(file)
		if errors.Is(err, os.ErrNotExist) {
			continue // no IPv6
		}
		if err != nil {
			return nil, err
		}
		lines := bufio.NewScanner(f)
		for lines.Scan() {
			fields := strings.Fields(lines.Text())
			if len(fields) < 10 || fields[3] == requested || fields[3] == "st" {
				continue
			}
			if fields[3] != listen {
				if whole {
					continue
				}
				break
			}
			if inode, err := strconv.ParseUint(fields[9], 10, 64); err == nil {
				all[inode] = true
			}
		}
		if err := errors.Join(lines.Err(), f.Close()); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
	}
	return all, nil
}
