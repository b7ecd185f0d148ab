//go:build linux

package sockets

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softrnic/softrnic/cmd/softrnic/internal/relay"
)

// A nonblocking socket of the program is pending while its connection is made. It has sent a SYN
// over the loopback interface to a listener. The listener's backlog is full, so the kernel drops
// the SYN. When the connection over RDMA or TCP is made, this process connects from the listener's
// port to the socket's port. This is a simultaneous open (RFC 9293 §3.5). Only then does the socket
// become writable.

// failure is the reason why the connection of a pending socket has failed.
type failure struct {
	errno int32
	until time.Time // expiry
}

// failureTime is how long a failure is kept.
const failureTime = time.Minute

// begin starts to connect a nonblocking socket, which is pending when begin returns done.
func (a *Agent) begin(socket int, cookie uint64, to netip.AddrPort) (status int32) {
	if !a.addPending(cookie) {
		return declined
	}
	defer func() {
		if status == declined {
			a.endPending(cookie)
		}
	}()
	set := setupOf(socket)
	from := a.source(socket, to)
	own, err := unix.FcntlInt(uintptr(socket), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return declined
	}
	h, err := hold(own)
	if err != nil {
		_ = unix.Close(own)
		if !errors.Is(err, unix.EALREADY) && !errors.Is(err, unix.EISCONN) {
			a.log.Warn("a connection of the program is left to TCP: it could not be held", "to", to, "error", err)
		}
		return declined
	}
	a.work.Go(func() {
		if status := a.finish(h, to, from, own, &set); status != done {
			a.mu.Lock()
			a.failures.put(cookie, failure{status, time.Now().Add(failureTime)})
			a.mu.Unlock()
			_ = unix.Shutdown(own, unix.SHUT_RDWR) // the program sees a reset
		} else {
			a.unbind(cookie)
		}
		a.endPending(cookie)
		h.close()
		_ = unix.Close(own)
	})
	return done
}

// finish makes the connection of a held socket and forwards it. Over TCP the connection has the
// socket's bound address and options.
func (a *Agent) finish(h *held, to, from netip.AddrPort, socket int, set *setup) int32 {
	far, status := a.dialRDMA(to, from, socket)
	if status == declined {
		var err error
		far, err = set.dialer(socket).DialContext(a.ctx, "tcp", to.String())
		set.restore(socket)
		if err != nil {
			return errnoOf(err, syscall.ETIMEDOUT)
		}
		if raw, err := far.(*net.TCPConn).SyscallConn(); err == nil {
			_ = raw.Control(func(fd uintptr) { copyOptions(socket, int(fd)) }) // options set meanwhile
		}
	} else if far == nil {
		return status
	} else {
		a.log.Info("a connection of the program goes over RDMA", "to", to, "from", far.LocalAddr())
	}
	a.remember(h.addrs, far)
	program, err := h.open(a.ctx)
	if err != nil { // the program no longer waits
		a.log.Debug("a connection of the program has come too late", "to", to, "error", err)
		a.forgetNames(h.addrs)
		relay.Abort(far)
		return errnoOf(err, syscall.ECONNABORTED)
	}
	a.forward(program, far, h.addrs, func() {})
	return done
}

// held is a pending socket.
type held struct {
	addrs endpoints // the addresses of the socket and of the listener
	// Descriptors; the filler is the one connection in the listener's backlog.
	listener, filler int
}

// hold makes a socket pending.
func hold(socket int) (h *held, err error) {
	domain, err := unix.GetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_DOMAIN)
	if err != nil {
		return nil, err
	}
	h = &held{listener: -1, filler: -1}
	defer func() {
		if err != nil {
			h.close()
		}
	}()
	host := loopbackOf(socket, domain)
	family := unix.AF_INET
	if host.Is6() {
		family = unix.AF_INET6
	}
	const kind = unix.SOCK_STREAM | unix.SOCK_CLOEXEC | unix.SOCK_NONBLOCK
	if h.listener, err = unix.Socket(family, kind, 0); err != nil {
		return nil, err
	}
	if h.filler, err = unix.Socket(family, kind, 0); err != nil {
		return nil, err
	}
	if err = sharePort(h.listener); err != nil {
		return nil, err
	}
	if err = unix.Bind(h.listener, sockaddr(family, netip.AddrPortFrom(host, 0))); err != nil {
		return nil, err
	}
	if err = unix.Listen(h.listener, 0); err != nil {
		return nil, err
	}
	h.addrs.peer = localOf(h.listener)
	// EINPROGRESS is expected. Otherwise another process was faster.
	if err = unix.Connect(h.filler, sockaddr(family, h.addrs.peer)); err != nil && !errors.Is(err, unix.EINPROGRESS) {
		return nil, err
	}
	if err = unix.Connect(socket, sockaddr(domain, h.addrs.peer)); !errors.Is(err, unix.EINPROGRESS) {
		return nil, errors.Join(err, errors.ErrUnsupported)
	}
	h.addrs.local = localOf(socket)
	return h, nil
}

func (h *held) close() {
	for _, fd := range []int{h.listener, h.filler} {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
}

// open completes the connection of the socket to this process.
func (h *held) open(ctx context.Context) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, joinTimeout)
	defer cancel()
	d := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(h.addrs.peer), Control: func(_, _ string, raw syscall.RawConn) error {
		var err error
		controlled := raw.Control(func(fd uintptr) { err = sharePort(int(fd)) })
		return errors.Join(controlled, err)
	}}
	return d.DialContext(ctx, "tcp", h.addrs.local.String())
}

// sharePort allows other sockets of this user to bind to the same port.
func sharePort(fd int) error {
	return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
}

// addPending records a pending socket. It returns false if there are too many.
func (a *Agent) addPending(cookie uint64) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.pending) >= maxPending {
		a.declined.Add(1)
		return false
	}
	a.pending[cookie] = struct{}{}
	return true
}

func (a *Agent) endPending(cookie uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.pending, cookie)
}

func (a *Agent) isPending(cookie uint64) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	_, ok := a.pending[cookie]
	return ok
}

// takeFailure returns and clears the errno of a socket's failed connection, or declined if there is
// none.
func (a *Agent) takeFailure(cookie uint64) int32 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.failureOf(cookie)
}

// failureOf is takeFailure when a.mu is held.
func (a *Agent) failureOf(cookie uint64) int32 {
	f, ok := a.failures.get(cookie)
	if !ok {
		return declined
	}
	a.failures.delete(cookie)
	return f.errno
}

// forgetFailures drops expired failures. a.mu is held.
func (a *Agent) forgetFailures() {
	for cookie, f := range a.failures.of {
		if time.Now().After(f.until) {
			a.failures.delete(cookie)
		}
	}
}

// cookieOf returns the kernel's cookie of a socket, which is never reused.
func cookieOf(socket int) uint64 {
	cookie, _ := unix.GetsockoptUint64(socket, unix.SOL_SOCKET, unix.SO_COOKIE)
	return cookie
}
