package rsocket

import (
	"net"
	"net/netip"
)

// ready implements Ready. mu is held.
func (c *PacketConn) ready() (r Ready) {
	if c.count > 0 || c.closed || c.err != nil {
		r |= Readable
	}
	if len(c.freeSends) > 0 || c.closed {
		r |= Writable
	}
	if c.err != nil {
		r |= Failed
	}
	return r
}

// changed schedules a call of the OnReady function. mu is held.
func (c *PacketConn) changed() {
	c.onReady.changed(c.dev.Clock(), c.ready)
}

// OnReady is like Conn.OnReady. A PacketConn is never HungUp.
func (c *PacketConn) OnReady(f func(Ready)) {
	c.mu.Lock()
	wait := c.onReady.set(c.dev.Clock(), f, c.ready)
	c.mu.Unlock()
	wait()
}

// Ready returns the operations that do not wait now.
func (c *PacketConn) Ready() Ready {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ready()
}

// TryReadFrom is like ReadFromAddrPort but does not wait: the error wraps verbs.ErrAgain if no
// datagram has arrived. With peek, the datagram stays in the queue.
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
		a := &c.queue[c.first]
		return copy(b, a.data), a.from, nil
	}
	n, from = c.dequeue(b)
	return n, from, nil
}

// TryWriteTo is like WriteToAddrPort but does not wait: the error wraps verbs.ErrAgain if no send
// slot is free.
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
		if err := c.sendUDP(opData, b, to); err != nil {
			return 0, c.opError("write", err)
		}
		return len(b), nil
	case len(c.freeSends) == 0:
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
