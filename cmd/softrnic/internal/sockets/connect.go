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

	"github.com/softrnic/softrnic/verbs/rsocket"

	"github.com/softrnic/softrnic/cmd/softrnic/internal/relay"
)

// silence is how long a host is not asked again for an rsocket that has not answered.
const silence = time.Minute

// keepAlive is after how long of silence an rsocket asks whether its peer is there. Go has TCP ask after 15 seconds.
const keepAlive = 15 * time.Second

// connect connects a program's socket to an address: the status is done, declined, or an errno where there is no other way.
func (a *Agent) connect(socket int, to netip.AddrPort) int32 {
	if peerOf(socket).IsValid() || !to.IsValid() || to.Addr().IsUnspecified() || a.isSilent(to.Addr()) {
		return declined
	}
	ctx, cancel := context.WithTimeout(a.ctx, a.cfg.Wait)
	defer cancel()
	cfg := &rsocket.Config{Transport: a.cfg.Transports[0], LocalAddr: a.source(socket, to), KeepAlive: keepAlive}
	rdma, err := rsocket.Dial(ctx, a.node.Dev, to.String(), cfg)
	if err != nil {
		refused := errors.Is(err, syscall.ECONNREFUSED)
		if a.node.OnlyNodesReach(to.Addr()) {
			a.log.Debug("a connection of the program has failed", "to", to, "error", err)
			switch {
			case refused:
				return int32(syscall.ECONNREFUSED)
			case ctx.Err() != nil:
				return int32(syscall.ETIMEDOUT)
			}
			return errnoOf(err, syscall.EHOSTUNREACH)
		}
		if !refused {
			a.setSilent(to.Addr())
		}
		a.log.Info("a connection of the program is left to TCP", "to", to, "error", err)
		return declined
	}
	program, e, err := join(socket, func(e ends) { a.remember(e, rdma) })
	if err != nil {
		a.log.Warn("a connection of the program is left to TCP: it could not be joined", "to", to, "error", err)
		a.forgetNames(e)
		relay.Abort(rdma)
		return declined
	}
	a.log.Info("a connection of the program goes over RDMA", "to", to, "from", rdma.LocalAddr())
	a.passOn(program, rdma, e)
	return done
}

// source is the address that the program has bound a socket to, as far as the node has it. The port is the node's to choose.
func (a *Agent) source(socket int, to netip.AddrPort) netip.AddrPort {
	at := localOf(socket)
	cookie, _ := unix.GetsockoptUint64(socket, unix.SOL_SOCKET, unix.SO_COOKIE)
	a.mu.Lock()
	if bound, ok := a.bound[cookie]; ok {
		at = bound
		delete(a.bound, cookie) // from now on it has the names of its connection
	}
	a.mu.Unlock()
	if at.Addr().Is4() != to.Addr().Is4() || !slices.Contains(a.node.Addrs(), at.Addr()) {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(at.Addr(), 0)
}

// isSilent reports whether a host did not answer lately.
func (a *Agent) isSilent(addr netip.Addr) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	until, ok := a.silent[addr]
	if ok && time.Now().After(until) {
		delete(a.silent, addr)
		return false
	}
	return ok
}

func (a *Agent) setSilent(addr netip.Addr) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for addr, until := range a.silent {
		if time.Now().After(until) {
			delete(a.silent, addr)
		}
	}
	a.silent[addr] = time.Now().Add(silence)
}

// joinTimeout is how long a connection over the loopback interface may take.
const joinTimeout = 5 * time.Second

// join connects a program's socket to this process, by the loopback interface. before is called with the addresses of the socket
// before the program can use it.
func join(socket int, before func(ends)) (conn *net.TCPConn, e ends, err error) {
	domain, err := unix.GetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_DOMAIN)
	if err != nil {
		return nil, e, err
	}
	host := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	if only, _ := unix.GetsockoptInt(socket, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY); domain == unix.AF_INET6 && (only != 0 || isIPv6(localOf(socket))) {
		host = netip.IPv6Loopback()
	}
	l, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.AddrPortFrom(host, 0)))
	if err != nil {
		return nil, e, err
	}
	defer l.Close()
	e.peer = l.Addr().(*net.TCPAddr).AddrPort()
	err = unix.Connect(socket, sockaddr(domain, e.peer))
	if err != nil && !errors.Is(err, unix.EINPROGRESS) {
		return nil, e, err
	}
	e.local = localOf(socket)
	before(e)
	_ = l.SetDeadline(time.Now().Add(joinTimeout))
	for { // any process of this machine may connect to a port
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

// isIPv6 reports whether a socket was bound to an IPv6 address.
func isIPv6(a netip.AddrPort) bool { return a.Addr().Is6() && !a.Addr().IsUnspecified() }

// sockaddr is an address for a socket of a domain.
func sockaddr(domain int, a netip.AddrPort) unix.Sockaddr {
	if domain == unix.AF_INET {
		return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
	}
	return &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
}
