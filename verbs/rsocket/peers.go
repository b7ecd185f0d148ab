package rsocket

import (
	"container/list"
	"context"
	"errors"
	"net"
	"net/netip"
	"time"

	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// Bounds of what peers of datagram sockets can take up.
const (
	maxPeers     = 1024 // remembered; the one that was not used for longest is forgotten, and introduced again
	maxResolving = 16   // whose addresses are being resolved at the same time
)

// resolveTime is how long resolving an address may take.
const resolveTime = 2 * time.Second

// peer is another socket, and how to reach its QP.
type peer struct {
	addr      netip.AddrPort
	source    netip.AddrPort // what this socket's address is to it
	ah        *verbs.AH      // nil if its QP is not known yet
	qpn       uint32
	resolving bool
	forgotten bool
}

// peers are those of a socket, whose mu guards them.
type peers struct {
	known     map[netip.AddrPort]*list.Element // of *peer
	order     list.List                        // those used last first
	resolving int
}

// get returns a peer, a new one if it is not known. The socket is not closed.
func (s *peers) get(addr netip.AddrPort) *peer {
	if e := s.known[addr]; e != nil {
		s.order.MoveToFront(e)
		return e.Value.(*peer)
	}
	if len(s.known) >= maxPeers {
		old := s.order.Remove(s.order.Back()).(*peer)
		delete(s.known, old.addr)
		old.forgotten = true
		if old.ah != nil {
			_ = old.ah.Destroy() // nothing depends on it
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
			errs = append(errs, p.ah.Destroy())
		}
	}
	s.known = nil
	return errors.Join(errs...)
}

// introduce tells a peer by UDP what QP this socket has, with a datagram if op is opData.
func (c *PacketConn) introduce(op operation, data []byte, to netip.AddrPort) error {
	i := introduction{op: op, qpn: c.qp.Num(), addr: c.local.Addr()}
	if i.addr.Is4() != to.Addr().Is4() { // this socket has all addresses
		i.addr = netip.IPv6Unspecified()
		if to.Addr().Is4() {
			i.addr = netip.IPv4Unspecified()
		}
	}
	b := i.appendTo(make([]byte, 0, introduction6Len+len(data)))
	_, err := c.sock.WriteTo(append(b, data...), net.UDPAddrFromAddrPort(to))
	return err
}

// listen takes introductions in until the UDP socket is closed.
func (c *PacketConn) listen() {
	var b [MaxDatagram + introduction6Len]byte
	for {
		n, addr, err := c.sock.ReadFrom(b[:])
		if err != nil {
			if c.ctx.Err() == nil {
				c.fail(err)
			}
			return
		}
		if from, ok := addr.(*net.UDPAddr); ok {
			c.introduced(b[:n], unmapped(from.AddrPort()))
		}
	}
}

// introduced takes in what came by UDP.
func (c *PacketConn) introduced(b []byte, from netip.AddrPort) {
	i, data, ok := parseIntroduction(b)
	if !ok || i.addr.Is4() != from.Addr().Is4() {
		return
	}
	if i.op == opData {
		_ = c.introduce(opControl, nil, from) // lost, it is asked for again
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
		c.arrive(arrival{from, append([]byte(nil), data...), -1})
	}
}

// resolve finds the way to a peer. If there is none, the next introduction tries again.
func (c *PacketConn) resolve(p *peer) {
	ah, source, err := c.route(p.addr)
	c.mu.Lock()
	defer c.mu.Unlock()
	p.resolving = false
	c.peers.resolving--
	switch {
	case err != nil:
	case c.closed || p.forgotten:
		_ = ah.Destroy() // nothing depends on it
	default:
		p.ah, p.source = ah, netip.AddrPortFrom(source, c.local.Port())
	}
}

// route makes an address handle for an address, and returns the one that this host has towards it.
func (c *PacketConn) route(to netip.AddrPort) (ah *verbs.AH, source netip.Addr, err error) {
	ctx, cancel := context.WithTimeout(c.ctx, resolveTime)
	defer cancel()
	id, err := rdmacm.CreateSyncID(rdmacm.UDP, c.dev)
	if err != nil {
		return nil, source, err
	}
	defer func() { err = errors.Join(err, id.Destroy()) }()
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
		IsGlobal: true, PortNum: r.Port,
		GRH: verbs.GRH{DGID: verbs.GIDFromAddr(r.Dst), SGIDIndex: uint8(r.GIDIndex), TrafficClass: r.TOS},
	})
	return ah, r.Src, err
}
