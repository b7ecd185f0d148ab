package iwarp

// On the path: the stream's bytes come in here, on the one goroutine of a connected QP, and go through MPA's receiver
// to placement.go, segment by segment, under one hold of the QP's lock a read.

import (
	"errors"
	"io"
	"sync"

	"github.com/softrnic/softrnic/rdmatransport/iwarp/mpa"
	"github.com/softrnic/softrnic/verbs"
)

// readBuffers are lent to streams while they have much to read.
var readBuffers = sync.Pool{New: func() any { return new([readBuffer]byte) }}

// read runs until the stream ends.
func (q *qp) read(c *conn) {
	defer q.e.readers.Done()
	small := make([]byte, idleBuffer)
	var big *[readBuffer]byte
	var err error
	for err == nil {
		buf := small
		if big != nil {
			buf = big[:]
		}
		var n int
		n, err = c.stream.Read(buf)
		if n > 0 {
			q.feed(c, buf[:n])
		}
		switch {
		case n == len(small) && big == nil:
			big = readBuffers.Get().(*[readBuffer]byte)
		case n < len(small) && big != nil:
			readBuffers.Put(big)
			big = nil
		}
	}
	if big != nil {
		readBuffers.Put(big)
	}
	q.streamEnded(c, err)
}

// feed hands bytes of the stream on, and sends what they made due.
func (q *qp) feed(c *conn, b []byte) {
	q.h.Lock()
	defer q.h.Unlock()
	if q.conn != c {
		return // closed from this side: what still comes is of no use (RFC 5040 §6.2)
	}
	if err := c.deframer.Feed(b, q); err != nil && q.conn == c {
		if errors.Is(err, mpa.ErrCRC) {
			q.e.Counters.CRCErrors.Add(1)
		}
		if errors.Is(err, errTerminated) {
			q.closeStream()
			q.h.Fail()
			return
		}
		q.fail(err, q.rx.ulpdu)
		return
	}
	c.deframer.Release()
	q.pump()
}

// streamEnded is called once, when nothing more will come.
func (q *qp) streamEnded(c *conn, err error) {
	q.h.Lock()
	if q.conn == c {
		q.conn = nil
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
	if c := q.conn; c != nil {
		q.conn = nil
		q.e.Counters.StreamsLost.Add(1)
		c.stream.Abort()
		q.h.Fail()
	}
}
