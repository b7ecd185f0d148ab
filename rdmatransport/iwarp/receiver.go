package iwarp

// On the path: the stream's bytes come in here, on the one goroutine of a connected QP, and go through MPA's receiver
// to placement.go, segment by segment, under one hold of the QP's lock a read.

import (
	"errors"
	"io"
	"sync"
	"time"

	"github.com/softrnic/softrnic/rdmatransport/iwarp/ddp"
	"github.com/softrnic/softrnic/rdmatransport/iwarp/mpa"
	"github.com/softrnic/softrnic/rdmatransport/iwarp/rdmap"
	"github.com/softrnic/softrnic/verbs"
)

// readBuffers are lent to streams while they have much to read.
var readBuffers = sync.Pool{New: func() any { return new([readBuffer]byte) }}

// errEarly ends a connection whose initiator sends FPDUs before it has the reply.
var errEarly = errors.New("iwarp: an FPDU before the reply")

// read runs until the stream ends. While there is much to read it has one of readBuffers; a deadline brings it back.
func (q *qp) read(c *conn) {
	small := make([]byte, idleBuffer)
	var big *[readBuffer]byte
	busy := false
	for {
		buf := small
		if big != nil {
			buf = big[:]
		}
		n, err := c.stream.Read(buf)
		if n > 0 {
			busy = true
			q.feed(c, buf[:n], big == nil)
		}
		switch {
		case err != nil && (big == nil || !isTimeout(err) || !q.keepReading(c, busy)):
			if big != nil {
				readBuffers.Put(big)
			}
			q.streamEnded(c, err)
			return
		case err != nil && busy:
			busy = false
		case err != nil:
			readBuffers.Put(big)
			big = nil
		case n == len(small) && big == nil && q.keepReading(c, true):
			big = readBuffers.Get().(*[readBuffer]byte)
		}
	}
}

// keepReading sets the deadline that the reader wakes up by, or removes it; false if the stream is left to its end, and
// the deadline is that of its lingering.
func (q *qp) keepReading(c *conn, watch bool) bool {
	q.h.Lock()
	defer q.h.Unlock()
	if q.conn != c || q.tx.ending {
		return false
	}
	var deadline time.Time
	if watch {
		deadline = time.Now().Add(idleTimeout)
	} else {
		c.deframer.Release()
	}
	_ = c.stream.SetReadDeadline(deadline)
	return true
}

// feed hands bytes of the stream on, and sends what they made due. What the receiver has gathered an FPDU in stays for
// the next one as long as the stream has much to read.
func (q *qp) feed(c *conn, b []byte, idle bool) {
	q.h.Lock()
	defer q.h.Unlock()
	if q.conn != c || q.tx.ending {
		return // closed from this side: what still comes is of no use (RFC 5040 §6.2)
	}
	if !q.rx.allowed {
		if !c.mayReceive() {
			q.fail(errEarly, nil)
			return
		}
		q.rx.allowed = true
	}
	if err := c.deframer.Feed(b, q); err != nil {
		if errors.Is(err, mpa.ErrCRC) {
			q.e.Counters.CRCErrors.Add(1)
		}
		if errors.Is(err, errTerminated) {
			q.closeStream()
			q.h.Fail()
			return
		}
		if !q.rx.told {
			q.h.Event(asyncEvent(err))
		}
		q.fail(err, q.rx.ulpdu)
		return
	}
	if idle && c.deframer.Held() > idleBuffer {
		c.deframer.Release()
	}
	q.pump()
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
	c.ended(err)
}

// lost ends the connection after the stream refused to send: TCP gave it up. The reader will see the same.
func (q *qp) lost() {
	q.conn.stream.Abort()
	if q.h.State() != verbs.StateRTS {
		return // it is about to be: the reader will see to it
	}
	q.detach()
	q.e.Counters.StreamsLost.Add(1)
	q.h.Fail()
}
