package rsocket

import (
	"net"
	"net/netip"
)

// ready is what the socket can do now. mu is held.
func (c *PacketConn) ready() (r Ready) {
	if c.count > 0 || c.closed || c.err != nil {
		r |= Readable
	}
	if len(c.sends) > 0 || c.closed {
		r |= Writable
	}
	if c.err != nil {
		r |= Failed
	}
	return r
}

// changed tells the function of OnReady. mu is held.
func (c *PacketConn) changed() {
	c.onReady.changed(c.ready)
}

// OnReady is Conn.OnReady. There is nothing to be HungUp.
func (c *PacketConn) OnReady(f func(Ready)) {
	c.mu.Lock()
	wait := c.onReady.set(f, c.ready)
	c.mu.Unlock()
	wait()
}

// Ready returns what the socket can do without waiting.
func (c *PacketConn) Ready() Ready {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ready()
}

// TryReadFrom is ReadFromAddrPort that does not wait: the error wraps verbs.ErrAgain if nothing has arrived. With peek the
// datagram stays to be read again.
func (c *PacketConn) TryReadFrom(b []byte, peek bool) (n int, from netip.AddrPort, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closed:
		return 0, from, c.opError("read", net.ErrClosed)
	case c.count == 0 && c.err != nil:
		return 0, from, c.opError("read", c.err)
	case c.count == 0:
		return 0, from, errAgain
	case peek:
		a := &c.arrived[c.first]
		return copy(b, a.data), a.from, nil
	}
	n, from = c.take(b)
	return n, from, nil
}

// TryWriteTo is WriteToAddrPort that does not wait: the error wraps verbs.ErrAgain if as many datagrams as there may be are being sent.
func (c *PacketConn) TryWriteTo(b []byte, to netip.AddrPort) (int, error) {
	to = unmapped(to)
	if err := c.check(len(b), to); err != nil {
		return 0, c.opError("write", err)
	}
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return 0, c.opError("write", net.ErrClosed)
	}
	p := c.peers.get(to)
	var err error
	switch {
	case p.ah == nil:
		c.mu.Unlock()
		if err := c.introduce(opData, b, to); err != nil {
			return 0, c.opError("write", err)
		}
		return len(b), nil
	case len(c.sends) == 0:
		err = errAgain
	default:
		if err = c.send(b, p); err != nil {
			err = c.opError("write", err)
		}
	}
	c.mu.Unlock()
	if err != nil {
		return 0, err
	}
	return len(b), nil
}
