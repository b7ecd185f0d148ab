package rsocket

import (
	"errors"
	"io"
	"net"
	"syscall"
	"time"

	"github.com/softrnic/softrnic/verbs"
)

// Ready is the set of operations that a Conn can do without waiting, as poll reports them for a
// socket.
type Ready uint8

const (
	// Readable: TryRead does not return verbs.ErrAgain. It may return data, the end of the stream
	// or an error.
	Readable Ready = 1 << iota
	// Writable: TryWrite does not return verbs.ErrAgain. It may return an error.
	Writable
	// HungUp: both sides have ended sending, and all data of the peer was read.
	HungUp
	// Failed: the connection has ended in an error.
	Failed
)

// errAgain is the most frequent error of TryRead and TryWrite, allocated once.
var errAgain error = &verbs.Error{Op: "rsocket", Err: verbs.ErrAgain}

// ready implements Ready. mu is held.
func (c *Conn) ready() (r Ready) {
	ended := c.ended()
	if ended || c.readShut || c.peerShut || c.in.unread > 0 {
		r |= Readable
	}
	if ended || c.writeShut || c.out.ready(c) && c.out.hasSpace(lowWater) {
		r |= Writable
	}
	if (ended || c.writeShut && c.peerShut) && (c.in.unread == 0 || c.failed) {
		r |= HungUp
	}
	if c.failed {
		r |= Failed
	}
	return r
}

// hasSpace reports whether the send buffer has space for n bytes.
func (s *sender) hasSpace(n int) bool { return len(s.buf)-s.used >= n }

// OnReady registers a function f, which is called with the current Ready value. It is called once
// immediately, and then whenever the Conn may have become ready for more. Spurious calls are
// possible. Reading and writing, which reduce readiness, cause no call. f runs on its own goroutine
// soon after the change, with no lock held. It may call any method except OnReady. Calls are made
// one at a time. When OnReady returns, the previous function is not running and will not be called.
// A nil f ends the calls.
func (c *Conn) OnReady(f func(Ready)) {
	c.mu.Lock()
	wait := c.onReady.set(c.clock(), f, c.ready)
	c.mu.Unlock()
	wait()
}

// Ready returns the operations that the Conn can do without waiting.
func (c *Conn) Ready() Ready {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ready()
}

// Err returns the error with which the connection has failed, or nil.
func (c *Conn) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.failed {
		return nil
	}
	return c.err
}

// TryRead is like Read but does not wait. The error wraps verbs.ErrAgain if no data has arrived, or
// if another goroutine reads.
func (c *Conn) TryRead(b []byte) (int, error) { return c.tryRead(b, false) }

// Peek is like TryRead, but leaves the data in the receive buffer.
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
	// At most two pieces, because the data may wrap around the end of the ring.
	first := c.in.next(len(b))
	rest := c.in.buf[:min(c.in.unread-len(first), len(b)-len(first))]
	c.copying = true
	c.mu.Unlock()
	total = copy(b, first)
	total += copy(b[total:], rest)
	c.mu.Lock()
	c.copying = false
	if !peek {
		c.in.consume(total)
		c.grant()
	}
	c.dropUnread()
	return total, nil
}

// TryWrite is like Write but does not wait. It returns the number of bytes of b that it has sent.
// If it has sent none, or if another goroutine writes, the error wraps verbs.ErrAgain.
func (c *Conn) TryWrite(b []byte) (total int, err error) {
	if !c.writing.TryLock() {
		return 0, errAgain
	}
	defer c.writing.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	for piece := c.out.firstSize(); ; piece = min(2*piece, maxTransfer) {
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
		case !c.out.ready(c), len(b) > c.cfg.Inline && !c.out.hasSpace(min(len(b)-total, lowWater)):
			if total == 0 {
				err = errAgain
			}
			return total, err
		}
		n := min(len(b)-total, piece, int(min(c.out.targets[0].length, maxTransfer)))
		from := b[total:]
		if len(b) <= c.cfg.Inline {
			c.postData(n, from[:n])
		} else {
			room := c.out.freeSpace() // stays free while writing is held
			n = min(n, len(room))
			c.copyUnlocked(room[:n], from)
			if c.writeEnded() || !c.out.ready(c) {
				continue // Map may have used the last credit or slot meanwhile
			}
			c.postData(n, nil)
		}
		total += n
	}
}

// copyUnlocked copies without holding mu. The caller holds mu, and holds it again afterwards.
func (c *Conn) copyUnlocked(to, from []byte) {
	c.mu.Unlock()
	copy(to, from)
	if c.whileCopying != nil {
		c.whileCopying()
	}
	c.mu.Lock()
}

// SetKeepAlive sets the time for which the sender is idle before it probes the peer; 0 means never
// (Config.KeepAlive).
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
		c.keepalive = c.clock().AfterFunc(d, c.probe)
	}
	return nil
}

// SetLinger sets the maximum time that Close waits for the peer to acknowledge the written data
// (Config.Linger).
func (c *Conn) SetLinger(d time.Duration) error {
	if d < 0 {
		return errors.ErrUnsupported
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cfg.Linger = d
	return nil
}
