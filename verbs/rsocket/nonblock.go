package rsocket

import (
	"errors"
	"io"
	"net"
	"syscall"
	"time"

	"github.com/softrnic/softrnic/verbs"
)

// Ready tells what a Conn can do without waiting, as poll does for a socket.
type Ready uint8

const (
	// Readable: TryRead does not return verbs.ErrAgain. That may be for the end of the stream or an error.
	Readable Ready = 1 << iota
	// Writable: TryWrite does not return verbs.ErrAgain. That may be for an error.
	Writable
	// HungUp: neither side sends any more, and what the peer has sent was read.
	HungUp
	// Failed: the connection has ended in an error.
	Failed
)

// errAgain is what TryRead and TryWrite return most often.
var errAgain error = &verbs.Error{Op: "rsocket", Err: verbs.ErrAgain}

// ready is what the Conn can do now. mu is held.
func (c *Conn) ready() (r Ready) {
	over := c.over()
	if over || c.readShut || c.peerShut || c.in.unread > 0 {
		r |= Readable
	}
	if over || c.writeShut || c.out.ready(c) && c.out.spacious(lowWater) {
		r |= Writable
	}
	if (over || c.writeShut && c.peerShut) && (c.in.unread == 0 || c.failed) {
		r |= HungUp
	}
	if c.failed {
		r |= Failed
	}
	return r
}

// spacious tells whether the send buffer has room for n bytes.
func (s *sender) spacious(n int) bool { return len(s.buf)-s.used >= n }

// OnReady has f called, now and then whenever the Conn may be ready for more than before, with what it is ready for. It may be so
// without a change, and is not when reading and writing make it less. f is called on a goroutine of its own, soon after the change, with no
// lock held: it may call any method but OnReady. Calls are made one at a time; when OnReady returns, the function of an earlier one
// is not running and will not be called. nil ends the calls.
func (c *Conn) OnReady(f func(Ready)) {
	c.mu.Lock()
	wait := c.onReady.set(f, c.ready)
	c.mu.Unlock()
	wait()
}

// Ready returns what the Conn can do without waiting.
func (c *Conn) Ready() Ready {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ready()
}

// Err returns why the connection has failed; nil if it has not.
func (c *Conn) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.failed {
		return nil
	}
	return c.err
}

// TryRead is Read that does not wait: the error wraps verbs.ErrAgain if nothing has arrived, or another goroutine reads.
func (c *Conn) TryRead(b []byte) (int, error) { return c.tryRead(b, false) }

// Peek is TryRead which leaves what it has read to be read again.
func (c *Conn) Peek(b []byte) (int, error) { return c.tryRead(b, true) }

func (c *Conn) tryRead(b []byte, peek bool) (total int, err error) {
	if len(b) == 0 {
		return 0, nil
	}
	if !c.reading.TryLock() {
		return 0, errAgain
	}
	defer c.reading.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closed:
		return 0, c.opError("read", net.ErrClosed)
	case c.readShut:
		return 0, io.EOF
	case c.in.unread > 0:
	case c.peerShut || c.peerGone:
		return 0, io.EOF
	case c.failed:
		return 0, c.opError("read", c.err)
	default:
		return 0, errAgain
	}
	// At most two pieces: the ring begins anew where it ends.
	first := c.in.next(len(b))
	rest := c.in.buf[:min(c.in.unread-len(first), len(b)-len(first))]
	c.holding = true
	c.mu.Unlock()
	total = copy(b, first)
	total += copy(b[total:], rest)
	c.mu.Lock()
	c.holding = false
	if !peek {
		c.in.consume(total)
		c.grant()
	}
	c.drop()
	return total, nil
}

// TryWrite is Write that does not wait: it returns what it could send of b. If that is nothing, or if another goroutine writes, the
// error wraps verbs.ErrAgain.
func (c *Conn) TryWrite(b []byte) (total int, err error) {
	if !c.writing.TryLock() {
		return 0, errAgain
	}
	defer c.writing.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	for piece := firstTransfer; ; piece = min(2*piece, maxTransfer) {
		switch {
		case c.closed:
			err = net.ErrClosed
		case c.failed:
			err = c.err
		case c.writeShut || c.peerGone:
			err = syscall.EPIPE
		}
		switch {
		case err != nil && total > 0:
			return total, nil // the next call gets the error
		case err != nil:
			return 0, c.opError("write", err)
		case total == len(b):
			return total, nil
		case !c.out.ready(c), len(b) > c.cfg.Inline && !c.out.spacious(min(len(b)-total, lowWater)):
			if total == 0 {
				err = errAgain
			}
			return total, err
		}
		n := min(len(b)-total, piece, int(min(c.out.rooms[0].length, maxTransfer)))
		from := b[total:]
		if len(b) <= c.cfg.Inline {
			c.postData(n, from[:n])
		} else {
			room := c.out.room() // nobody else takes of it while writing is held
			n = min(n, len(room))
			c.copyUnlocked(room[:n], from)
			if c.writeOver() || !c.out.ready(c) {
				continue // meanwhile Map may have taken the last credit or slot
			}
			c.postData(n, nil)
		}
		total += n
	}
}

// copyUnlocked copies without holding mu, which is held before and after.
func (c *Conn) copyUnlocked(to, from []byte) {
	c.mu.Unlock()
	copy(to, from)
	if c.whileCopying != nil {
		c.whileCopying()
	}
	c.mu.Lock()
}

// SetKeepAlive sets how long the connection may send nothing before it asks whether the peer is there; 0 is never (Config.KeepAlive).
func (c *Conn) SetKeepAlive(d time.Duration) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return c.opError("set", net.ErrClosed)
	}
	if c.keepalive != nil {
		c.keepalive.Stop()
		c.keepalive = nil
	}
	if c.cfg.KeepAlive = d; d > 0 {
		c.keepalive = time.AfterFunc(d, c.probe)
	}
	return nil
}

// SetLinger sets the longest that Close waits until the peer has what was written (Config.Linger).
func (c *Conn) SetLinger(d time.Duration) error {
	if d < 0 {
		return errors.ErrUnsupported
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cfg.Linger = d
	return nil
}
