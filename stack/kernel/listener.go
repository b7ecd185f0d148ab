package kernel

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/softrnic/softrnic/stack"
)

// defaultReceiveBuffer is the buffer of a connection if the kernel does not adjust it.
const defaultReceiveBuffer = 4 << 20

// DialStream implements [stack.Network].
func (h *Host) DialStream(ctx context.Context, laddr, raddr netip.AddrPort) (stack.Stream, error) {
	raddr = unmapPort(raddr)
	if !isHostAddr(raddr.Addr()) || raddr.Port() == 0 {
		return nil, fmt.Errorf("dial tcp %v: want the address and port of a host", raddr)
	}
	laddr = unmapPort(laddr)
	switch {
	case !laddr.Addr().IsValid() || laddr.Addr().IsUnspecified():
		src, _, err := h.nic.Source(raddr.Addr())
		if err != nil {
			return nil, fmt.Errorf("dial tcp %v: %w", raddr, err)
		}
		laddr = netip.AddrPortFrom(src, laddr.Port())
	case laddr.Addr().Is4() != raddr.Addr().Is4():
		return nil, fmt.Errorf("dial tcp %v: local address %v is of the other IP version", raddr, laddr.Addr())
	case !h.nic.has(laddr.Addr().WithZone("")):
		return nil, fmt.Errorf("dial tcp %v: the host has no address %v: %w", raddr, laddr.Addr(), syscall.EADDRNOTAVAIL)
	}
	d := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(h.nic.zoned(laddr)), KeepAlive: -1}
	if laddr.Port() != 0 {
		// As in siw, the caller's port can be reused while an earlier connection from it is in TIME-WAIT.
		d.Control = func(_, _ string, raw syscall.RawConn) error { return raw.Control(setReuseAddr) }
	}
	c, err := d.DialContext(ctx, "tcp", h.nic.zoned(raddr).String())
	if err != nil {
		if ctx.Err() != nil {
			return nil, fmt.Errorf("dial tcp %v: no answer: %w", raddr, ctx.Err())
		}
		return nil, err
	}
	s, err := h.newStream(c.(*net.TCPConn))
	if err != nil {
		return nil, fmt.Errorf("dial tcp %v: %w", raddr, err)
	}
	return s, nil
}

// ListenStream implements [stack.Network]. For an unspecified address it listens at each of the
// host's addresses, but not at the machine's other addresses.
func (h *Host) ListenStream(laddr netip.AddrPort) (stack.StreamListener, error) {
	return h.listen(laddr, func(netip.Addr) bool { return true })
}

// ListenFamily implements [stack.FamilyListener].
func (h *Host) ListenFamily(laddr netip.AddrPort) (stack.StreamListener, error) {
	four := laddr.Addr().Unmap().Is4()
	return h.listen(laddr, func(a netip.Addr) bool { return a.Is4() == four })
}

// listen listens at laddr. If that is unspecified, it listens at the host's wanted addresses. If
// the host has none of that IP version, listen succeeds, and no connection ever arrives.
func (h *Host) listen(laddr netip.AddrPort, wanted func(netip.Addr) bool) (stack.StreamListener, error) {
	laddr = unmapPort(laddr)
	addrs := []netip.Addr{laddr.Addr()}
	if !laddr.Addr().IsValid() || laddr.Addr().IsUnspecified() {
		addrs = slices.DeleteFunc(h.nic.addrs(), func(a netip.Addr) bool { return !wanted(a) })
	} else if !h.nic.has(laddr.Addr().WithZone("")) {
		return nil, fmt.Errorf("listen tcp %v: the host has no address %v: %w", laddr, laddr.Addr(), syscall.EADDRNOTAVAIL)
	}
	l := &listener{host: h, accepted: make(chan net.Conn), done: make(chan struct{})}
	port := laddr.Port()
	for try := 0; ; try++ {
		err := l.listen(addrs, port)
		if err == nil {
			break
		}
		l.closeAll()
		// The port that the kernel chose for the first address may be in use at another.
		if laddr.Port() != 0 || !errors.Is(err, syscall.EADDRINUSE) || try == 16 {
			return nil, err
		}
	}
	switch len(addrs) {
	case 0:
		if port == 0 {
			return nil, fmt.Errorf("listen tcp %v: the host has no address of that family: %w", laddr, syscall.EADDRNOTAVAIL)
		}
		l.addr = net.TCPAddrFromAddrPort(laddr)
	case 1:
		l.addr = l.listeners[0].Addr().(*net.TCPAddr)
	default:
		l.addr = &net.TCPAddr{IP: net.IPv6unspecified, Port: l.listeners[0].Addr().(*net.TCPAddr).Port}
		if !wanted(netip.IPv6Unspecified()) {
			l.addr.IP = net.IPv4zero
		}
	}
	all := l.listeners
	if !h.track(l) {
		l.closeAll()
		return nil, net.ErrClosed
	}
	for _, one := range all { // the host may already be closing the listener
		go l.run(one)
	}
	return l, nil
}

// listener listens at one or more addresses.
type listener struct {
	host       *Host
	addr       *net.TCPAddr
	listeners  []*net.TCPListener
	accepted   chan net.Conn
	done       chan struct{}
	once       sync.Once
	readBuffer atomic.Int64
}

var (
	_ stack.StreamListener = (*listener)(nil)
	_ stack.FamilyListener = (*Host)(nil)
)

// listen listens at the port of each address. If port is 0, the kernel chooses it for the first
// address.
func (l *listener) listen(addrs []netip.Addr, port uint16) error {
	for _, a := range addrs {
		cfg := net.ListenConfig{KeepAlive: -1}
		one, err := cfg.Listen(context.Background(), "tcp", l.host.nic.zoned(netip.AddrPortFrom(a, port)).String())
		if err != nil {
			return err
		}
		l.listeners = append(l.listeners, one.(*net.TCPListener))
		port = uint16(one.Addr().(*net.TCPAddr).Port)
	}
	return nil
}

func (l *listener) closeAll() {
	for _, one := range l.listeners {
		_ = one.Close()
	}
	l.listeners = nil
}

// run accepts the connections to one of the addresses.
func (l *listener) run(one *net.TCPListener) {
	for {
		c, err := one.AcceptTCP()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			if !l.host.pause(l.done) { // no descriptors, or an aborted connection
				return
			}
			continue
		}
		s, err := l.host.newStream(c)
		if err != nil {
			continue
		}
		s.SetReadBuffer(int(l.readBuffer.Load()))
		select {
		case l.accepted <- s:
		case <-l.done:
			s.Abort()
			return
		}
	}
}

// Accept implements [net.Listener].
func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.accepted:
		return c, nil
	case <-l.done:
		return nil, &net.OpError{Op: "accept", Net: "tcp", Addr: l.addr, Err: net.ErrClosed}
	}
}

// Addr implements [net.Listener].
func (l *listener) Addr() net.Addr { return l.addr }

// SetReadBuffer implements [stack.StreamListener].
func (l *listener) SetReadBuffer(n int) { l.readBuffer.Store(int64(n)) }

// Close implements [net.Listener].
func (l *listener) Close() error {
	l.once.Do(func() {
		close(l.done)
		l.host.untrack(l)
		l.closeAll()
	})
	return nil
}

// Abort ends the listener with the host.
func (l *listener) Abort() { _ = l.Close() }

func unmapPort(a netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
}

// isHostAddr reports whether a can be the address of one host.
func isHostAddr(a netip.Addr) bool {
	return a.IsValid() && !a.IsUnspecified() && !a.IsMulticast() && a != netip.AddrFrom4([4]byte{255, 255, 255, 255})
}
