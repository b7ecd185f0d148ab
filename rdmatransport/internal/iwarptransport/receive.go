package iwarptransport

// Receive path: the only goroutine of a QP passes bytes from TCP's buffers to MPA's receiver, which
// calls placement.go for each segment. The QP's lock is held once for all available bytes. The
// goroutine ends when the stream is idle. Further bytes start another goroutine.

import (
	"bytes"
	"errors"
	"io"
	"time"

	"github.com/softrnic/softrnic/rdmatransport/ddp"
	"github.com/softrnic/softrnic/rdmatransport/mpa"
	"github.com/softrnic/softrnic/rdmatransport/rdmap"
	"github.com/softrnic/softrnic/stack"
	"github.com/softrnic/softrnic/verbs"
)

// errEarly ends a connection whose initiator sends FPDUs before it has received the reply.
var errEarly = errors.New("iwarp: an FPDU before the reply")

// waitReadable arranges a call of readReady on a goroutine, when the stream is readable, has ended,
// or its read deadline has passed.
func (c *conn) waitReadable() {
	c.e.work.Add(1)
	if c.onReadable == nil {
		c.onReadable = c.readReady
	}
	if p, ok := c.stream.(stack.ReadNotifier); ok {
		p.NotifyReadable(c.onReadable)
		return
	}
	go func() {
		_ = c.stream.Wait() // the next call returns the same error
		c.readReady()
	}()
}

// read runs until the stream is idle or ends. On a new stream it runs once, for all available
// bytes.
func (q *qp) read(c *conn) {
	_, parks := c.stream.(stack.ReadNotifier)
	for {
		err := c.stream.Wait()
		if err == nil {
			var awaited *conn
			if awaited, err = q.receive(c); awaited != nil {
				awaited.resumeTransmit()
			}
			c.reads++
			if c.placingFull {
				q.h.AwaitPlacing()
			}
		} else if isTimeout(err) {
			switch q.onIdleTimeout(c) {
			case busy:
				err = nil
			case idle:
				c.reads, err = 0, nil
			}
		}
		if err != nil {
			q.streamEnded(c, err)
			return
		}
		if parks && c.reads < readerThreshold {
			c.waitReadable()
			return
		}
	}
}

// receive handles available bytes of the stream, and sends responses that became due. awaited is
// the peer's connection if it is in this process and waits until everything that it sent is
// received.
func (q *qp) receive(c *conn) (awaited *conn, err error) {
	q.h.Lock()
	defer q.h.Unlock()
	c.handled, c.fault = 0, nil
	err = c.stream.Receive(c)
	c.placingFull = q.h.PlacingFull()
	if c.peerWaits {
		awaited, c.peerWaits = c.peerConn.Load(), false
	}
	switch {
	case q.conn != c || q.sending.lifecycle.ended():
	case c.fault != nil:
		q.failReceive(c)
	default:
		q.startIdleTimer(c)
		q.transmit()
	}
	return awaited, err
}

// Consume implements stack.Consumer: it places the segments in b. The QP is locked.
func (c *conn) Consume(b []byte) bool {
	q := c.qp
	c.handled += len(b)
	if q.conn != c || q.sending.lifecycle.ended() {
		// This side has closed the stream: further data is discarded (RFC 5040 §6.2).
		return c.handled < maxReceive
	}
	if !q.receiving.allowed {
		if !c.mayReceive() {
			c.fault = errEarly
			return false
		}
		q.receiving.allowed = true
	}
	c.received += uint64(len(b))
	if c.fault = c.deframer.Feed(b, q); c.fault != nil {
		q.receiving.ulpdu = bytes.Clone(q.receiving.ulpdu) // failReceive quotes it after b has become invalid
	}
	return c.fault == nil && c.handled < maxReceive
}

// failReceive ends the connection because of an error in received data.
func (q *qp) failReceive(c *conn) {
	err := c.fault
	switch {
	case err == errEarly:
		q.fail(err, nil)
		return
	case errors.Is(err, mpa.ErrCRC):
		q.e.Counters.CRCErrors.Add(1)
	case errors.Is(err, errTerminated):
		q.closeStream()
		q.failQP()
		return
	}
	if !q.receiving.reported {
		q.h.Event(asyncEvent(err))
	}
	q.fail(err, q.receiving.ulpdu)
}

// startIdleTimer sets a read deadline, at which the reader checks whether the stream is idle. An
// idle stream has no goroutine, and no memory in which the receiver assembles FPDUs.
func (q *qp) startIdleTimer(c *conn) {
	c.active = true
	if !c.idleTimer && (c.reads+1 >= readerThreshold || c.deframer.Held() > 0) {
		c.idleTimer = true
		_ = c.stream.SetReadDeadline(c.e.timers.Clock().Now().Add(idleTimeout))
	}
}

// idleness is the state of a stream at its read deadline.
type idleness uint8

const (
	lingered idleness = iota // this side has closed the stream: the deadline was set by linger
	busy                     // data has arrived since the last time
	idle                     // no data has arrived
)

// onIdleTimeout releases the receiver's memory if no data has arrived since startIdleTimer.
func (q *qp) onIdleTimeout(c *conn) idleness {
	q.h.Lock()
	defer q.h.Unlock()
	if q.conn != c || q.sending.lifecycle.ended() {
		return lingered
	}
	var deadline time.Time
	found := idle
	if c.active {
		deadline = c.e.timers.Clock().Now().Add(idleTimeout)
		found = busy
	} else {
		c.deframer.Release()
	}
	c.active, c.idleTimer = false, c.active
	_ = c.stream.SetReadDeadline(deadline)
	return found
}

// asyncEvent returns the event for an error of the peer that is reported by no completion.
func asyncEvent(err error) verbs.AsyncEventType {
	switch c, _ := rdmap.CauseOf(err); {
	case c.Layer == rdmap.LayerLLP:
		return verbs.EventQPFatal
	case c.Layer == rdmap.LayerDDP && c.Type == uint8(ddp.TaggedError),
		c.Layer == rdmap.LayerRDMA && c.Type == rdmap.TypeRemoteProtection:
		return verbs.EventQPAccessErr
	}
	return verbs.EventQPReqErr
}

// streamEnded is called once, when the reader gets the end of the stream or an error.
func (q *qp) streamEnded(c *conn, err error) {
	q.h.Lock()
	if q.conn == c {
		if !errors.Is(err, io.EOF) || c.deframer.Pending() > 0 {
			q.e.Counters.StreamsLost.Add(1)
			q.traceLost(err)
		}
		q.detach()
		if q.h.State() == verbs.StateRTS {
			q.failQP() // posted requests can no longer be sent
		}
	}
	q.h.Unlock()
	_ = c.stream.Close()
	c.streamEnded()
}
