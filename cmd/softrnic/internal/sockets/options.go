//go:build linux

package sockets

import (
	"errors"
	"net"
	"net/netip"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softrnic/softrnic/verbs/ulp/rsocket"
)

// option is an integer option of a socket.
type option struct{ level, name int }

// copied are the options that are copied to another socket, so that it behaves on the network like
// the program's. Options of calls (SO_RCVTIMEO) are not copied. Nor are TCP_NODELAY and SO_LINGER,
// as data and resets of the loopback connection are forwarded at once, nor SO_BINDTODEVICE, as such
// a socket always uses TCP.
var copied = []option{
	{unix.SOL_SOCKET, unix.SO_KEEPALIVE}, {unix.SOL_SOCKET, unix.SO_PRIORITY}, {unix.SOL_SOCKET, unix.SO_MARK},
	{unix.SOL_SOCKET, unix.SO_DONTROUTE}, {unix.SOL_SOCKET, unix.SO_MAX_PACING_RATE},
	{unix.IPPROTO_TCP, unix.TCP_KEEPIDLE}, {unix.IPPROTO_TCP, unix.TCP_KEEPINTVL}, {unix.IPPROTO_TCP, unix.TCP_KEEPCNT},
	{unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT}, {unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT},
	{unix.IPPROTO_IP, unix.IP_TOS}, {unix.IPPROTO_IP, unix.IP_TTL}, {unix.IPPROTO_IP, unix.IP_MTU_DISCOVER},
	{unix.IPPROTO_IPV6, unix.IPV6_TCLASS}, {unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS}, {unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER},
}

// copiedEarly are the options that matter before a connect, or whose value changes with it.
var copiedEarly = []option{
	{unix.SOL_SOCKET, unix.SO_REUSEADDR}, {unix.SOL_SOCKET, unix.SO_REUSEPORT},
	{unix.IPPROTO_IP, unix.IP_FREEBIND}, {unix.IPPROTO_IP, unix.IP_TRANSPARENT},
	{unix.IPPROTO_TCP, unix.TCP_SYNCNT}, {unix.IPPROTO_TCP, unix.TCP_MAXSEG}, {unix.IPPROTO_TCP, unix.TCP_WINDOW_CLAMP},
}

// setup has the options that a program has set before connect.
type setup struct {
	bound      netip.AddrPort // not valid, or with port 0, if the kernel chooses
	early      map[option]int
	buffers    [2]int // SO_SNDBUF and SO_RCVBUF as set; 0: the kernel chooses
	congestion string
}

// setupOf reads the options of a socket before its connect.
func setupOf(socket int) setup {
	s := setup{bound: localOf(socket), early: map[option]int{}}
	for _, o := range copiedEarly {
		if v, err := unix.GetsockoptInt(socket, o.level, o.name); err == nil {
			s.early[o] = v
		}
	}
	if locked, err := unix.GetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_BUF_LOCK); err == nil {
		// SOCK_SNDBUF_LOCK is 1, SOCK_RCVBUF_LOCK 2.
		for i, name := range [...]int{unix.SO_SNDBUF, unix.SO_RCVBUF} {
			if v, err := unix.GetsockoptInt(socket, unix.SOL_SOCKET, name); err == nil && locked>>i&1 != 0 {
				s.buffers[i] = v / 2 // the kernel doubles the value
			}
		}
	}
	s.congestion, _ = unix.GetsockoptString(socket, unix.IPPROTO_TCP, unix.TCP_CONGESTION)
	return s
}

// dialer returns a dialer that connects as a socket with this setup would, with later changes of
// its options. The program's socket shares its bound port with the new one.
func (s *setup) dialer(socket int) *net.Dialer {
	d := &net.Dialer{KeepAlive: -1}
	local := net.TCPAddrFromAddrPort(s.bound)
	if s.bound.Port() == 0 || !s.bound.IsValid() {
		local = nil
		if s.bound.IsValid() && !s.bound.Addr().IsUnspecified() {
			local = net.TCPAddrFromAddrPort(s.bound)
		}
	}
	if local != nil {
		d.LocalAddr = local
	}
	d.Control = func(_, _ string, raw syscall.RawConn) error {
		var err error
		return errors.Join(raw.Control(func(fd uintptr) { err = s.apply(socket, int(fd)) }), err)
	}
	return d
}

// apply sets up a new socket before it is bound.
func (s *setup) apply(socket, fd int) error {
	for _, o := range copiedEarly {
		if v, ok := s.early[o]; ok {
			set(fd, o, v)
		}
	}
	for i, name := range [...]int{unix.SO_SNDBUF, unix.SO_RCVBUF} {
		if s.buffers[i] > 0 {
			_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, name, s.buffers[i])
		}
	}
	if s.congestion != "" {
		_ = unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, s.congestion)
	}
	copyOptions(socket, fd)
	if s.bound.Port() == 0 {
		return nil
	}
	// Two sockets may share a port if both have the options and neither listens.
	for _, fd := range [...]int{socket, fd} {
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
			return err
		}
	}
	return nil
}

// restore restores the options of the program's socket from before apply.
func (s *setup) restore(socket int) {
	o := option{unix.SOL_SOCKET, unix.SO_REUSEADDR}
	if v, ok := s.early[o]; ok {
		set(socket, o, v)
	}
}

// copyOptions copies the options that can be set at any time to another socket.
func copyOptions(from, to int) {
	for _, o := range copied {
		if v, err := unix.GetsockoptInt(from, o.level, o.name); err == nil {
			set(to, o, v)
		}
	}
}

// dialConfig returns the options of a connection over RDMA: a socket's own address, type of
// service, and idle time before a probe.
func (a *Agent) dialConfig(from, to netip.AddrPort, socket int) *rsocket.Config {
	cfg := &rsocket.Config{Transport: a.cfg.Transports[0], LocalAddr: from, KeepAlive: keepAlive}
	o := option{unix.IPPROTO_IPV6, unix.IPV6_TCLASS}
	if to.Addr().Is4() {
		o = option{unix.IPPROTO_IP, unix.IP_TOS}
	}
	if v, err := unix.GetsockoptInt(socket, o.level, o.name); err == nil && v >= 0 {
		cfg.TOS = uint8(v)
	}
	if on, err := unix.GetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_KEEPALIVE); err == nil && on != 0 {
		if v, err := unix.GetsockoptInt(socket, unix.IPPROTO_TCP, unix.TCP_KEEPIDLE); err == nil && v > 0 {
			cfg.KeepAlive = time.Duration(v) * time.Second
		}
	}
	return cfg
}

// set sets an option that differs. It ignores errors, such as a missing permission or an option of
// another family, so that the connection is made nevertheless.
func set(fd int, o option, v int) {
	if is, err := unix.GetsockoptInt(fd, o.level, o.name); err == nil && is != v {
		_ = unix.SetsockoptInt(fd, o.level, o.name, v)
	}
}
