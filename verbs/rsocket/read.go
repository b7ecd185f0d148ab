package rsocket

import (
	"io"
	"net"

	"github.com/softrnic/softrnic/verbs"
)

// spareReceives are receive requests beyond the credits that the peer has, for its control messages: iWARP has no RNR NAK that
// would make it wait.
const spareReceives = 8

// receiver is the receive buffer, which the peer fills in a ring, half by half as it is given them. Each byte of it is unread, given to
// the peer, or free.
type receiver struct {
	buf        []byte
	mr         *verbs.MR
	messages   []byte // iWARP: where the SENDs go
	messagesMR *verbs.MR
	nextRecv   int // index of the message of the next receive request

	readAt, writeAt, giveAt int
	unread, given, free     int

	lengths      []uint32 // ring of the lengths of messages that were not read to their end
	first, count int
	read         uint16 // messages that were
	announced    uint16 // read, when credits were last given
}

func (r *receiver) half() int { return len(r.buf) / 2 }

func (r *receiver) register(c *Conn) (err error) {
	r.begin(make([]byte, c.cfg.RecvBuffer), c.cfg.RQSize)
	if r.mr, err = c.pd.RegMR(r.buf, verbs.AccessLocalWrite|verbs.AccessRemoteWrite); err != nil || !c.iwarp {
		return err
	}
	r.messages = make([]byte, (c.cfg.RQSize+spareReceives)*messageLen)
	r.messagesMR, err = c.pd.RegMR(r.messages, verbs.AccessLocalWrite)
	return err
}

// begin takes a buffer, whose first half the peer has, for so many messages.
func (r *receiver) begin(buf []byte, messages int) {
	r.buf, r.lengths = buf, make([]uint32, messages)
	r.given, r.free, r.giveAt = r.half(), r.half(), r.half()
}

// give gives the peer the next half of the buffer, which is free, and returns where it begins.
func (r *receiver) give() (at int) {
	at = r.giveAt
	r.giveAt = (at + r.half()) % len(r.buf)
	r.free -= r.half()
	r.given += r.half()
	return at
}

// post posts n receive requests.
func (r *receiver) post(c *Conn, qp *verbs.QP, n int) error {
	for range n {
		wr := verbs.RecvWR{ID: uint64(r.nextRecv) | receiveID}
		if c.iwarp {
			sges := [1]verbs.SGE{r.messagesMR.SGE(r.nextRecv*messageLen, messageLen)}
			wr.SGList = sges[:]
		}
		if err := qp.PostRecv(&wr); err != nil {
			return err
		}
		if r.nextRecv++; r.nextRecv == c.cfg.RQSize+spareReceives {
			r.nextRecv = 0
		}
	}
	return nil
}

// arrived takes in a message of data.
func (r *receiver) arrived(n int) error {
	const op = "receive"
	switch {
	case n == 0:
		return verbs.Errorf(errProtocol, op, "a message of no bytes")
	case r.count == len(r.lengths):
		return verbs.Errorf(errProtocol, op, "more than the %d messages that the peer has credits for", len(r.lengths))
	case n > r.given || n > r.half()-r.writeAt%r.half():
		return verbs.Errorf(errProtocol, op, "a message of %d bytes, longer than the %d that the peer was given room for", n,
			min(r.given, r.half()-r.writeAt%r.half()))
	}
	r.lengths[(r.first+r.count)%len(r.lengths)] = uint32(n)
	r.count++
	r.given -= n
	r.unread += n
	r.writeAt = (r.writeAt + n) % len(r.buf)
	return nil
}

// next is the bytes that can be read in one piece, at most limit.
func (r *receiver) next(limit int) []byte {
	n := min(r.unread, limit, len(r.buf)-r.readAt)
	return r.buf[r.readAt : r.readAt+n]
}

// consume frees n bytes that were read.
func (r *receiver) consume(n int) {
	r.readAt = (r.readAt + n) % len(r.buf)
	r.unread -= n
	r.free += n
	for n > 0 {
		at := &r.lengths[r.first]
		if uint32(n) < *at {
			*at -= uint32(n)
			return
		}
		n -= int(*at)
		r.first = (r.first + 1) % len(r.lengths)
		r.count--
		r.read++
	}
}

// due tells whether the peer should be given room or credits.
func (r *receiver) due() bool {
	return r.free >= r.half() || int(r.read-r.announced) >= len(r.lengths)/2
}

// drop drops what was not read, if nobody will and no reader has a piece of it in its hands. mu is held.
func (c *Conn) drop() {
	if (c.closed || c.readShut) && !c.holding {
		c.in.consume(c.in.unread)
		c.grant()
	}
}

// await waits for bytes, at most limit, in the buffer. mu is held.
func (c *Conn) await(limit int) (b []byte, err error) {
	c.waitFor(&c.readable, func() (over bool) {
		b, over, err = c.arrived(limit)
		return over
	})
	return b, err
}

// arrived is await that does not wait; over is false if there is nothing yet. mu is held.
func (c *Conn) arrived(limit int) (b []byte, over bool, err error) {
	switch {
	case c.closed:
		return nil, true, net.ErrClosed
	case c.readBy.past:
		return nil, true, errTimeout
	case c.readShut:
		return nil, true, io.EOF
	case c.in.unread > 0:
		return c.in.next(limit), true, nil
	case c.peerShut || c.peerGone:
		return nil, true, io.EOF
	case c.failed:
		return nil, true, c.err
	}
	return nil, false, nil
}

// take is await and what follows: use gets the bytes, without mu, and returns how many of them it has used.
func (c *Conn) take(limit int, use func([]byte) (int, error)) (int, error) {
	c.mu.Lock()
	b, err := c.await(limit)
	c.holding = err == nil
	c.mu.Unlock()
	if err != nil {
		return 0, err
	}
	n, err := use(b)
	c.mu.Lock()
	c.holding = false
	c.in.consume(n)
	c.grant()
	c.drop()
	c.mu.Unlock()
	return n, err
}

// Read reads what has arrived, at least one byte. It returns io.EOF when the peer has ended its half or the connection, and all
// was read.
func (c *Conn) Read(b []byte) (n int, err error) {
	c.reading.Lock()
	defer c.reading.Unlock()
	if len(b) == 0 {
		return 0, nil
	}
	if n, err = c.take(len(b), func(from []byte) (int, error) { return copy(b, from), nil }); err != nil && err != io.EOF {
		err = c.opError("read", err)
	}
	return n, err
}

// WriteTo writes to w until EOF, straight from the receive buffer (io.WriterTo).
func (c *Conn) WriteTo(w io.Writer) (total int64, err error) {
	c.reading.Lock()
	defer c.reading.Unlock()
	for {
		var writeErr error
		n, err := c.take(len(c.in.buf), func(from []byte) (n int, err error) {
			if n, writeErr = w.Write(from); n < 0 || n > len(from) {
				return 0, io.ErrShortWrite
			} else if n < len(from) && writeErr == nil {
				writeErr = io.ErrShortWrite
			}
			return n, writeErr
		})
		total += int64(n)
		switch {
		case err == io.EOF && writeErr == nil:
			return total, nil
		case err != nil && writeErr == nil:
			return total, c.opError("read", err)
		case err != nil:
			return total, err
		}
	}
}
