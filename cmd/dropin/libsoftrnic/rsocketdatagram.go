//go:build linux && cgo && (amd64 || arm64)

package main

/*
#include "softrnic.h"
*/
import "C"

import (
	"errors"
	"net"
	"net/netip"
	"syscall"
	"unsafe"

	network "github.com/softrnic/softrnic/stack"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/ulp/rsocket"
)

// datagrams is the state of an rsocket of type SOCK_DGRAM.
type datagrams struct {
	conn      *rsocket.PacketConn // nil until the rsocket has a local address
	peer      netip.AddrPort      // of rconnect
	readShut  bool
	writeShut bool
}

// deviceOf returns the RoCE device that has an address, or the first one if it is unspecified.
func (s *state) deviceOf(a netip.Addr) (*device, error) {
	for addr, d := range s.addrs() {
		if d.transport == verbs.RoCEv2 && (a.IsUnspecified() || addr == a.Unmap()) {
			return d, nil
		}
	}
	return nil, verbs.Errorf(syscall.EADDRNOTAVAIL, "bind", "no RoCE device has %v: there are no datagrams over iWARP", a)
}

// localAddrFor returns an address of a RoCE device in the family and scope of a destination, with
// port 0. A socket uses it if it sends before it is bound.
func (s *state) localAddrFor(to netip.Addr) (netip.AddrPort, error) {
	for a, d := range s.addrs() {
		if d.transport == verbs.RoCEv2 && a.Is4() == to.Unmap().Is4() && a.IsLinkLocalUnicast() == to.IsLinkLocalUnicast() {
			return netip.AddrPortFrom(a, 0), nil
		}
	}
	return noAddr, verbs.Errorf(syscall.ENETUNREACH, "connect", "no RoCE device has an address for %v", to)
}

// bindDatagrams binds the rsocket to a local address. mu is held.
func (s *rsock) bindDatagrams(a netip.AddrPort) error {
	if s.packets.conn != nil {
		return syscall.EINVAL
	}
	d, err := stacks.deviceOf(a.Addr())
	if err != nil {
		return err
	}
	if d.node.TLS != nil {
		return verbs.Errorf(syscall.EOPNOTSUPP, "bind", "datagrams are not protected by TLS")
	}
	var sock net.PacketConn
	if host, ok := d.node.Host.(network.PacketListener); ok {
		sock, err = host.ListenPacket(a)
	} else {
		sock, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(a))
	}
	if err != nil {
		return err
	}
	c, err := rsocket.NewPacketConn(d.dev, sock, &s.cfg)
	if err != nil {
		return err
	}
	s.packets.conn, s.state = c, rsockDatagrams
	s.local = netip.AddrPortFrom(a.Addr(), sock.LocalAddr().(*net.UDPAddr).AddrPort().Port())
	s.refresh()
	stacks.log.Load().Debug("rsocket is bound", "addr", s.local)
	return nil
}

// autobind binds an unbound rsocket to an address from which it can send to a destination. mu is
// held.
func (s *rsock) autobind(to netip.AddrPort) error {
	if s.packets.conn != nil {
		return nil
	}
	a, err := stacks.localAddrFor(to.Addr())
	if err != nil {
		return err
	}
	return s.bindDatagrams(a)
}

// connectDatagrams sets the address of the only peer to which the rsocket sends, and from which it
// receives. mu is held.
func (s *rsock) connectDatagrams(to netip.AddrPort) error {
	if err := s.autobind(to); err != nil {
		return err
	}
	s.packets.peer = netip.AddrPortFrom(to.Addr().Unmap(), to.Port())
	return nil
}

// shutdownDatagrams is shutdown for UDP. mu is held.
func (s *rsock) shutdownDatagrams(how int) error {
	if !s.packets.peer.IsValid() {
		return syscall.ENOTCONN
	}
	s.packets.readShut = s.packets.readShut || how != syscall.SHUT_WR
	s.packets.writeShut = s.packets.writeShut || how != syscall.SHUT_RD
	s.refresh()
	return nil
}

// refreshDatagrams is refresh for datagrams. mu is held.
func (s *rsock) refreshDatagrams() rsocket.Ready {
	always := rsocket.Ready(0)
	if s.packets.readShut {
		always = rsocket.Readable
	}
	s.packets.conn.OnReady(func(r rsocket.Ready) { s.wakeup.set(r | always) })
	return s.packets.conn.Ready() | always
}

//export srRsRecvFrom
func srRsRecvFrom(h C.uint32_t, buf unsafe.Pointer, n C.size_t, peek C.int, done *C.size_t, from *C.struct_sr_cm_addr) C.int {
	*done = 0
	s := rsocks.Get(uint32(h))
	if s == nil {
		return C.int(syscall.EBADF)
	}
	s.mu.Lock()
	p := s.packets
	s.mu.Unlock()
	if p.conn == nil {
		return C.int(syscall.EAGAIN) // no peer knows the address of an unbound socket
	}
	b, err := bytesAt("receive", buf, n)
	if err != nil {
		return errno(err)
	}
	for {
		k, a, err := p.conn.TryReadFrom(b, peek != 0)
		switch {
		case errors.Is(err, verbs.ErrAgain) && p.readShut:
			return 0 // no bytes, as at the end of a stream
		case errors.Is(err, verbs.ErrAgain):
			return C.int(syscall.EAGAIN)
		case err != nil:
			return errnoQuietly(err)
		case p.peer.IsValid() && a != p.peer:
			if peek != 0 {
				_, _, _ = p.conn.TryReadFrom(nil, false)
			}
			continue
		}
		*done = C.size_t(k)
		setSockaddr(from, s.toDomain(a))
		return 0
	}
}

//export srRsSendTo
func srRsSendTo(h C.uint32_t, buf unsafe.Pointer, n C.size_t, to *C.struct_sr_cm_addr) C.int {
	s := rsocks.Get(uint32(h))
	if s == nil {
		return C.int(syscall.EBADF)
	}
	a, err := sockaddr(to)
	if err != nil {
		return errno(err)
	}
	b, err := bytesAt("send", buf, n)
	if err != nil {
		return errno(err)
	}
	s.mu.Lock()
	if to == nil {
		a = s.packets.peer
	} else {
		a = stacks.replaceLoopbackOrAny(a)
	}
	switch {
	case !a.IsValid():
		err = syscall.EDESTADDRREQ
	case s.packets.writeShut:
		err = syscall.EPIPE
	default:
		err = s.autobind(a)
	}
	p := s.packets.conn
	s.mu.Unlock()
	if err == nil {
		_, err = p.TryWriteTo(b, a)
	}
	switch {
	case err == nil:
		return 0
	case errors.Is(err, verbs.ErrAgain):
		return C.int(syscall.EAGAIN)
	}
	return errnoQuietly(err)
}
