package rsocket

import (
	"io"
	"net"

	"github.com/softrnic/softrnic/verbs"
)

// spareReceives is the number of receive requests in addition to the peer's credits. They are for
// its control messages, because iWARP has no RNR NAK to delay the peer.
const spareReceives = 8

// receiver is the receive buffer, a ring to which the peer writes. Its halves are granted to the
// peer in turn. Each byte is unread, granted to the peer, or free.
type receiver struct {
	buf        []byte
	mr         *verbs.MR
	messages   []byte // iWARP: receives the SENDs
	messagesMR *verbs.MR
	nextRecv   int // index of the message of the next receive request

	readAt, writeAt, grantAt int
	unread, granted, free    int

	lengths      []uint32 // ring of the unread lengths of messages
	first, count int
	read         uint16 // messages read completely, modulo 2^16
	announced    uint16 // the value of read when credits were last granted
}

func (r *receiver) half() int { return len(r.buf) / 2 }

func (r *receiver) register(c *Conn) (err error) {
	r.init(make([]byte, c.cfg.RecvBuffer), c.cfg.RQSize)
	if r.mr, err = c.pd.RegMR(r.buf, verbs.AccessLocalWrite|verbs.AccessRemoteWrite); err != nil || !c.iwarp {
		return err
	}
	r.messages = make([]byte, (c.cfg.RQSize+spareReceives)*messageLen)
	r.messagesMR, err = c.pd.RegMR(r.messages, verbs.AccessLocalWrite)
	return err
}

// init sets the buffer and the maximum number of unread messages. The first half of the buffer is
// granted to the peer.
func (r *receiver) init(buf []byte, messages int) {
	r.buf, r.lengths = buf, make([]uint32, messages)
	r.granted, r.free, r.grantAt = r.half(), r.half(), r.half()
}

// grantHalf grants the peer the next half of the buffer, which must be free, and returns its
// offset.
func (r *receiver) grantHalf() (at int) {
	at = r.grantAt
	r.grantAt = (at + r.half()) % len(r.buf)
	r.free -= r.half()
	r.granted += r.half()
	return at
}

// post posts n receive requests.
func (r *receiver) post(c *Conn, qp *verbs.QP, n int) error {
	var wrs [maxCompletions]verbs.RecvWR
	var list [maxCompletions]*verbs.RecvWR
	var sges [maxCompletions]verbs.SGE
	for n > 0 {
		some := min(n, maxCompletions)
		for i := range some {
			wrs[i] = verbs.RecvWR{WRID: uint64(r.nextRecv) | receiveID}
			if c.iwarp {
				sges[i] = r.messagesMR.SGE(r.nextRecv*messageLen, messageLen)
				wrs[i].SGList = sges[i : i+1]
			}
			list[i] = &wrs[i]
			if r.nextRecv++; r.nextRecv == c.cfg.RQSize+spareReceives {
				r.nextRecv = 0
			}
		}
		if err := qp.PostRecv(list[:some]...); err != nil {
			return err
		}
		n -= some
	}
	return nil
}

// handleData handles a data message of n bytes.
func (r *receiver) handleData(n int) error {
	const op = "receive"
	switch {
	case n == 0:
		return verbs.Errorf(errProtocol, op, "a data message of 0 bytes")
	case r.count == len(r.lengths):
		return verbs.Errorf(errProtocol, op, "more than the %d messages that the peer has credits for", len(r.lengths))
	case n > r.granted || n > r.half()-r.writeAt%r.half():
		return verbs.Errorf(errProtocol, op, "a message of %d bytes, more than the %d granted to the peer", n,
			min(r.granted, r.half()-r.writeAt%r.half()))
	}
	r.lengths[(r.first+r.count)%len(r.lengths)] = uint32(n)
	r.count++
	r.granted -= n
	r.unread += n
	r.writeAt = (r.writeAt + n) % len(r.buf)
	return nil
}

// next returns the contiguous unread bytes, at most limit.
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

// needsGrant reports whether buffer space or credits should be granted to the peer.
func (r *receiver) needsGrant() bool {
	return r.free >= r.half() || int(r.read-r.announced) >= len(r.lengths)/2
}

// dropUnread drops unread data after the end of reading, unless a reader is still copying from the
// buffer. mu is held.
func (c *Conn) dropUnread() {
	if (c.closed || c.readShut) && !c.copying {
		c.in.consume(c.in.unread)
		c.grant()
	}
}

// waitData waits for unread bytes and returns at most limit of them, which the caller copies.
func (c *Conn) waitData(limit int) (b []byte, err error) {
	c.mu.Lock()
	defer c.mu.Unlock() // also if a simulation ends the wait with a panic
	c.waitFor(&c.readable, c.canReceive)
	b, _, err = c.tryData(limit)
	c.copying = err == nil
	return b, err
}

// tryData is waitData without waiting. done is false if there is no data yet. mu is held.
func (c *Conn) tryData(limit int) (b []byte, done bool, err error) {
	switch {
	case c.closed:
		return nil, true, net.ErrClosed
	case c.readDeadline.expired:
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

// readWith waits for data and calls use with it, without mu. use returns the number of bytes that
// it has consumed.
func (c *Conn) readWith(limit int, use func([]byte) (int, error)) (int, error) {
	b, err := c.waitData(limit)
	if err != nil {
		return 0, err
	}
	n, err := use(b)
	c.mu.Lock()
	c.copying = false
	c.in.consume(n)
	c.grant()
	c.dropUnread()
	c.mu.Unlock()
	return n, err
}

// Read reads data that has arrived, at least one byte. It returns io.EOF when the peer has ended
// its half or the connection, and all data is read.
func (c *Conn) Read(b []byte) (n int, err error) {
	c.reading.Lock()
	defer c.reading.Unlock()
	if len(b) == 0 {
		return 0, nil
	}
	if n, err = c.readWith(len(b), func(from []byte) (int, error) { return copy(b, from), nil }); err != nil && err != io.EOF {
		err = c.opError("read", err)
	}
	return n, err
}

// WriteTo writes to w until EOF, directly from the receive buffer (io.WriterTo).
func (c *Conn) WriteTo(w io.Writer) (total int64, err error) {
	c.reading.Lock()
	defer c.reading.Unlock()
	for {
		var writeErr error
		n, err := c.readWith(len(c.in.buf), func(from []byte) (n int, err error) {
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
