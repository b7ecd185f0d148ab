package target

import (
	"bytes"

	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/ulp/nvme"
)

// This file moves the data of commands, in parts. For a read of the host, a part is read from the
// backend into a chunk, and written to the host by RDMA. For a write it is the reverse. Parts move
// concurrently, as far as there are transfers and chunks for them.
//
// If the backend is a Memory, a part of a read is written to the host from its pages, and a part of
// a write that is a page is received into one. Other parts of writes are copied. No two parts have
// data of the same page, so that a command is atomic within a page.

// direction is the way of a command's data.
type direction uint8

const (
	toHost     direction = iota // from ns or buf
	fromHost                    // to ns or buf
	comparison                  // from the host, compared with ns
)

// transfer is a part of a command's data in motion.
type transfer struct {
	index  int
	c      *command // nil: not in use
	lease           // of memory
	off, n int      // of the part in the data
	wr     verbs.SendWR
	sge    [1]verbs.SGE // the memory
}

// checkSGL checks that a command's SGL describes host memory or data in the capsule of n bytes, or
// with more, n at least.
func (c *command) checkSGL(n int, more bool) nvme.Status {
	s := &c.sqe.SGL
	switch {
	case s.Type == nvme.SGLKeyedData && (s.Subtype == nvme.SGLAddress || s.Subtype == nvme.SGLInvalidate):
	case s.Type == nvme.SGLData && s.Subtype == nvme.SGLOffset && c.way != toHost:
		if s.Addr > uint64(len(c.inline)) || uint64(s.Length) > uint64(len(c.inline))-s.Addr {
			return nvme.SGLOffsetInvalid
		}
	default:
		return nvme.SGLTypeInvalid
	}
	if length := int(s.Length); length < n || length > n && !more {
		return nvme.SGLDataLengthInvalid
	}
	return nvme.Success
}

// move moves n bytes, and then calls c.then or responds.
func (c *command) move(way direction, n int) {
	more := c.ns == nil // requests for less than the data of an Admin command are checked by the caller
	c.way, c.length = way, n
	if status := c.checkSGL(n, more); status != nvme.Success {
		c.fail(status)
		return
	}
	c.pending.Store(1)
	if c.sqe.SGL.Type == nvme.SGLData {
		c.q.moveInline(c)
		return
	}
	c.q.pump(c)
}

// reply sends data to the host, and responds.
func (c *command) reply(data []byte) {
	c.buf = data
	c.move(toHost, len(data))
}

// fetch receives n bytes of data from the host, and calls then with them in c.buf.
func (c *command) fetch(n int, then func(c *command)) {
	c.then = then
	c.move(fromHost, n)
}

// moveInline moves data in the capsule.
func (q *queue) moveInline(c *command) {
	at := c.sqe.SGL.Addr
	data := c.inline[at : at+uint64(c.length)]
	q.copied(c, len(data))
	switch {
	case c.ns == nil:
		c.buf = data
	case c.way == fromHost:
		if done, status := c.ns.tryWriteAt(data, c.off); done {
			c.setFailed(status)
			break
		}
		q.block(func() {
			c.setFailed(c.ns.writeAt(data, c.off))
			q.partDone(c)
		})
		return
	case c.way == comparison:
		q.block(func() {
			c.setFailed(c.ns.compare(data, c.off))
			q.partDone(c)
		})
		return
	}
	q.partDone(c)
}

// compare compares data with that in a backend.
func (ns *namespace) compare(data []byte, off int64) nvme.Status {
	own := make([]byte, len(data))
	if status := ns.readAt(own, off); status != nvme.Success {
		return status
	}
	if !bytes.Equal(own, data) {
		return nvme.CompareFailure | nvme.DoNotRetry
	}
	return nvme.Success
}

// pump starts parts of a command's data. If there is no transfer or memory it returns false, and
// resume will continue.
func (q *queue) pump(c *command) bool {
	if c.ns == nil && c.way == fromHost && c.buf == nil {
		c.buf = make([]byte, c.length)
	}
	for c.next < c.length {
		tr := q.acquire(c)
		if tr == nil {
			return false
		}
		c.next += tr.n
		c.pending.Add(1)
		switch {
		case c.way != toHost:
			q.post(tr, verbs.RDMARead, kindRead)
		case tr.chunk != nil:
			q.load(tr)
		default:
			q.loaded(tr, nvme.Success)
		}
	}
	q.partDone(c)
	return true
}

// acquire returns a transfer with memory for the next part of a command's data. If there is none it
// returns nil, and the command waits for resume.
func (q *queue) acquire(c *command) *transfer {
	q.mu.Lock()
	n := len(q.free)
	if n == 0 || q.closing {
		q.stalled = append(q.stalled, c)
		q.mu.Unlock()
		return nil
	}
	tr := q.free[n-1]
	q.free = q.free[:n-1]
	q.mu.Unlock()
	tr.c, tr.off = c, c.next
	if q.borrow(tr) {
		return tr
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	chunk, err := q.t.pool.get(q)
	if err != nil {
		q.end(err)
	}
	if chunk == nil {
		tr.c = nil
		q.free = append(q.free, tr)
		q.stalled = append(q.stalled, c)
		return nil
	}
	tr.chunk, tr.n = chunk, min(chunkSize, c.length-tr.off)
	if at := c.pageOffset(tr); at > 0 && c.length-tr.off > chunkSize { // the next part then begins a page
		tr.n = pageSize - at
	}
	tr.sge[0] = chunk.sge(tr.n)
	q.copied(c, tr.n)
	return tr
}

// copied counts n bytes of a command that are copied.
func (q *queue) copied(c *command, n int) {
	if c.ns != nil && c.way != comparison {
		q.counters.copiedBytes.Add(uint64(n))
	}
}

// pageOffset returns where a part of a Read or Write of a Memory begins in a page, and otherwise 0.
func (c *command) pageOffset(tr *transfer) int {
	if c.way == comparison || c.ns == nil || c.ns.memory == nil {
		return 0
	}
	return int((c.off + int64(tr.off)) % pageSize)
}

// borrow takes memory of the backend for a part: for a Read that of the content, and for a Write a
// page that will replace one. It returns false if that is not possible.
func (q *queue) borrow(tr *transfer) bool {
	c, p := tr.c, &q.t.pool
	if c.ns == nil || c.ns.memory == nil || c.way == comparison {
		return false
	}
	m, off, n := c.ns.memory, c.off+int64(tr.off), c.length-tr.off
	at := int(off % pageSize)
	if c.way == fromHost {
		if at > 0 || n < pageSize {
			return false
		}
		n = pageSize
	}
	count := (at + n + pageSize - 1) / pageSize
	if !p.reserve(q.host, count) {
		return false
	}
	tr.memory = m
	if c.way == fromHost {
		tr.pages = m.take().alone()
	} else {
		tr.pages, n = m.lend(off, n)
	}
	p.unreserve(q.host, count-len(tr.pages))
	if len(tr.pages) == 0 { // the content has become shorter, which reading it reports
		tr.lease = lease{}
		return false
	}
	mr, err := p.region(tr.pages[0].slab)
	if err != nil {
		q.end(err)
		p.end(q.host, tr.lease)
		tr.lease = lease{}
		return false
	}
	tr.n, tr.sge[0] = n, mr.SGE(tr.pages[0].index*pageSize+at, n)
	return true
}

// release ends a transfer.
func (q *queue) release(tr *transfer) {
	memory := tr.lease
	tr.c, tr.lease = nil, lease{}
	q.mu.Lock()
	q.free = append(q.free, tr)
	q.mu.Unlock()
	q.t.pool.end(q.host, memory)
}

// resume continues commands whose data waits.
func (q *queue) resume() {
	for {
		q.mu.Lock()
		if len(q.stalled) == 0 || len(q.free) == 0 || q.closing {
			q.mu.Unlock()
			return
		}
		c := q.stalled[0]
		q.stalled = q.stalled[1:]
		q.mu.Unlock()
		if !q.pump(c) {
			return
		}
	}
}

// load fills a part with data for the host.
func (q *queue) load(tr *transfer) {
	c, p := tr.c, tr.chunk.bytes(tr.n)
	if c.ns == nil {
		copy(p, c.buf[tr.off:])
		q.loaded(tr, nvme.Success)
		return
	}
	off := c.off + int64(tr.off)
	if done, status := c.ns.tryReadAt(p, off); done {
		q.loaded(tr, status)
		return
	}
	q.block(func() {
		q.loaded(tr, c.ns.readAt(p, off))
		q.resume()
	})
}

// loaded sends a part to the host. If it is all of the data, this is left to the response.
func (q *queue) loaded(tr *transfer, status nvme.Status) {
	c := tr.c
	switch {
	case status != nvme.Success:
		c.setFailed(status)
		q.release(tr)
	case tr.n == c.length:
		c.tail = tr
	default:
		q.post(tr, verbs.RDMAWrite, kindWrite)
	}
	q.partDone(c)
}

// post posts the RDMA READ or WRITE of a part.
func (q *queue) post(tr *transfer, op verbs.WROpcode, kind uint64) {
	if err := q.qp.PostSend(tr.request(op, kind, verbs.SendSignaled)); err != nil {
		q.end(err)
	}
}

// request makes the work request of a part.
func (tr *transfer) request(op verbs.WROpcode, kind uint64, flags verbs.SendFlags) *verbs.SendWR {
	tr.wr.WRID, tr.wr.Opcode, tr.wr.Flags = kind<<kindShift|uint64(tr.index), op, flags
	tr.wr.RemoteAddr, tr.wr.RKey = tr.c.sqe.SGL.Addr+uint64(tr.off), tr.c.sqe.SGL.Key
	return &tr.wr
}

// received takes a part that an RDMA READ has received.
func (q *queue) received(tr *transfer) {
	c := tr.c
	off := c.off + int64(tr.off)
	var p []byte
	if tr.chunk != nil {
		p = tr.chunk.bytes(tr.n)
	}
	switch {
	case tr.chunk == nil: // a page
		page := &tr.pages[0]
		tr.pages = nil
		q.t.pool.unreserve(q.host, 1)
		c.setFailed(writeStatus(tr.memory.replace(off, page)))
	case c.ns == nil:
		copy(c.buf[tr.off:], p)
	case c.way == fromHost:
		done, status := c.ns.tryWriteAt(p, off)
		if !done {
			q.block(func() { q.stored(tr, c.ns.writeAt(p, off)) })
			return
		}
		c.setFailed(status)
	default:
		q.block(func() { q.stored(tr, c.ns.compare(p, off)) })
		return
	}
	q.release(tr)
	q.partDone(c)
}

// stored is the end of received on another goroutine.
func (q *queue) stored(tr *transfer, status nvme.Status) {
	c := tr.c
	c.setFailed(status)
	q.release(tr)
	q.partDone(c)
	q.resume()
}

// partDone ends a part. After the last one, the command continues.
func (q *queue) partDone(c *command) {
	if c.pending.Add(-1) > 0 {
		return
	}
	if then := c.then; then != nil && c.status() == nvme.Success {
		then(c)
		return
	}
	c.complete(nvme.Success)
}
