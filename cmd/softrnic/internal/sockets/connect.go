//go:build linux

package sockets

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softrnic/softrnic/verbs/ulp/rsocket"

	"github.com/softrnic/softrnic/cmd/softrnic/internal/relay"
)

// silence is the time for which a host that has not answered is not tried again.
const silence = time.Minute

// keepAlive is the idle time before an rsocket sends a keepalive probe. Go's default for TCP is 15
// seconds too.
const keepAlive = 15 * time.Second

// connect connects a program's socket to an address. The status is done, declined (the program then
// uses TCP), or an errno if only RDMA reaches the address. For a nonblocking socket the status is
// done once the connection is pending.
func (a *Agent) connect(socket int, to netip.AddrPort) int32 {
	status, _ := a.connectAs(socket, to, false)
	return status
}

// connectAs is connect, and hands the connection over if it may. The program then replaces its
// socket by end, a descriptor that is otherwise -1.
func (a *Agent) connectAs(socket int, to netip.AddrPort, mayHandOver bool) (status int32, end int) {
	cookie := cookieOf(socket)
	if err := a.takeFailure(cookie); err != declined {
		return err, -1 // as in the kernel, a second connect returns the result of the first
	}
	if a.isPending(cookie) || peerOf(socket).IsValid() || !to.IsValid() || to.Addr().IsUnspecified() || a.isSilent(to.Addr()) {
		return declined, -1
	}
	if mayHandOver {
		if visit := a.visit(to); visit != nil {
			return a.connectDirect(visit, socket, to)
		}
	}
	if flags, err := unix.FcntlInt(uintptr(socket), unix.F_GETFL, 0); err == nil && flags&unix.O_NONBLOCK != 0 {
		return a.begin(socket, cookie, to), -1
	}
	rdma, status := a.dialRDMA(to, a.source(socket, to), socket)
	if rdma == nil {
		return status, -1
	}
	return a.relayed(socket, cookie, to, rdma), -1
}

// relayed connects the program's socket to this process, and forwards its connection over RDMA. The
// status is as of connect.
func (a *Agent) relayed(socket int, cookie uint64, to netip.AddrPort, rdma net.Conn) int32 {
	program, e, err := join(socket, func(e endpoints) { a.remember(e, rdma) })
	if err != nil {
		a.log.Warn("a connection of the program could not be joined to that over RDMA", "to", to, "error", err)
		a.forgetNames(e)
		relay.Abort(rdma)
		if e.local.IsValid() { // the socket is connected and cannot connect again
			return errnoOf(err, syscall.ECONNABORTED)
		}
		return declined
	}
	a.log.Info("a connection of the program goes over RDMA", "to", to, "from", rdma.LocalAddr())
	a.unbind(cookie)
	a.forward(program, rdma, e, func() {})
	return done
}

// dialRDMA connects to an rsocket. If that fails, status is as for connect.
func (a *Agent) dialRDMA(to, from netip.AddrPort, socket int) (rdma net.Conn, status int32) {
	ctx, cancel := context.WithTimeout(a.ctx, a.cfg.Wait)
	defer cancel()
	conn, err := rsocket.Dial(ctx, a.node.Dev, to.String(), a.dialConfig(from, to, socket))
	if err == nil {
		return conn, done
	}
	refused := errors.Is(err, syscall.ECONNREFUSED)
	inUse := errors.Is(err, syscall.EADDRINUSE) || errors.Is(err, syscall.EADDRNOTAVAIL)
	if a.node.OnlyNodesReach(to.Addr()) {
		a.log.Debug("a connection of the program has failed", "to", to, "error", err)
		switch {
		case refused:
			return nil, int32(syscall.ECONNREFUSED)
		case ctx.Err() != nil:
			return nil, int32(syscall.ETIMEDOUT)
		}
		return nil, errnoOf(err, syscall.EHOSTUNREACH)
	}
	if !refused && !inUse {
		a.setSilent(to.Addr())
	}
	a.log.Info("a connection of the program is left to TCP", "to", to, "error", err)
	return nil, declined
}

// source returns the address and port to which the program has bound a socket, if the address is
// one of the node's or means all. If the port is in use over RDMA, the connection is left to TCP.
func (a *Agent) source(socket int, to netip.AddrPort) netip.AddrPort {
	at := localOf(socket)
	cookie := cookieOf(socket)
	a.mu.Lock()
	if bound, ok := a.bound.get(cookie); ok {
		at = bound
	}
	a.mu.Unlock()
	switch {
	case at.Addr().IsUnspecified() && at.Port() != 0, at.Addr().Is4() == to.Addr().Is4() && slices.Contains(a.node.Addrs(), at.Addr()):
		return at
	}
	return netip.AddrPort{}
}

// unbind removes the bound address of a socket whose connection is made.
func (a *Agent) unbind(cookie uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.bound.delete(cookie)
}

// isSilent reports whether a host has recently not answered.
func (a *Agent) isSilent(addr netip.Addr) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	until, ok := a.silent.get(addr)
	if ok && time.Now().After(until) {
		a.silent.delete(addr)
		return false
	}
	return ok
}

func (a *Agent) setSilent(addr netip.Addr) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.silent.put(addr, time.Now().Add(silence))
}

// joinTimeout bounds a connect over the loopback interface.
const joinTimeout = 5 * time.Second

// join connects a program's socket to this process over the loopback interface. It calls before
// with the socket's addresses, before the program can use the socket. e.local is valid if the
// socket is connected.
func join(socket int, before func(endpoints)) (conn *net.TCPConn, e endpoints, err error) {
	domain, err := unix.GetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_DOMAIN)
	if err != nil {
		return nil, e, err
	}
	l, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.AddrPortFrom(loopbackOf(socket, domain), 0)))
	if err != nil {
		return nil, e, err
	}
	defer l.Close()
	e.peer = l.Addr().(*net.TCPAddr).AddrPort()
	if err = unix.Connect(socket, sockaddr(domain, e.peer)); err != nil && !errors.Is(err, unix.EINPROGRESS) {
		return nil, e, err
	}
	e.local = localOf(socket)
	before(e)
	_ = l.SetDeadline(time.Now().Add(joinTimeout))
	for { // any local process may connect to the port
		conn, err := l.AcceptTCP()
		if err != nil {
			return nil, e, err
		}
		if from := conn.RemoteAddr().(*net.TCPAddr).AddrPort(); netip.AddrPortFrom(from.Addr().Unmap(), from.Port()) == e.local {
			return conn, e, nil
		}
		_ = conn.Close()
	}
}

// loopbackOf returns the loopback address to which a socket of a domain can connect.
func loopbackOf(socket, domain int) netip.Addr {
	if domain == unix.AF_INET6 {
		if only, _ := unix.GetsockoptInt(socket, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY); only != 0 || isIPv6(localOf(socket)) {
			return netip.IPv6Loopback()
		}
	}
	return netip.AddrFrom4([4]byte{127, 0, 0, 1})
}

// isIPv6 reports whether a socket was bound to an IPv6 address.
func isIPv6(a netip.AddrPort) bool { return a.Addr().Is6() && !a.Addr().IsUnspecified() }

// sockaddr returns an address for a socket of a domain.
func sockaddr(domain int, a netip.AddrPort) unix.Sockaddr {
	if domain == unix.AF_INET {
		return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
	}
	return &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
}
