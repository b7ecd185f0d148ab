package iwarp

// On the path: the one goroutine of a QP takes the stream's bytes where TCP has them, and hands
// them to MPA's receiver, which calls placement.go for each segment. The QP's lock is held once for
// all that has come. The goroutine ends when nothing comes for a while; the next bytes start
// another.

import (
	"bytes"
	"errors"
	"io"
	"time"

	"github.com/softrnic/softrnic/rdmatransport/iwarp/ddp"
	"github.com/softrnic/softrnic/rdmatransport/iwarp/mpa"
	"github.com/softrnic/softrnic/rdmatransport/iwarp/rdmap"
	"github.com/softrnic/softrnic/stack"
	"github.com/softrnic/softrnic/verbs"
)

// errEarly ends a connection whose initiator sends FPDUs before it has received the reply.
var errEarly = errors.New("iwarp: an FPDU before the reply")

// park has unparked called, on a goroutine, when there is something to read from the stream, it has
// ended, or its read deadline has passed.
func (c *conn) park() {
	c.e.work.Add(1)
	if c.onReadable == nil {
		c.onReadable = c.unparked
	}
	if p, ok := c.stream.(stack.ReadNotifier); ok {
		p.NotifyReadable(c.onReadable)
		return
	}
	go func() {
		_ = c.stream.Wait() // says the same again
		c.unparked()
	}()
}

// read runs until the stream is idle or ends. On a stream of which little is known yet it runs once
// for all that has come.
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
		if parks && c.reads < keepReader {
			c.park()
			return
		}
	}
}

// receive handles some of what the stream has, and sends what that made due. It returns the other
// end of the connection if that is in this process and waits until what it sent was received.
func (q *qp) receive(c *conn) (awaited *conn, err error) {
	q.h.Lock()
	defer q.h.Unlock()
	c.handled, c.fault = 0, nil
	err = c.stream.Receive(c)
	if c.otherWaits {
		awaited, c.otherWaits = c.other.Load(), false
	}
	switch {
	case q.conn != c || q.tx.lifecycle.ended():
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
	if q.conn != c || q.tx.lifecycle.ended() {
		return c.handled < receiveMost // this side has closed the stream: what still comes is discarded (RFC 5040 §6.2)
	}
	if !q.rx.allowed {
		if !c.mayReceive() {
			c.fault = errEarly
			return false
		}
		q.rx.allowed = true
	}
	c.received += uint64(len(b))
	if c.fault = c.deframer.Feed(b, q); c.fault != nil {
		q.rx.ulpdu = bytes.Clone(q.rx.ulpdu) // failReceive quotes it when b is no longer ours
	}
	return c.fault == nil && c.handled < receiveMost
}

// failReceive ends the connection because of an error in what came.
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
	if !q.rx.reported {
		q.h.Event(asyncEvent(err))
	}
	q.fail(err, q.rx.ulpdu)
}

// startIdleTimer has the reader wake up after a while: an idle stream has no goroutine, and gives
// back the memory in which the receiver gathers FPDUs.
func (q *qp) startIdleTimer(c *conn) {
	c.active = true
	if !c.idleTimer && (c.reads+1 >= keepReader || c.deframer.Held() > 0) {
		c.idleTimer = true
		_ = c.stream.SetReadDeadline(time.Now().Add(idleTimeout))
	}
}

// idleness is what a read deadline that has passed says of a stream.
type idleness uint8

const (
	lingered idleness = iota // this side has closed it: the deadline was that of linger
	busy                     // something came since the last time
	idle                     // nothing did
)

// onIdleTimeout gives the receiver's memory back if nothing came since startIdleTimer.
func (q *qp) onIdleTimeout(c *conn) idleness {
	q.h.Lock()
	defer q.h.Unlock()
	if q.conn != c || q.tx.lifecycle.ended() {
		return lingered
	}
	var deadline time.Time
	found := idle
	if c.active {
		deadline = time.Now().Add(idleTimeout)
		found = busy
	} else {
		c.deframer.Release()
	}
	c.active, c.idleTimer = false, c.active
	_ = c.stream.SetReadDeadline(deadline)
	return found
}

// asyncEvent is the event that reports an error of the peer where no completion reports it.
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

// streamEnded is called once, when the reader has come to the end of the stream or to an error.
func (q *qp) streamEnded(c *conn, err error) {
	q.h.Lock()
	if q.conn == c {
		if !errors.Is(err, io.EOF) || c.deframer.Pending() > 0 {
			q.e.Counters.StreamsLost.Add(1)
			q.traceLost(err)
		}
		q.detach()
		if q.h.State() == verbs.StateRTS {
			q.failQP() // what is posted can no longer be sent
		}
	}
	q.h.Unlock()
	_ = c.stream.Close()
	c.streamEnded()
}

// streamLost ends the connection where TCP has given the stream up: it takes nothing more. The
// reader will see the same.
func (q *qp) streamLost(err error) {
	q.conn.stream.Abort()
	if q.h.State() != verbs.StateRTS {
		return // the QP is about to enter RTS, and the reader will end the connection then
	}
	q.e.Counters.StreamsLost.Add(1)
	q.traceLost(err)
	q.detach()
	q.failQP()
}
