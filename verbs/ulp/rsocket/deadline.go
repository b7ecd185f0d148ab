package rsocket

import (
	"errors"
	"net"
	"sync"
	"time"

	"github.com/softrnic/softrnic/verbs"
)

// deadline is the time at which calls of one half stop waiting. The socket's mu protects it.
type deadline struct {
	timer      verbs.Timer
	expired    bool
	generation int // detects a timer that was replaced
}

func (d *deadline) stop() {
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
	d.generation++
}

// set sets the deadline; the zero value means none. mu is held.
func (d *deadline) set(c verbs.Clock, t time.Time, mu *sync.Mutex, waiting *sync.Cond) {
	d.stop()
	d.expired = false
	if t.IsZero() {
		return
	}
	left := c.Until(t)
	if left <= 0 {
		d.expired = true
		waiting.Broadcast()
		return
	}
	generation := d.generation
	d.timer = c.AfterFunc(left, func() {
		mu.Lock()
		defer mu.Unlock()
		if d.generation == generation {
			d.expired = true
			waiting.Broadcast()
		}
	})
}

// SetDeadline sets both deadlines.
func (c *Conn) SetDeadline(t time.Time) error {
	return c.setDeadlines(t, &c.readDeadline, &c.writeDeadline)
}

// SetReadDeadline sets the deadline of Read. The zero value means none.
func (c *Conn) SetReadDeadline(t time.Time) error { return c.setDeadlines(t, &c.readDeadline) }

// SetWriteDeadline sets the deadline of Write, which may then have written a part of its data. The
// zero value means none.
func (c *Conn) SetWriteDeadline(t time.Time) error { return c.setDeadlines(t, &c.writeDeadline) }

func (c *Conn) setDeadlines(t time.Time, ds ...*deadline) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return c.opError("set", net.ErrClosed)
	}
	for _, d := range ds {
		waiting := &c.readable.changed
		if d == &c.writeDeadline {
			waiting = &c.writable.changed
		}
		d.set(c.clock(), t, &c.mu, waiting)
	}
	return nil
}

// SetDeadline sets both deadlines.
func (c *PacketConn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

// SetReadDeadline sets the deadline of ReadFrom. The zero value means none.
func (c *PacketConn) SetReadDeadline(t time.Time) error {
	return c.setDeadline(&c.readDeadline, t, &c.readable)
}

// SetWriteDeadline sets the deadline of WriteTo, which waits for space in the send buffer. The zero
// value means none.
func (c *PacketConn) SetWriteDeadline(t time.Time) error {
	return c.setDeadline(&c.writeDeadline, t, &c.writable)
}

func (c *PacketConn) setDeadline(d *deadline, t time.Time, waiting *sync.Cond) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return c.opError("set", net.ErrClosed)
	}
	d.set(c.dev.Clock(), t, &c.mu, waiting)
	return nil
}
