package wireguard

import (
	"errors"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/conn"
	"golang.zx2c4.com/wireguard/device"

	"github.com/softrnic/softrnic/link/rtnetlink"
)

// sockets is a conn.Bind on UDP sockets of this machine. Packets to a peer have the local address
// at which the peer's packets arrive. So answers come from the address that the peer uses. If the
// packets arrive on the interface that has the address, and the route to the peer leads through
// another one, the route decides: packets follow a route that moves, and the peer learns of the new
// address. Linux's WireGuard does the same, and also gives up addresses of other interfaces than
// that of the arrival, such as lo.
//
// conn.StdNetBind of wireguard-go is not used: with UDP GRO it loses the local address, and without
// GRO it ties packets to the interface.
type sockets struct {
	four, six atomic.Pointer[socket] // nil if closed, or if the machine does not have the IP version
	routes    *rtnetlink.Listener    // nil if closed, or if the kernel does not tell; guarded by mu
	mark      atomic.Uint32
	changes   atomic.Uint32 // of routes or mark, from 1
	peers     int

	mu sync.Mutex // Open and Close
}

// newSockets returns sockets for a number of peers.
func newSockets(peers int) conn.Bind { return &sockets{peers: peers} }

const (
	// settle is how long changes of routes count as one.
	settle = 50 * time.Millisecond
	// portTries is how often a free port is sought that both IP versions have.
	portTries = 100
)

// Open implements conn.Bind.
func (s *sockets) Open(port uint16) (receive []conn.ReceiveFunc, actual uint16, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.four.Load() != nil || s.six.Load() != nil {
		return nil, 0, conn.ErrBindAlreadyOpen
	}
	var four, six *socket
	for try := 0; ; try++ {
		if four, actual, err = openSocket("udp4", port, s.peers); err != nil {
			break
		}
		at := port
		if four != nil {
			at = actual
		}
		if six, actual, err = openSocket("udp6", at, s.peers); err == nil && six == nil {
			actual = at
		}
		if err == nil {
			break
		}
		_ = four.close()
		if port != 0 || !errors.Is(err, unix.EADDRINUSE) || try == portTries {
			break
		}
	}
	if err == nil && four == nil && six == nil {
		err = unix.EAFNOSUPPORT
	}
	if err != nil {
		return nil, 0, err
	}
	s.four.Store(four)
	s.six.Store(six)
	s.changes.Add(1)
	if routes, err := rtnetlink.ListenRoutes(); err == nil { // a sandbox may have none
		s.routes = routes
		go s.follow(routes)
	}
	for _, c := range []*socket{four, six} {
		if c != nil {
			receive = append(receive, c.receive)
		}
	}
	return receive, actual, nil
}

// follow counts changes of routes.
func (s *sockets) follow(routes *rtnetlink.Listener) {
	var waits atomic.Bool
	changed := func() {
		if waits.Swap(true) {
			return
		}
		time.AfterFunc(settle, func() {
			waits.Store(false)
			s.changes.Add(1)
		})
	}
	routes.Run(rtnetlink.Events{Link: func(*netlink.LinkAttrs, bool) { changed() }, Addrs: func(int) { changed() }, Routes: changed,
		Missed: changed})
}

// Close implements conn.Bind.
func (s *sockets) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.routes != nil {
		s.routes.Close()
		s.routes = nil
	}
	return errors.Join(s.four.Swap(nil).close(), s.six.Swap(nil).close())
}

// SetMark implements conn.Bind.
func (s *sockets) SetMark(mark uint32) error {
	s.mark.Store(mark)
	s.changes.Add(1) // other routes may be for it
	for _, c := range []*socket{s.four.Load(), s.six.Load()} {
		if c != nil {
			if err := c.set(unix.SOL_SOCKET, unix.SO_MARK, int(mark)); err != nil {
				return err
			}
		}
	}
	return nil
}

// BatchSize implements conn.Bind.
func (s *sockets) BatchSize() int { return conn.IdealBatchSize }

// ParseEndpoint implements conn.Bind.
func (s *sockets) ParseEndpoint(text string) (conn.Endpoint, error) {
	at, err := netip.ParseAddrPort(text)
	if err != nil {
		return nil, err
	}
	return newEndpoint(netip.AddrPortFrom(at.Addr().Unmap(), at.Port()), netip.Addr{}, 0), nil
}

// Send implements conn.Bind.
func (s *sockets) Send(packets [][]byte, to conn.Endpoint) error {
	e, ok := to.(*endpoint)
	if !ok {
		return conn.ErrWrongEndpointType
	}
	c := s.four.Load()
	if e.at.Addr().Is6() {
		c = s.six.Load()
	}
	if c == nil {
		return unix.EAFNOSUPPORT
	}
	// An answer to an unknown host has the address that the host used, and needs no question.
	if kind := packets[0][0]; kind == device.MessageInitiationType || kind == device.MessageTransportType {
		s.check(e)
	}
	if !e.SrcIP().IsValid() {
		_, err := c.send(packets, e, nil)
		return err
	}
	sent, err := c.send(packets, e, e.control)
	if noSource(err) {
		if _, err = c.send(packets[sent:], e, nil); err == nil {
			e.ClearSrc()
		}
	}
	return err
}

// noSource reports whether the local address may be gone. Linux then says ENETUNREACH for IPv4,
// EINVAL for IPv6, and ENODEV for a link-local address whose interface is gone. Sandboxes and other
// versions may say EADDRNOTAVAIL.
func noSource(err error) bool {
	return errors.Is(err, unix.ENETUNREACH) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENODEV) ||
		errors.Is(err, unix.EADDRNOTAVAIL)
}

// check decides whether packets to an endpoint have the local address at which its packets arrive.
func (s *sockets) check(e *endpoint) {
	now := s.changes.Load()
	if e.intf == 0 || e.cleared.Load() || e.checked.Swap(now) == now {
		return
	}
	s.mu.Lock()
	routes := s.routes
	s.mu.Unlock()
	if routes == nil {
		return
	}
	home, herr := routes.Home(e.src)
	through, err := routes.Through(e.src, e.at.Addr(), s.mark.Load())
	e.sticky.Store(herr != nil || err != nil || home != 0 && (through == e.intf || through != 0 && home != e.intf))
}

// endpoint is the place of a peer, or of another host.
type endpoint struct {
	at      netip.AddrPort
	addr    net.UDPAddr // the same
	src     netip.Addr  // local address at which its packets arrive; invalid: not known
	intf    int         // index of the interface of their arrival; 0: no check
	control []byte      // a control message with src
	sticky  atomic.Bool // packets to it are sent from src, unless cleared
	cleared atomic.Bool // src is given up: the next packet to arrive makes another endpoint
	checked atomic.Uint32
	refused atomic.Pointer[refusedSize]
}

func newEndpoint(at netip.AddrPort, src netip.Addr, intf int) *endpoint {
	e := &endpoint{at: at, addr: *net.UDPAddrFromAddrPort(at), src: src, intf: intf}
	switch {
	case src.Is4():
		e.control = unix.PktInfo4(&unix.Inet4Pktinfo{Spec_dst: src.As4()})
	case src.IsValid():
		to := unix.Inet6Pktinfo{Addr: src.As16()}
		if src.IsLinkLocalUnicast() {
			to.Ifindex, e.intf = uint32(intf), 0
		}
		e.control = unix.PktInfo6(&to)
	}
	e.sticky.Store(src.IsValid())
	return e
}

// ClearSrc implements conn.Endpoint. The device calls it for a peer that no longer answers.
func (e *endpoint) ClearSrc() { e.cleared.Store(true) }

// SrcIP implements conn.Endpoint.
func (e *endpoint) SrcIP() netip.Addr {
	if !e.sticky.Load() || e.cleared.Load() {
		return netip.Addr{}
	}
	return e.src
}

// SrcToString implements conn.Endpoint.
func (e *endpoint) SrcToString() string { return e.SrcIP().String() }

// DstIP implements conn.Endpoint.
func (e *endpoint) DstIP() netip.Addr { return e.at.Addr() }

// DstToString implements conn.Endpoint.
func (e *endpoint) DstToString() string { return e.at.String() }

// DstToBytes implements conn.Endpoint.
func (e *endpoint) DstToBytes() []byte {
	b, _ := e.at.MarshalBinary() // does not fail
	return b
}
