//go:build linux && cgo && (amd64 || arm64)

package main

/*
#include "softrnic.h"
*/
import "C"

import (
	"context"
	"errors"
	"net/netip"
	"syscall"

	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
	"github.com/softrnic/softrnic/verbs/ulp/rsocket"
)

// connectDevices returns the devices and the wire protocols for connections.
func (s *state) connectDevices() (devs []*verbs.Device, transports []verbs.Transport, err error) {
	if transports = s.cmTransports(rdmacm.TCP); len(transports) == 0 {
		err = syscall.ENODEV
	}
	return s.verbsDevices(), transports, err
}

// bind reserves a local address. mu is held.
func (s *rsock) bind(a netip.AddrPort) error {
	devs, transports, err := stacks.connectDevices()
	if err != nil {
		return err
	}
	ch, err := rdmacm.CreateExemptChannel(devs...) // an rsocket is bound again if it does not connect
	if err != nil {
		return err
	}
	id, err := ch.CreateID(rdmacm.TCP, nil)
	if err != nil {
		return err
	}
	err = errors.Join(id.SetTransports(transports...), id.SetReuseAddr(s.opts.reuse))
	if err == nil && s.cfg.AFOnly {
		err = id.SetAFOnly(true)
	}
	if err == nil {
		err = id.Bind(a)
	}
	if err != nil {
		return errors.Join(err, id.Close())
	}
	s.bound, s.local = id, netip.AddrPortFrom(a.Addr(), id.LocalAddr().Port())
	return nil
}

// unbind releases the local address, so that a listener or connection can take it. Until then the
// address is free. mu is held.
func (s *rsock) unbind() (dev *verbs.Device) {
	if s.bound != nil {
		dev = s.bound.Device()
		stacks.logError(s.bound.Close())
		s.bound = nil
	}
	return dev
}

// rebind reserves the address again that unbind has released, because the operation has failed. If
// another program has taken the address meanwhile, the next call that needs it fails. mu is held.
func (s *rsock) rebind() {
	if s.local.Port() != 0 {
		stacks.logError(s.bind(s.local))
	}
}

//export srRsBind
func srRsBind(h C.uint32_t, addr *C.struct_sr_cm_addr) C.int {
	return with(&rsocks, h, func(s *rsock) error {
		a, err := sockaddr(addr)
		if err != nil {
			return err
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.state != rsockNew || s.bound != nil {
			return syscall.EINVAL
		}
		if s.dgram {
			return s.bindDatagrams(stacks.replaceLoopback(a))
		}
		if err := verbs.InjectedFault("rdma_bind_addr", stacks.verbsDevices()...); err != nil {
			return err
		}
		return s.bind(stacks.replaceLoopback(a))
	})
}

//export srRsListen
func srRsListen(h C.uint32_t, backlog C.int) C.int {
	return locked(h, func(s *rsock) error {
		if s.dgram {
			return syscall.EOPNOTSUPP
		}
		if s.state == rsockListening {
			return nil
		}
		if s.state != rsockNew {
			return syscall.EINVAL
		}
		if s.bound == nil {
			a := s.local
			if a.Port() == 0 {
				a = s.toDomain(noAddr)
			}
			if err := s.bind(a); err != nil {
				return err
			}
		}
		return s.listen(max(int(backlog), minBacklog))
	})
}

// listen listens at the bound address on each device that has it, as srCMListen does. mu is held.
func (s *rsock) listen(backlog int) error {
	devs, transports, err := stacks.connectDevices()
	if err != nil {
		return err
	}
	if dev := s.unbind(); dev != nil {
		devs = []*verbs.Device{dev}
	}
	s.cfg.Transports, s.cfg.Backlog = transports, max(backlog, 0)
	for _, dev := range devs {
		l, err := rsocket.Listen(dev, s.local.String(), &s.cfg)
		if errors.Is(err, syscall.EADDRINUSE) && !verbs.Injected(err) && s.local.Addr().IsUnspecified() && len(transports) > 1 {
			s.cfg.Transports = []verbs.Transport{verbs.RoCEv2}
			l, err = rsocket.Listen(dev, s.local.String(), &s.cfg)
		}
		if err != nil {
			for _, l := range s.listeners {
				stacks.logError(l.Close())
			}
			s.listeners = nil
			s.rebind()
			return err
		}
		s.listeners = append(s.listeners, l)
	}
	s.state, s.slots = rsockListening, make(chan struct{}, backlog)
	ctx, cancel := context.WithCancel(background)
	s.cancel = cancel
	for _, l := range s.listeners {
		go s.acceptFrom(ctx, l)
	}
	stacks.log.Load().Debug("rdma_cm listens", "space", rdmacm.TCP, "addr", s.local)
	return nil
}

// acceptFrom accepts connections of a listener until ctx ends.
func (s *rsock) acceptFrom(ctx context.Context, l *rsocket.Listener) {
	for {
		select {
		case s.slots <- struct{}{}:
		case <-ctx.Done():
			return
		}
		c, err := l.AcceptContext(ctx)
		s.mu.Lock()
		switch {
		case s.state == rsockClosed:
			if s.mu.Unlock(); err == nil {
				_ = c.Close()
			}
			return
		case err != nil:
			s.err = err
		default:
			s.accepted = append(s.accepted, c)
		}
		s.refresh()
		s.mu.Unlock()
		if err != nil {
			return
		}
	}
}

//export srRsAccept
func srRsAccept(h C.uint32_t, newH *C.uint32_t, fd *C.int) C.int {
	s := rsocks.Get(uint32(h))
	if s == nil {
		return C.int(syscall.EBADF)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.dgram:
		return C.int(syscall.EOPNOTSUPP)
	case s.state != rsockListening:
		return invalid
	case len(s.accepted) == 0 && s.err != nil:
		return errno(s.err)
	case len(s.accepted) == 0:
		return C.int(syscall.EAGAIN)
	}
	c := &rsock{domain: s.domain, cfg: s.cfg, opts: s.opts, state: rsockConnected, conn: s.accepted[0]}
	c.cfg.Transports, c.cfg.Backlog = nil, 0
	// They may have been set on the listener after the connection was accepted.
	stacks.logError(c.applyOptions())
	if err := addRsock(c, newH, fd); err != 0 {
		return err
	}
	s.accepted = append(s.accepted[:0], s.accepted[1:]...)
	<-s.slots
	s.refresh()
	return 0
}

//export srRsConnect
func srRsConnect(h C.uint32_t, addr *C.struct_sr_cm_addr) C.int {
	s := rsocks.Get(uint32(h))
	if s == nil {
		return C.int(syscall.EBADF)
	}
	to, err := sockaddr(addr)
	if err != nil {
		return errno(err)
	}
	devs, transports, err := stacks.connectDevices()
	if err != nil {
		return errno(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dgram {
		return errno(s.connectDatagrams(stacks.replaceLoopbackOrAny(to)))
	}
	switch s.state {
	case rsockNew:
	case rsockConnecting:
		return C.int(syscall.EALREADY)
	case rsockConnected:
		return C.int(syscall.EISCONN)
	case rsockFailed:
		return errno(s.takeError())
	default:
		return invalid
	}
	cfg := s.cfg
	cfg.Transport, cfg.Transports = transports[0], nil
	if dev := s.unbind(); dev != nil {
		devs = []*verbs.Device{dev}
	}
	if s.local.Port() != 0 {
		cfg.LocalAddr = s.local
	}
	s.state = rsockConnecting
	ctx, cancel := context.WithCancel(background)
	s.cancel = cancel
	go func() {
		c, err := dial(ctx, devs, stacks.replaceLoopbackOrAny(to), &cfg)
		s.connected(c, err)
		cancel()
	}()
	return C.int(syscall.EINPROGRESS)
}

// dial connects through the first device that has a route to the peer.
func dial(ctx context.Context, devs []*verbs.Device, to netip.AddrPort, cfg *rsocket.Config) (*rsocket.Conn, error) {
	dev := devs[0]
	if len(devs) > 1 {
		id, err := rdmacm.CreateSyncID(rdmacm.TCP, devs...)
		if err != nil {
			return nil, err
		}
		err = id.SetTransports(cfg.Transport)
		if err == nil {
			err = id.ResolveAddr(ctx, cfg.LocalAddr, to)
		}
		dev = id.Device()
		if err = errors.Join(err, id.Close()); err != nil {
			return nil, err
		}
	}
	return rsocket.Dial(ctx, dev, to.String(), cfg)
}

// connected takes the result of connecting.
func (s *rsock) connected(c *rsocket.Conn, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.state == rsockClosed:
		if err == nil {
			go c.Close()
		}
		return
	case err != nil:
		stacks.logError(err)
		s.state, s.err = rsockFailed, err
		s.rebind()
	default:
		s.state, s.conn = rsockConnected, c
		stacks.logError(s.applyOptions())
	}
	s.refresh()
}
