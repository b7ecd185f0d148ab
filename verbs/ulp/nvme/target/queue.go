package target

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/admission"
	"github.com/softrnic/softrnic/verbs/internal/wakeup"
	"github.com/softrnic/softrnic/verbs/rdmacm"
	"github.com/softrnic/softrnic/verbs/ulp/nvme"
)

const (
	inCapsule   = 8 << 10 // bytes of data in a command capsule at most
	capsuleSize = nvme.CommandLen + inCapsule
	adminDepth  = 32 // of an Admin queue that each target allows (NVMe-oF 1.1 §5.4, ASQSZ)
)

// queue is a connection of a host: a submission queue and its completion queue.
//
// Its goroutine (run) takes completions of the CQ, and so receives commands. A command is executed
// there, or continued by goroutines that spawn or block has started.
type queue struct {
	t     *Target
	id    uint16 // as the connection request says
	depth int    // commands that the host may have outstanding
	conn  *rdmacm.Conn
	host  *hostWork
	place *admission.Place[netip.Addr]
	qp    *verbs.QP
	cq    *verbs.CQ
	mr    *verbs.MR // the capsules
	log   *slog.Logger
	ctx   context.Context
	end   context.CancelCauseFunc

	commands  []command  // one for each receive request
	transfers []transfer // all
	counters  counters

	connecting atomic.Pointer[command]    // the Connect that is executed, or that has succeeded
	ctrl       atomic.Pointer[controller] // set by Connect
	locked     atomic.Bool                // only authentication commands are executed
	auth       *authentication            // set by Connect; nil: the host needs none

	mu          sync.Mutex // taken before those of the pool and the QP, after a controller's
	outstanding int        // commands without a response
	sqSize      uint16     // entries of the host's queue; 0 before Connect
	sqHead      uint16
	noSQFlow    bool
	free        []*transfer // without memory
	stalled     []*command  // whose data waits for a transfer or memory
	sends       int         // responses that may be posted
	unsent      []*command  // completed commands that wait for this
	closing     bool        // nothing is posted any more
	response    [nvme.CompletionLen]byte
	send        verbs.SendWR // of respond
	workers     wakeup.Group // functions of spawn and block, and others that hold the queue
}

// A work request's ID has the kind of the work request and an index.
const (
	kindShift = 32
	kindRecv  = 0 // index of the command
	kindSend  = 1 // index of the transfer whose data the response follows, plus 1, or 0
	kindWrite = 2 // index of the transfer
	kindRead  = 3 // index of the transfer
	kindLast  = 4 // a response after which the queue ends
)

// Ends of a queue that are no fault.
var (
	errGone    = errors.New("the host has disconnected")
	errStopped = errors.New("the target is closed")
)

var errDisplaced = errors.New("a place was needed, and this was the oldest connection of a host that has not proved who it is")

// newQueue creates the objects of a queue except the QP, its place and its context.
func (t *Target) newQueue(r *rdmacm.Request, req *nvme.ConnRequest) (q *queue, err error) {
	depth := t.cfg.QueueDepth
	if req.QID == 0 {
		depth = max(depth, adminDepth)
	}
	depth = min(int(req.HSQSize)+1, depth)
	q = &queue{t: t, id: req.QID, depth: depth, log: t.cfg.Logger.With("host", r.PeerAddr(), "qid", req.QID, "transport", r.Transport())}
	q.commands = make([]command, depth+1) // one more, to see that a host sends too many
	q.transfers = make([]transfer, max(depth, 32))
	q.sends = 2 * depth
	if q.mr, err = t.pd.RegMR(make([]byte, len(q.commands)*capsuleSize), verbs.AccessLocalWrite); err != nil {
		return nil, err
	}
	attr := &verbs.CQInitAttr{}
	if r.Transport() == verbs.IWARP { // completions come from goroutines of the connections
		attr.Wait = verbs.WaitEvent
	}
	if q.cq, err = t.dev.CreateCQ(len(q.commands)+len(q.transfers)+q.sends, attr); err != nil {
		return nil, errors.Join(err, q.mr.Close())
	}
	for i := range q.commands {
		c := &q.commands[i]
		c.q = q
		c.capsule = q.mr.Buf()[i*capsuleSize : (i+1)*capsuleSize]
		c.recv = verbs.RecvWR{WRID: kindRecv<<kindShift | uint64(i), SGList: []verbs.SGE{q.mr.SGE(i*capsuleSize, capsuleSize)}}
	}
	for i := range q.transfers {
		tr := &q.transfers[i]
		tr.index = i
		tr.wr.SGList = tr.sge[:]
		q.free = append(q.free, tr)
	}
	q.host = t.join(r.PeerAddr().Addr())
	return q, nil
}

// cmConfig returns the rdma_cm options of the connection.
func (q *queue) cmConfig() *rdmacm.Config {
	accept := nvme.ConnAccept{CRQSize: uint16(q.depth)}
	return &rdmacm.Config{
		PD: q.t.pd, SendCQ: q.cq, RecvCQ: q.cq,
		Cap: verbs.QPCap{
			MaxSendWR: len(q.transfers) + q.sends, MaxRecvWR: len(q.commands), MaxSendSGE: 1, MaxRecvSGE: 1, MaxInlineData: nvme.CompletionLen,
		},
		PrivateData: accept.Append(nil),
		Prepare: func(conn *rdmacm.Conn) error {
			for i := range q.commands {
				if err := conn.QP().PostRecv(&q.commands[i].recv); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

// run serves the connection until it ends. It then frees the queue.
func (q *queue) run(conn *rdmacm.Conn) {
	q.conn, q.qp = conn, conn.QP()
	clock, gone := q.t.clock, conn.Done()
	clock.Go(func() {
		if wakeup.Either(clock, gone, q.ctx.Done()) {
			q.end(errGone)
		}
	})
	connect := clock.AfterFunc(q.t.cfg.ConnectTimeout, func() {
		if q.ctrl.Load() == nil {
			q.end(fmt.Errorf("no Connect command within %v", q.t.cfg.ConnectTimeout))
		}
	})
	defer connect.Stop()
	err := q.serve()
	if q.ctx.Err() != nil {
		err = context.Cause(q.ctx)
	}
	level := slog.LevelWarn
	if errors.Is(err, errGone) || errors.Is(err, errStopped) {
		level = slog.LevelDebug
	}
	q.log.Log(context.Background(), level, "queue ended", "reason", err)
	q.end(err)
	q.close()
}

// serve takes completions until one is an error.
func (q *queue) serve() error {
	var wcs [16]verbs.WC
	for {
		n, err := q.cq.Wait(q.ctx, wcs[:])
		if err != nil {
			return err
		}
		for i := range wcs[:n] {
			if err := q.handle(&wcs[i]); err != nil {
				return err
			}
		}
		q.sendUnsent()
		q.resume()
	}
}

// handle handles a completion.
func (q *queue) handle(wc *verbs.WC) error {
	if wc.Status != verbs.WCSuccess {
		if wc.Status == verbs.WCWRFlushErr {
			return errGone
		}
		return wc.Err()
	}
	index := int(uint32(wc.WRID))
	switch wc.WRID >> kindShift {
	case kindRecv:
		return q.receive(&q.commands[index], int(wc.ByteLen))
	case kindSend:
		q.mu.Lock()
		q.sends++
		q.mu.Unlock()
		if index > 0 {
			q.release(&q.transfers[index-1])
		}
	case kindWrite:
		q.release(&q.transfers[index])
	case kindRead:
		q.received(&q.transfers[index])
	case kindLast:
		return errGone
	}
	return nil
}

// receive starts a received command.
func (q *queue) receive(c *command, n int) error {
	sqe, err := nvme.ParseCommand(c.capsule[:n])
	if err != nil {
		return err
	}
	q.mu.Lock()
	q.outstanding++
	over := q.outstanding > q.depth
	q.mu.Unlock()
	if over {
		return fmt.Errorf("more than %d commands are outstanding", q.depth)
	}
	c.start(&sqe, n)
	ctrl := q.ctrl.Load()
	if ctrl != nil && !ctrl.active.Load() {
		ctrl.active.Store(true)
	}
	q.dispatch(ctrl, c)
	return nil
}

// dispatch executes a command, or begins to.
func (q *queue) dispatch(ctrl *controller, c *command) {
	switch {
	case c.sqe.Flags&nvme.FlagFused != 0:
		c.fail(nvme.InvalidField)
	case q.locked.Load() && !c.authenticates():
		c.fail(nvme.AuthRequired)
	case c.sqe.Opcode == nvme.Fabrics:
		q.fabrics(ctrl, c)
	case ctrl == nil || !ctrl.ready():
		c.fail(nvme.CommandSequenceError)
	case q.id == 0:
		ctrl.admin(c)
	default:
		ctrl.io(c)
	}
}

// respond posts the response of a command. The command's memory may be reused afterwards.
func (q *queue) respond(c *command) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closing {
		return
	}
	if q.sends == 0 || len(q.unsent) > 0 {
		q.unsent = append(q.unsent, c)
		return
	}
	q.postResponse(c)
}

// sendUnsent posts responses that have waited.
func (q *queue) sendUnsent() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.unsent) > 0 && q.sends > 0 && !q.closing {
		c := q.unsent[0]
		q.unsent = q.unsent[1:]
		q.postResponse(c)
	}
}

// postResponse posts a response, after the receive request for the next command in this memory.
// q.mu is held: receive takes it before it uses the memory for that.
func (q *queue) postResponse(c *command) {
	q.sends--
	q.outstanding--
	head := uint16(0xffff)
	if q.sqSize > 0 && !q.noSQFlow {
		if q.sqHead++; q.sqHead >= q.sqSize {
			q.sqHead = 0
		}
		head = q.sqHead
	}
	done := nvme.Completion{Result: c.result, SQHead: head, CID: c.sqe.CID, Status: c.status()}
	q.send = verbs.SendWR{
		WRID: kindSend << kindShift, Opcode: verbs.Send, Flags: verbs.SendSignaled | verbs.SendInline, InlineData: done.Append(q.response[:0]),
	}
	if s := &c.sqe.SGL; s.Type == nvme.SGLKeyedData && s.Subtype == nvme.SGLInvalidate && s.Length > 0 {
		q.send.Opcode, q.send.InvalidateRKey = verbs.SendWithInv, s.Key
	}
	if c.last {
		q.send.WRID = kindLast << kindShift
	}
	tr := c.tail
	if tr != nil {
		q.send.WRID |= uint64(tr.index + 1)
	}
	err := q.qp.PostRecv(&c.recv)
	switch {
	case err != nil:
	case tr != nil:
		err = q.qp.PostSend(tr.request(verbs.RDMAWrite, kindWrite, 0), &q.send)
	default:
		err = q.qp.PostSend(&q.send)
	}
	if err != nil {
		q.end(err)
	}
}

// hold keeps the queue from being freed until workers.Done is called. It returns false if the queue
// ends.
func (q *queue) hold() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closing {
		return false
	}
	q.workers.Add()
	return true
}

// block runs a function that may block in the kernel on another goroutine, unless the queue ends.
func (q *queue) block(f func()) {
	if q.hold() {
		q.t.work.add(operation{q, f})
	}
}

// spawn runs a function on another goroutine, unless the queue ends.
func (q *queue) spawn(f func()) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.closing {
		q.workers.Go(q.t.clock, f)
	}
}

// close ends the connection, waits until nothing uses the queue's memory, and frees it.
func (q *queue) close() {
	q.mu.Lock()
	q.closing = true
	q.mu.Unlock()
	_ = q.conn.ID().Disconnect() // it fails if the connection has ended
	q.workers.Wait(q.t.clock)
	q.auth.stop()
	if ctrl := q.ctrl.Load(); ctrl != nil {
		ctrl.ended(q)
	}
	err := q.conn.Close() // the QP is destroyed
	q.t.pool.forget(q)
	for i := range q.transfers {
		if tr := &q.transfers[i]; tr.c != nil {
			q.t.pool.end(q.host, tr.lease)
			tr.lease = lease{}
		}
	}
	err = errors.Join(err, q.destroy())
	if err != nil {
		q.log.Warn("close queue", "error", err)
	}
	q.t.removed(q)
}

// destroy undoes newQueue.
func (q *queue) destroy() error {
	q.t.leave(q.host)
	err := errors.Join(q.cq.Close(), q.mr.Close())
	q.place.Leave()
	return err
}
