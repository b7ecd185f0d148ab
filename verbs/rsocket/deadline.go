package rsocket

import (
	"errors"
	"net"
	"sync"
	"time"
)

// deadline is when a half of the connection stops waiting. The Conn's mu guards it.
type deadline struct {
	timer *time.Timer
	past  bool
	turn  int // tells a timer that was replaced
}

func (d *deadline) stop() {
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
	d.turn++
}

// set sets the deadline; zero is none. mu is held.
func (d *deadline) set(t time.Time, mu *sync.Mutex, waiting *sync.Cond) {
	d.stop()
	d.past = false
	if t.IsZero() {
		return
	}
	left := time.Until(t)
	if left <= 0 {
		d.past = true
		waiting.Broadcast()
		return
	}
	turn := d.turn
	d.timer = time.AfterFunc(left, func() {
		mu.Lock()
		defer mu.Unlock()
		if d.turn == turn {
			d.past = true
			waiting.Broadcast()
		}
	})
}

// SetDeadline sets both deadlines.
func (c *Conn) SetDeadline(t time.Time) error { return c.setDeadlines(t, &c.readBy, &c.writeBy) }

// SetReadDeadline sets when Read gives up. The zero value is never.
func (c *Conn) SetReadDeadline(t time.Time) error { return c.setDeadlines(t, &c.readBy) }

// SetWriteDeadline sets when Write gives up, which may have written a part. The zero value is never.
func (c *Conn) SetWriteDeadline(t time.Time) error { return c.setDeadlines(t, &c.writeBy) }

func (c *Conn) setDeadlines(t time.Time, ds ...*deadline) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return c.opError("set", net.ErrClosed)
	}
	for _, d := range ds {
		waiting := &c.readable.changed
		if d == &c.writeBy {
			waiting = &c.writable.changed
		}
		d.set(t, &c.mu, waiting)
	}
	return nil
}

// SetDeadline sets both deadlines.
func (c *PacketConn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

// SetReadDeadline sets when ReadFrom gives up. The zero value is never.
func (c *PacketConn) SetReadDeadline(t time.Time) error {
	return c.setDeadline(&c.readBy, t, &c.readable)
}

// SetWriteDeadline sets when WriteTo gives up, which waits for room in the send buffer. The zero value is never.
func (c *PacketConn) SetWriteDeadline(t time.Time) error {
	return c.setDeadline(&c.writeBy, t, &c.writable)
}

func (c *PacketConn) setDeadline(d *deadline, t time.Time, waiting *sync.Cond) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return c.opError("set", net.ErrClosed)
	}
	d.set(t, &c.mu, waiting)
	return nil
}
