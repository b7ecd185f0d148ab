package rsocket

import (
	"container/list"
	"errors"
	"net"
	"net/netip"
	"syscall"
	"time"

	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// Limits of the resources that peers of a datagram socket can use.
const (
	maxPeers     = 1024 // cached; the least recently used one is evicted
	maxResolving = 16   // concurrent address resolutions
)

// resolveTimeout limits the time to resolve an address.
const resolveTimeout = 2 * time.Second

// peer is another socket and the route to its QP.
type peer struct {
	addr      netip.AddrPort
	source    netip.AddrPort // this socket's address on the route to it
	ah        *verbs.AH      // nil if its QP is not known yet
	qpn       uint32
	resolving bool
	evicted   bool
}

// peers is a socket's cache of its peers. The socket's mu protects it.
type peers struct {
	known     map[netip.AddrPort]*list.Element // of *peer
	order     list.List                        // most recently used first
	resolving int
}

// get returns a peer, and creates it if necessary. The socket is not closed.
func (s *peers) get(addr netip.AddrPort) *peer {
	if e := s.known[addr]; e != nil {
		s.order.MoveToFront(e)
		return e.Value.(*peer)
	}
	if len(s.known) >= maxPeers {
		old := s.order.Remove(s.order.Back()).(*peer)
		delete(s.known, old.addr)
		old.evicted = true
		if old.ah != nil {
			_ = old.ah.Close() // an error would have no consequence
		}
	}
	if s.known == nil {
		s.known = map[netip.AddrPort]*list.Element{}
	}
	p := &peer{addr: addr}
	s.known[addr] = s.order.PushFront(p)
	return p
}

// destroy frees the address handles.
func (s *peers) destroy() error {
	var errs []error
	for _, e := range s.known {
		if p := e.Value.(*peer); p.ah != nil {
			errs = append(errs, p.ah.Close())
		}
	}
	s.known = nil
	return errors.Join(errs...)
}

// sendUDP sends this socket's QPN to a peer over UDP, together with a datagram if op is opData.
// Later datagrams use an address handle. Hosts that access control does not allow have none.
func (c *PacketConn) sendUDP(op operation, data []byte, to netip.AddrPort) error {
	if a, ok := c.dev.Provider().(rdmacm.AccessController); ok && !a.Allows(to.Addr()) {
		return verbs.Errorf(syscall.EACCES, "write", "the device's access control does not allow %v", to.Addr())
	}
	i := udpHeader{op: op, qpn: c.qp.Num(), addr: c.local.Addr()}
	if i.addr.Is4() != to.Addr().Is4() { // this socket is bound to all addresses
		i.addr = netip.IPv6Unspecified()
		if to.Addr().Is4() {
			i.addr = netip.IPv4Unspecified()
		}
	}
	b := i.appendTo(make([]byte, 0, udpHeader6Len+len(data)))
	_, err := c.sock.WriteTo(append(b, data...), net.UDPAddrFromAddrPort(to))
	return err
}

// readUDP handles UDP datagrams until the UDP socket is closed.
func (c *PacketConn) readUDP() {
	var b [MaxDatagram + udpHeader6Len]byte
	for {
		n, addr, err := c.sock.ReadFrom(b[:])
		if err != nil {
			if c.ctx.Err() == nil {
				c.fail(err)
			}
			return
		}
		if from, ok := addr.(*net.UDPAddr); ok {
			c.handleUDP(b[:n], unmapped(from.AddrPort()))
		}
	}
}

// admits reports whether the device's access control allows a host.
func (c *PacketConn) admits(host netip.Addr) bool {
	a, controlled := c.dev.Provider().(rdmacm.AccessController)
	return !controlled || a.Admits(host)
}

// handleUDP handles a UDP datagram.
func (c *PacketConn) handleUDP(b []byte, from netip.AddrPort) {
	i, data, ok := parseUDPHeader(b)
	if !ok || i.addr.Is4() != from.Addr().Is4() || !c.admits(from.Addr()) {
		return
	}
	if i.op == opData {
		// If it is lost, it is sent again after the peer's next UDP datagram.
		_ = c.sendUDP(opControl, nil, from)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return
	}
	p := c.peers.get(from)
	p.qpn = i.qpn
	if p.ah == nil && !p.resolving && c.peers.resolving < maxResolving {
		p.resolving = true
		c.peers.resolving++
		c.goroutines.Go(func() { c.resolve(p) })
	}
	if i.op == opData {
		c.enqueue(datagram{from, append([]byte(nil), data...), -1})
	}
}

// resolve finds the route to a peer. If it fails, the next UDP datagram of the peer tries again.
func (c *PacketConn) resolve(p *peer) {
	ah, source, err := c.route(p.addr)
	c.mu.Lock()
	defer c.mu.Unlock()
	p.resolving = false
	c.peers.resolving--
	switch {
	case err != nil:
	case c.closed || p.evicted:
		_ = ah.Close() // an error would have no consequence
	default:
		p.ah, p.source = ah, netip.AddrPortFrom(source, c.local.Port())
	}
}

// route creates an address handle for an address, and returns this host's source address for it.
func (c *PacketConn) route(to netip.AddrPort) (ah *verbs.AH, source netip.Addr, err error) {
	ctx, cancel := c.dev.Clock().WithTimeout(c.ctx, resolveTimeout)
	defer cancel()
	id, err := rdmacm.CreateSyncID(rdmacm.UDP, c.dev)
	if err != nil {
		return nil, source, err
	}
	defer func() { err = errors.Join(err, id.Close()) }()
	var from netip.AddrPort
	if !c.local.Addr().IsUnspecified() {
		from = netip.AddrPortFrom(c.local.Addr(), 0)
	}
	if err = id.SetTOS(c.cfg.TOS); err == nil {
		err = id.ResolveAddr(ctx, from, to)
	}
	if err == nil {
		err = id.ResolveRoute(ctx)
	}
	if err != nil {
		return nil, source, err
	}
	r := id.Route()
	ah, err = c.pd.CreateAH(&verbs.AHAttr{
		IsGlobal: true, PortNum: r.PortNum,
		GRH: verbs.GRH{DGID: verbs.GIDFromAddr(r.Dst), SGIDIndex: uint8(r.GIDIndex), TrafficClass: r.TOS},
	})
	return ah, r.Src, err
}
