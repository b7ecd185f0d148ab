//go:build linux && cgo && (amd64 || arm64)

package main

/*
#include "softrnic.h"
*/
import "C"

import (
	"context"
	"errors"
	"io"
	"net/netip"
	"sync"
	"syscall"
	"unsafe"

	"github.com/softrnic/softrnic/cmd/dropin/libsoftrnic/internal/handle"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
	"github.com/softrnic/softrnic/verbs/ulp/rsocket"
)

// rsock is an rsocket. Only close waits. For all else C waits, by means of readiness.
type rsock struct {
	wakeup *readiness
	domain int
	dgram  bool // of type SOCK_DGRAM; otherwise of type SOCK_STREAM

	mu     sync.Mutex
	state  rsockState
	cfg    rsocket.Config
	opts   rsockOptions
	bound  *rdmacm.ID // holds the local port until the rsocket listens or connects
	local  netip.AddrPort
	cancel context.CancelFunc // cancels connecting and accepting
	err    error              // SO_ERROR

	packets   datagrams
	maps      []rsockMap
	conn      *rsocket.Conn
	listeners []*rsocket.Listener // one for each device
	accepted  []*rsocket.Conn     // not yet taken by C
	// The backlog: a slot for each connection in accepted, and one of each listener for its next
	// connection.
	slots chan struct{}
}

type rsockState int

const (
	rsockNew rsockState = iota // also if bound
	rsockConnecting
	rsockConnected
	rsockListening
	rsockDatagrams // bound
	rsockFailed    // connecting has failed, and SO_ERROR is not yet read
	rsockClosed
)

var rsocks = handle.Table[rsock]{Missing: syscall.EBADF}

// locked calls f with an rsocket whose mu is held.
func locked(h C.uint32_t, f func(*rsock) error) C.int {
	return with(&rsocks, h, func(s *rsock) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		return f(s)
	})
}

func addRsock(s *rsock, h *C.uint32_t, fd *C.int) C.int {
	var err error
	if s.wakeup, err = newReadiness(); err != nil {
		return errno(err)
	}
	*h, *fd = C.uint32_t(rsocks.Add(s)), C.int(s.wakeup.fds[0])
	return 0
}

//export srRsSocket
func srRsSocket(domain, dgram C.int, h *C.uint32_t, fd *C.int) C.int {
	s := &rsock{domain: int(domain), dgram: dgram != 0, cfg: rsockDefaults()}
	s.cfg.AFOnly = domain == syscall.AF_INET6 && bindV6Only()
	return addRsock(s, h, fd)
}

// connection returns the connection of an rsocket, or an errno if there is none.
func (s *rsock) connection() (*rsocket.Conn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch s.state {
	case rsockConnected:
		return s.conn, nil
	case rsockConnecting:
		return nil, syscall.EAGAIN
	case rsockClosed:
		return nil, syscall.EBADF
	}
	return nil, syscall.ENOTCONN
}

// connectError returns the error of connecting, once. After that it returns the error otherwise.
func (s *rsock) connectError(otherwise error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state != rsockFailed {
		return otherwise
	}
	return s.takeError()
}

// takeError returns and clears the error of connecting. mu is held.
func (s *rsock) takeError() error {
	err := s.err
	if s.err = nil; s.state == rsockFailed {
		s.state = rsockNew
	}
	return err
}

// ready returns the readiness of an rsocket without a connection. mu is held.
func (s *rsock) ready() (r rsocket.Ready) {
	switch {
	case s.state == rsockNew && s.dgram:
		r = rsocket.Writable
	case s.state == rsockNew:
		r = rsocket.Writable | rsocket.HungUp // as in TCP
	case s.state == rsockListening && (len(s.accepted) > 0 || s.err != nil):
		r = rsocket.Readable
	case s.state == rsockFailed:
		r = rsocket.Readable | rsocket.Writable | rsocket.HungUp | rsocket.Failed
	}
	return r
}

// refresh updates waiting threads and returns the rsocket's readiness. mu is held.
func (s *rsock) refresh() rsocket.Ready {
	if s.state == rsockConnected {
		s.conn.OnReady(s.wakeup.set)
		return s.conn.Ready()
	}
	if s.state == rsockDatagrams {
		return s.refreshDatagrams()
	}
	r := s.ready()
	s.wakeup.set(r)
	return r
}

//export srRsArm
func srRsArm(h C.uint32_t, events C.int, revents, fds *C.int) C.int {
	s := rsocks.Get(uint32(h))
	if s == nil {
		return C.int(syscall.EBADF)
	}
	if events != 0 {
		to, err := s.wakeup.arm(int(events))
		if err != nil {
			return errnoQuietly(err)
		}
		out := unsafe.Slice(fds, 2)
		out[0], out[1] = C.int(to[0]), C.int(to[1])
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if events == 0 && s.state == rsockConnected {
		*revents = C.int(pollEvents(s.conn.Ready()))
		return 0
	}
	*revents = C.int(pollEvents(s.refresh()))
	return 0
}

//export srRsDisarm
func srRsDisarm(h C.uint32_t, events C.int) C.int {
	s := rsocks.Get(uint32(h))
	if s == nil {
		return C.int(syscall.EBADF)
	}
	s.wakeup.disarm(int(events))
	return 0
}

//export srRsRecv
func srRsRecv(h C.uint32_t, buf unsafe.Pointer, n C.size_t, peek C.int, done *C.size_t) C.int {
	return transfer(h, buf, n, done, func(c *rsocket.Conn, b []byte) (int, error) {
		if peek != 0 {
			return c.Peek(b)
		}
		return c.TryRead(b)
	})
}

//export srRsSend
func srRsSend(h C.uint32_t, buf unsafe.Pointer, n C.size_t, done *C.size_t) C.int {
	return transfer(h, buf, n, done, (*rsocket.Conn).TryWrite)
}

// transfer reads or writes. At the end of a stream it transfers 0 bytes. As in TCP, it returns the
// error of a connect that has failed.
func transfer(h C.uint32_t, buf unsafe.Pointer, n C.size_t, done *C.size_t, f func(*rsocket.Conn, []byte) (int, error)) C.int {
	*done = 0
	s := rsocks.Get(uint32(h))
	if s == nil {
		return C.int(syscall.EBADF)
	}
	b, err := bytesAt("read or write", buf, n)
	if err != nil {
		return errno(err)
	}
	c, err := s.connection()
	if err != nil {
		return errnoQuietly(s.connectError(err))
	}
	k, err := f(c, b)
	*done = C.size_t(k)
	switch {
	case err == nil || err == io.EOF:
		return 0
	case errors.Is(err, verbs.ErrAgain):
		return C.int(syscall.EAGAIN)
	}
	return errnoQuietly(err)
}

//export srRsShutdown
func srRsShutdown(h C.uint32_t, how C.int) C.int {
	return with(&rsocks, h, func(s *rsock) error {
		if s.dgram {
			s.mu.Lock()
			defer s.mu.Unlock()
			return s.shutdownDatagrams(int(how))
		}
		c, err := s.connection()
		if err != nil {
			return syscall.ENOTCONN
		}
		switch how {
		case syscall.SHUT_RD:
			err = c.CloseRead()
		case syscall.SHUT_WR:
			err = c.CloseWrite()
		case syscall.SHUT_RDWR:
			err = errors.Join(c.CloseWrite(), c.CloseRead())
		default:
			return syscall.EINVAL
		}
		return err
	})
}

//export srRsClose
func srRsClose(h C.uint32_t) C.int {
	return errno(rsocks.Remove(uint32(h), func(s *rsock) error {
		s.mu.Lock()
		if s.state == rsockClosed {
			s.mu.Unlock()
			return syscall.EBADF
		}
		s.state = rsockClosed
		conns, listeners, bound, packets := s.accepted, s.listeners, s.bound, s.packets.conn
		s.accepted = nil
		if s.conn != nil {
			s.conn.OnReady(nil)
			conns = append(conns, s.conn)
		}
		if s.cancel != nil {
			s.cancel()
		}
		s.mu.Unlock()
		s.wakeup.close()
		for _, l := range listeners {
			stacks.logError(l.Close())
		}
		var closing sync.WaitGroup
		for _, c := range conns { // each may wait for SO_LINGER
			closing.Go(func() { stacks.logError(c.Close()) })
		}
		closing.Wait()
		if packets != nil {
			packets.OnReady(nil)
			stacks.logError(packets.Close())
		}
		if bound != nil {
			stacks.logError(bound.Close())
		}
		return nil
	}))
}

//export srRsName
func srRsName(h C.uint32_t, peer C.int, to *C.struct_sr_cm_addr) C.int {
	s := rsocks.Get(uint32(h))
	if s == nil {
		return C.int(syscall.EBADF)
	}
	c, err := s.connection()
	s.mu.Lock()
	defer s.mu.Unlock()
	var a netip.AddrPort
	switch {
	case s.dgram && peer != 0 && s.packets.peer.IsValid():
		a = s.packets.peer
	case err != nil && peer != 0:
		return C.int(syscall.ENOTCONN)
	case err != nil:
		a = s.local
	case peer != 0:
		a = netip.MustParseAddrPort(c.RemoteAddr().String())
	default:
		a = netip.MustParseAddrPort(c.LocalAddr().String())
	}
	setSockaddr(to, s.toDomain(a))
	return 0
}

// toDomain converts an address to the rsocket's family.
func (s *rsock) toDomain(a netip.AddrPort) netip.AddrPort {
	addr := a.Addr()
	switch {
	case s.domain == syscall.AF_INET6 && !addr.IsValid():
		addr = netip.IPv6Unspecified()
	case s.domain == syscall.AF_INET6 && addr.Is4() && addr.IsUnspecified():
		addr = netip.IPv6Unspecified()
	case s.domain == syscall.AF_INET6 && addr.Is4():
		addr = netip.AddrFrom16(addr.As16())
	case s.domain == syscall.AF_INET && (!addr.IsValid() || addr.IsUnspecified()):
		addr = netip.IPv4Unspecified()
	}
	return netip.AddrPortFrom(addr, a.Port())
}
