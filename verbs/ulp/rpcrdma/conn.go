package rpcrdma

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/internal/wakeup"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// conn is a connection of either side: its QP, its inline buffers and its work requests.
type conn struct {
	cfg   *Config
	clock verbs.Clock
	pd    *verbs.PD
	cq    *verbs.CQ
	recv  buffers
	send  buffers
	cm    *rdmacm.Conn
	qp    *verbs.QP

	sendMax    int  // length of the longest SEND
	recvMax    int  // and of the longest that the peer sends
	invalidate bool // the peer accepts SENDs with invalidate

	active atomic.Bool // a work request has completed since keepAlive's last tick

	mu     sync.Mutex
	freed  sync.Cond // of slots, or the connection has failed
	slots  int       // free entries of the send queue
	nextID uint64
	ops    map[uint64]*operation // posted send work requests, by ID
	err    error                 // the reason for the end of the connection
	ended  chan struct{}         // closed with err
}

// The IDs of work requests: receives have the number of their buffer, and this bit.
const receiveID = 1 << 63

// The send queue holds the work requests of a message with the most segments, its SEND and a probe,
// and some more.
const sqSize = 2*maxSegments + 2

// buffers are the inline messages of one direction, in one region.
type buffers struct {
	mr   *verbs.MR
	size int
	free chan int // numbers of unused ones
}

func (b *buffers) register(pd *verbs.PD, n, size int) (err error) {
	b.size, b.free = size, make(chan int, n)
	for i := range n {
		b.free <- i
	}
	b.mr, err = pd.RegMR(make([]byte, n*size), verbs.AccessLocalWrite)
	return err
}

func (b *buffers) bytes(i int) []byte { return b.mr.Buf()[i*b.size : (i+1)*b.size : (i+1)*b.size] }

func (b *buffers) sge(i, n int) verbs.SGE {
	return verbs.SGE{Addr: b.mr.Addr() + uint64(i*b.size), Length: uint32(n), LKey: b.mr.LKey()}
}

// operation is a chain of send work requests. It ends when they have all completed.
type operation struct {
	left int
	err  error
	done chan struct{}
	then func() // if not nil, called instead of closing done
}

// newConn creates all objects of a connection except the QP.
func newConn(dev *verbs.Device, cfg *Config) (c *conn, err error) {
	n := cfg.Credits + cfg.BackwardCredits // buffers in each direction
	c = &conn{cfg: cfg, clock: dev.Clock(), slots: sqSize, ops: map[uint64]*operation{}, ended: make(chan struct{})}
	c.freed.L = &c.mu
	defer func() {
		if err != nil {
			err = errors.Join(err, c.release())
		}
	}()
	if c.pd, err = dev.AllocPD(); err != nil {
		return c, err
	}
	if c.cq, err = dev.CreateCQ(sqSize+n, nil); err != nil {
		return c, err
	}
	if err = c.recv.register(c.pd, n, cfg.Inline); err != nil {
		return c, err
	}
	return c, c.send.register(c.pd, n, cfg.Inline)
}

// release undoes newConn.
func (c *conn) release() error {
	var errs []error
	for _, mr := range []*verbs.MR{c.recv.mr, c.send.mr} {
		if mr != nil {
			errs = append(errs, mr.Close())
		}
	}
	if c.cq != nil {
		errs = append(errs, c.cq.Close())
	}
	if c.pd != nil {
		errs = append(errs, c.pd.Close())
	}
	return errors.Join(errs...)
}

// cmConfig returns the rdma_cm options of the connection.
func (c *conn) cmConfig(own private) *rdmacm.Config {
	return &rdmacm.Config{
		Transports: c.cfg.Transports[:1], PD: c.pd, SendCQ: c.cq, RecvCQ: c.cq, SQSigAll: true,
		Cap:         verbs.QPCap{MaxSendWR: sqSize, MaxRecvWR: cap(c.recv.free), MaxSendSGE: 2, MaxRecvSGE: 1},
		PrivateData: own.bytes(),
		Prepare: func(cm *rdmacm.Conn) error {
			c.qp = cm.QP()
			for range cap(c.recv.free) {
				if err := c.postReceive(<-c.recv.free); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

// start starts using a connection that rdma_cm has established.
func (c *conn) start(cm *rdmacm.Conn, peer private) {
	c.cm, c.sendMax, c.recvMax = cm, min(c.cfg.Inline, peer.recv), min(c.cfg.Inline, peer.send)
}

func (c *conn) postReceive(i int) error {
	return c.qp.PostRecv(&verbs.RecvWR{WRID: receiveID | uint64(i), SGList: []verbs.SGE{c.recv.sge(i, c.recv.size)}})
}

var errEnded = errors.New("the connection has ended")

// fail ends the connection. Work requests that are posted are flushed, and operations end.
func (c *conn) fail(err error) {
	c.mu.Lock()
	if c.err != nil {
		c.mu.Unlock()
		return
	}
	c.err = err
	close(c.ended)
	ops := c.ops
	c.ops = nil
	var finished []*operation // each once, in the order of their posting
	for _, id := range slices.Sorted(maps.Keys(ops)) {
		op := ops[id]
		if op.err == nil {
			op.err = err
			finished = append(finished, op)
		}
	}
	c.freed.Broadcast()
	c.mu.Unlock()
	_ = c.qp.Modify(&verbs.QPAttr{QPState: verbs.StateErr}, verbs.QPAttrState)
	for _, op := range finished {
		op.finish()
	}
}

func (op *operation) finish() {
	if op.then != nil {
		op.then()
	} else {
		close(op.done)
	}
}

// post posts work requests as one operation, when the send queue has room for all. If then is not
// nil, it is called when they have completed, or after the end of the connection.
func (c *conn) post(then func(), wrs ...*verbs.SendWR) (*operation, error) {
	n := len(wrs)
	op := &operation{left: n, then: then, done: make(chan struct{})}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.clock.Virtual() { // otherwise the function would be allocated for nothing
		wakeup.Await(c.clock, &c.freed, func() bool { return c.mayPost(n) })
	}
	for !c.mayPost(n) {
		c.freed.Wait()
	}
	if c.err != nil {
		return nil, c.err
	}
	for _, wr := range wrs {
		wr.WRID = c.nextID &^ receiveID
		c.nextID++
		c.ops[wr.WRID] = op
	}
	if err := c.qp.PostSend(wrs...); err != nil {
		for _, wr := range wrs {
			delete(c.ops, wr.WRID)
		}
		return nil, err // the connection cannot continue; the caller ends it
	}
	c.slots -= n
	return op, nil
}

// mayPost reports whether the send queue has room for n work requests, or the connection has ended.
// mu is held.
func (c *conn) mayPost(n int) bool { return c.slots >= n || c.err != nil }

// run takes completions until the connection ends. received is called with each received message,
// whose buffer it must post again. It must not block.
func (c *conn) run(ctx context.Context, received func(buffer, length int, wc *verbs.WC)) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var watching wakeup.Group
	watching.Go(c.clock, func() {
		gone := c.cm.Done()
		if c.clock.Virtual() {
			c.clock.Park(func() bool { return wakeup.Closed(gone) || ctx.Err() != nil || wakeup.Closed(c.ended) })
		}
		select {
		case <-gone:
		case <-ctx.Done():
		case <-c.ended:
		}
		c.fail(errEnded)
		cancel()
	})
	defer watching.Wait(c.clock)
	var wcs [32]verbs.WC
	for {
		n, err := c.cq.Wait(ctx, wcs[:])
		if err != nil {
			c.fail(err)
			return
		}
		c.active.Store(true)
		for i := range wcs[:n] {
			wc := &wcs[i]
			if wc.Status != verbs.WCSuccess {
				c.fail(wc.Err())
				return
			}
			if wc.WRID&receiveID == 0 {
				c.completed(wc.WRID)
			} else {
				received(int(wc.WRID&^receiveID), int(wc.ByteLen), wc)
			}
		}
	}
}

// completed handles the completion of a send work request.
func (c *conn) completed(id uint64) {
	c.mu.Lock()
	op := c.ops[id]
	delete(c.ops, id)
	c.slots++
	c.freed.Broadcast()
	finished := false
	if op != nil {
		op.left--
		finished = op.left == 0
	}
	c.mu.Unlock()
	if finished {
		op.finish()
	}
}

// outgoing is a message to send.
type outgoing struct {
	header     *Header
	message    []byte
	inline     []part          // of message, which follow the header
	before     []*verbs.SendWR // posted before the SEND
	invalidate uint32          // the key of the peer that the SEND invalidates, or 0
	ready      func()          // unless nil, called when there is a send buffer, before anything is posted
	done       func()          // called when all work requests have completed, or after an error
}

// transmit sends a message. If it returns an error, the connection has ended.
func (c *conn) transmit(m *outgoing) error {
	buffer, ok := wakeup.Take(c.clock, c.send.free, c.ended)
	if !ok {
		m.done()
		return c.err
	}
	b := m.header.Append(c.send.bytes(buffer)[:0])
	for _, p := range m.inline {
		b = append(b, m.message[p.from:p.from+p.n]...)
	}
	wr := &verbs.SendWR{Opcode: verbs.Send, SGList: []verbs.SGE{c.send.sge(buffer, len(b))}}
	if m.invalidate != 0 {
		wr.Opcode, wr.InvalidateRKey = verbs.SendWithInv, m.invalidate
	}
	if m.ready != nil {
		m.ready()
	}
	done := func() {
		c.send.free <- buffer
		m.done()
	}
	_, err := c.post(done, append(m.before, wr)...)
	if err != nil {
		c.fail(err)
		done()
	}
	return err
}

var errSilent = errors.New("the peer takes no more messages")

// keepAlive probes the peer while nothing completes, and ends the connection if what was posted
// does not complete either: the QP alone would wait for ever for a peer that posts no receive
// requests.
func (c *conn) keepAlive() {
	if c.cfg.KeepAlive < 0 {
		return
	}
	tick, t := c.clock.NewTicker(c.cfg.KeepAlive)
	defer t.Stop()
	for waited := false; ; {
		if _, ok := wakeup.Take(c.clock, tick, c.ended); !ok {
			return
		}
		switch {
		case c.active.Swap(false):
			waited = false
		case waited:
			c.fail(errSilent)
		default:
			waited = true
			c.probe()
		}
	}
}

// probe posts a zero-length RDMA WRITE, which only the peer's QP sees, unless something is posted.
func (c *conn) probe() {
	c.mu.Lock()
	posted := len(c.ops) > 0
	c.mu.Unlock()
	if posted {
		return
	}
	if _, err := c.post(func() {}, &verbs.SendWR{Opcode: verbs.RDMAWrite}); err != nil {
		c.fail(err)
	}
}

// close frees the connection, whose operations have ended.
func (c *conn) close() error {
	c.fail(errEnded)
	return errors.Join(c.cm.Close(), c.release())
}

// reason returns the reason for the end of the connection, or nil.
func (c *conn) reason() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}
