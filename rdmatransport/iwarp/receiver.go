package iwarp

// On the path: the stream's bytes come in here, on the one goroutine of a connected QP, and go through MPA's receiver
// to placement.go, segment by segment, from where TCP has them, under one hold of the QP's lock for all that has come.

import (
	"bytes"
	"errors"
	"io"
	"time"

	"github.com/softrnic/softrnic/rdmatransport/iwarp/ddp"
	"github.com/softrnic/softrnic/rdmatransport/iwarp/mpa"
	"github.com/softrnic/softrnic/rdmatransport/iwarp/rdmap"
	"github.com/softrnic/softrnic/verbs"
)

// errEarly ends a connection whose initiator sends FPDUs before it has the reply.
var errEarly = errors.New("iwarp: an FPDU before the reply")

// read runs until the stream ends.
func (q *qp) read(c *conn) {
	for {
		err := c.stream.Wait()
		if err == nil {
			var awaited *conn
			if awaited, err = q.receive(c); awaited != nil {
				awaited.resume()
			}
		} else if isTimeout(err) && q.rest(c) {
			continue
		}
		if err != nil {
			q.streamEnded(c, err)
			return
		}
	}
}

// receive takes in some of what the stream has, and sends what that made due. It returns the other end if that waits for
// it.
func (q *qp) receive(c *conn) (awaited *conn, err error) {
	q.h.Lock()
	defer q.h.Unlock()
	c.taken, c.fault = 0, nil
	err = c.stream.Receive(c)
	if c.awaited {
		awaited, c.awaited = c.other.Load(), false
	}
	switch {
	case q.conn != c || q.tx.lifecycle.ended():
	case c.fault != nil:
		q.refuse(c)
	default:
		q.watch(c)
		q.transmit()
	}
	return awaited, err
}

// Take implements stack.Taker: the segments in b are placed. The QP is locked.
func (c *conn) Take(b []byte) bool {
	q := c.qp
	c.taken += len(b)
	if q.conn != c || q.tx.lifecycle.ended() {
		return c.taken < receiveMost // closed from this side: what still comes is of no use (RFC 5040 §6.2)
	}
	if !q.rx.allowed {
		if !c.mayReceive() {
			c.fault = errEarly
			return false
		}
		q.rx.allowed = true
	}
	c.fed += uint64(len(b))
	if c.fault = c.deframer.Feed(b, q); c.fault != nil {
		q.rx.ulpdu = bytes.Clone(q.rx.ulpdu) // refuse quotes it when b is no longer ours
	}
	return c.fault == nil && c.taken < receiveMost
}

// refuse ends the connection over what came.
func (q *qp) refuse(c *conn) {
	err := c.fault
	switch {
	case err == errEarly:
		q.fail(err, nil)
		return
	case errors.Is(err, mpa.ErrCRC):
		q.e.Counters.CRCErrors.Add(1)
	case errors.Is(err, errTerminated):
		q.closeStream()
		q.h.Fail()
		return
	}
	if !q.rx.told {
		q.h.Event(asyncEvent(err))
	}
	q.fail(err, q.rx.ulpdu)
}

// watch has the reader wake up when the memory that the receiver gathers FPDUs in may have become idle.
func (q *qp) watch(c *conn) {
	c.busy = true
	if !c.watched && c.deframer.Held() > idleBuffer {
		c.watched = true
		_ = c.stream.SetReadDeadline(time.Now().Add(idleTimeout))
	}
}

// rest gives up what the receiver holds if the stream was silent since watch; false if the stream is left to its end, and
// the deadline is that of its lingering.
func (q *qp) rest(c *conn) bool {
	q.h.Lock()
	defer q.h.Unlock()
	if q.conn != c || q.tx.lifecycle.ended() {
		return false
	}
	var deadline time.Time
	if c.busy {
		deadline = time.Now().Add(idleTimeout)
	} else {
		c.deframer.Release()
	}
	c.busy, c.watched = false, c.busy
	_ = c.stream.SetReadDeadline(deadline)
	return true
}

// asyncEvent tells the application of an error of the peer's that no completion tells.
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

// streamEnded is called once, when nothing more will come.
func (q *qp) streamEnded(c *conn, err error) {
	q.h.Lock()
	if q.conn == c {
		q.detach()
		if !errors.Is(err, io.EOF) || c.deframer.Pending() > 0 {
			q.e.Counters.StreamsLost.Add(1)
		}
		if q.h.State() == verbs.StateRTS {
			q.h.Fail() // whatever is posted can no longer be carried out
		}
	}
	q.h.Unlock()
	_ = c.stream.Close()
	c.streamEnded()
}

// streamLost ends the connection after the stream refused to send: TCP gave it up. The reader will see the same.
func (q *qp) streamLost() {
	q.conn.stream.Abort()
	if q.h.State() != verbs.StateRTS {
		return // it is about to be: the reader will see to it
	}
	q.detach()
	q.e.Counters.StreamsLost.Add(1)
	q.h.Fail()
}
