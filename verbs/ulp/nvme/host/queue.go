package host

import (
	"context"
	"errors"
	"sync"

	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/internal/wakeup"
	"github.com/softrnic/softrnic/verbs/rdmacm"
	"github.com/softrnic/softrnic/verbs/ulp/nvme"
)

const (
	slotData   = 8 << 10 // bytes of data in a slot
	adminDepth = 31      // commands on the Admin queue, which each target allows (NVMe-oF 1.1 §5.4, ASQSZ)
)

// queue is a submission queue and its completion queue: a connection with a QP and a CQ.
//
// Goroutines that wait for a response take completions from the CQ, one of them at a time: the one
// that holds poll. It also completes the commands of the others (wait.go).
type queue struct {
	s    *session
	id   uint16
	conn *rdmacm.Conn
	qp   *verbs.QP
	cq   *verbs.CQ

	capsules  *verbs.MR // of commands, without remote access
	responses *verbs.MR // without remote access
	data      *verbs.MR // of slots
	recvs     []verbs.RecvWR
	slots     []slot
	depth     int // slots that are used
	inCapsule int // bytes of data that a command capsule may have

	poll sync.Mutex // protects wcs; held while completions are taken; taken before mu
	wcs  [16]verbs.WC

	mu        sync.Mutex
	free      []*slot
	posted    uint32    // send work requests, from 0 on
	retired   uint32    // of these, those before the last signaled one that has completed
	signaled  uint32    // the last signaled one
	room      uint32    // posted − retired at most
	waiting   []*waiter // that wait for a response
	wanting   []*waiter // that wait for a slot
	spare     []*waiter // that no goroutine uses
	abandoned int       // commands that nobody waits for
	finished  []*Op     // of a Queue
	tick      uint32    // of the session's clock
	err       error     // the queue has ended
}

// A work request's ID has a kind in its upper 16 bits.
const (
	kindShift  = 48
	indexShift = 32
)

const (
	kindRecv       = iota // index of the receive request in bits 31:0
	kindSend              // index of a slot in bits 47:32, and the number of posted requests up to this one
	kindSignal            // the number of posted requests
	kindInvalidate        // as kindSend
)

const (
	sendsPerCommand = 3 // BindMW, SEND and LocalInv
	indexBits       = 10
	maxSlots        = 1 << indexBits
)

// newQueue creates a queue and connects it.
func (s *session) newQueue(ctx context.Context, id uint16, depth int) (q *queue, err error) {
	q = &queue{s: s, id: id, slots: make([]slot, depth), room: uint32(2 * sendsPerCommand * (depth + 4))}
	q.room = min(q.room, uint32(s.c.dev.QueryDevice().MaxQPWR))
	defer func() {
		if err != nil {
			err = errors.Join(err, q.close())
			q = nil
		}
	}()
	if err := q.allocate(); err != nil {
		return nil, err
	}
	request := nvme.ConnRequest{QID: id, HRQSize: uint16(depth + 1), HSQSize: uint16(depth)}
	if id > 0 {
		request.CNTLID = s.id
	}
	q.conn, err = rdmacm.Dial(ctx, s.c.dev, s.c.addr, &rdmacm.Config{
		Transport: s.c.cfg.Transport, LocalAddr: s.c.cfg.LocalAddr, PD: s.c.pd, SendCQ: q.cq, RecvCQ: q.cq,
		Cap:         verbs.QPCap{MaxSendWR: int(q.room), MaxRecvWR: len(q.recvs), MaxSendSGE: 2, MaxRecvSGE: 1, MaxInlineData: nvme.CommandLen},
		PrivateData: request.Append(nil),
		Prepare: func(conn *rdmacm.Conn) error {
			for i := range q.recvs {
				if err := conn.QP().PostRecv(&q.recvs[i]); err != nil {
					return err
				}
			}
			return nil
		},
	})
	if err != nil {
		return q, rejection(err)
	}
	q.qp = q.conn.QP()
	accept, err := nvme.ParseConnAccept(q.conn.Peer().PrivateData)
	if err != nil {
		return q, err
	}
	if n := int(accept.CRQSize); n > 0 && n < len(q.slots) {
		q.free = q.free[:n]
	}
	q.depth = len(q.free)
	clock, gone := s.c.clock, q.conn.Done()
	s.goroutines.Go(clock, func() {
		if wakeup.Either(clock, gone, s.done) {
			q.fail(errGone)
		}
	})
	return q, nil
}

// allocate creates the objects of the queue except the QP.
func (q *queue) allocate() (err error) {
	c, depth := q.s.c, len(q.slots)
	q.recvs = make([]verbs.RecvWR, depth+1)
	if q.capsules, err = c.pd.RegMR(make([]byte, depth*nvme.CommandLen), 0); err != nil {
		return err
	}
	if q.responses, err = c.pd.RegMR(make([]byte, len(q.recvs)*nvme.CompletionLen), verbs.AccessLocalWrite); err != nil {
		return err
	}
	if q.data, err = c.pd.RegMR(make([]byte, depth*slotData), remoteAccess); err != nil {
		return err
	}
	attr := &verbs.CQInitAttr{}
	if c.cfg.Transport == verbs.IWARP { // completions come from goroutines of the connections
		attr.Wait = verbs.WaitEvent
	}
	if q.cq, err = c.dev.CreateCQ(len(q.recvs)+int(q.room), attr); err != nil {
		return err
	}
	for i := range q.recvs {
		q.recvs[i] = verbs.RecvWR{WRID: kindRecv<<kindShift | uint64(i), SGList: []verbs.SGE{q.responses.SGE(i*nvme.CompletionLen,
			nvme.CompletionLen)}}
	}
	for i := range q.slots {
		s := &q.slots[depth-1-i] // the first slots are used first
		s.init(q, depth-1-i)
		q.free = append(q.free, s)
	}
	return nil
}

// close frees what the queue has. It has ended.
func (q *queue) close() (err error) {
	if q.conn != nil {
		err = q.conn.Close() // the QP is destroyed
	}
	for i := range q.slots {
		if w := q.slots[i].window; w != nil {
			err = errors.Join(err, w.Close())
		}
	}
	if q.cq != nil {
		err = errors.Join(err, q.cq.Close())
	}
	for _, mr := range []*verbs.MR{q.capsules, q.responses, q.data} {
		if mr != nil {
			err = errors.Join(err, mr.Close())
		}
	}
	return err
}

// submit sends a command in a slot, which the caller has. If it returns an error, the slot is free.
func (q *queue) submit(s *slot, cmd *nvme.Command, d *transfer) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.err != nil {
		q.release(s)
		return q.err
	}
	s.generation++
	s.cid = uint16(s.index) | s.generation<<indexBits
	cmd.CID, cmd.Flags = s.cid, cmd.Flags|nvme.FlagSGL
	s.responseDue, s.sendDue, s.invalidateDue, s.abandoned = true, false, false, false
	s.status, s.result, s.err, s.tick, s.keyed = 0, 0, nil, q.tick, false
	s.ready.Store(false)
	wrs := [2]*verbs.SendWR{1: &s.send}
	first := 1
	cmd.SGL = nvme.SGL{Type: nvme.SGLKeyedData}
	inline := 0
	switch {
	case d.mr != nil && q.s.c.cfg.Windows && d.application:
		if err := s.prepareBind(d); err != nil {
			q.release(s)
			return err
		}
		wrs[0], first = &s.bind, 0
		cmd.SGL = nvme.Keyed(d.mr.Addr()+uint64(d.off), uint32(d.n), verbs.IncRKey(s.window.RKey()), true)
	case d.mr != nil:
		cmd.SGL = nvme.Keyed(d.mr.Addr()+uint64(d.off), uint32(d.n), d.mr.RKey(), false)
	case d.n > 0 && d.way == fromHost && d.n <= q.inCapsule:
		inline = d.n
		cmd.SGL = nvme.InCapsule(uint32(d.n))
	case d.n > 0:
		cmd.SGL = nvme.Keyed(q.data.Addr()+uint64(s.index*slotData), uint32(d.n), q.data.RKey(), false)
	}
	cmd.Append(s.capsule[:0])
	q.posted += uint32(2 - first)
	switch {
	case inline > 0:
		s.sendDue = true
		s.sge[1] = q.data.SGE(s.index*slotData, inline)
		s.send.SGList, s.send.InlineData = s.sge[:], nil
		s.send.Flags = verbs.SendSignaled
		s.send.WRID = kindSend<<kindShift | uint64(s.index)<<indexShift | uint64(q.posted)
		q.signaled = q.posted
	default:
		s.send.SGList, s.send.InlineData = nil, s.capsule
		s.send.Flags = verbs.SendInline
		s.send.WRID = kindSignal<<kindShift | uint64(q.posted)
		if q.posted-q.signaled > q.room/4 {
			s.send.Flags |= verbs.SendSignaled
			q.signaled = q.posted
		}
	}
	if err := q.qp.PostSend(wrs[first:]...); err != nil {
		s.responseDue, s.sendDue = false, false
		q.release(s)
		q.s.c.clock.Go(func() { q.fail(err) }) // it takes mu
		return err
	}
	if first == 0 {
		s.keyed, s.rkey = true, s.window.RKey()
	}
	return nil
}

// handle handles a completion. poll is held.
func (q *queue) handle(wc *verbs.WC) error {
	if wc.Status != verbs.WCSuccess {
		if wc.Status == verbs.WCWRFlushErr {
			return errGone
		}
		return wc.Err()
	}
	if wc.WRID>>kindShift == kindRecv {
		return q.receive(int(uint32(wc.WRID)), wc)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.retired = uint32(wc.WRID)
	s := &q.slots[wc.WRID>>indexShift&(maxSlots-1)]
	switch wc.WRID >> kindShift {
	case kindSend:
		s.sendDue = false
		q.advance(s)
	case kindInvalidate:
		s.invalidateDue = false
		q.advance(s)
	}
	q.grant()
	return nil
}

// receive handles a response. poll is held.
func (q *queue) receive(i int, wc *verbs.WC) error {
	switch {
	case wc.Opcode != verbs.WCRecv: // a WRITE, and the memory has an earlier response
		return violation("a %v in place of a response", wc.Opcode)
	case wc.ByteLen != nvme.CompletionLen:
		return violation("a response of %d bytes: must be %d", wc.ByteLen, nvme.CompletionLen)
	}
	done, err := nvme.ParseCompletion(q.responses.Buf()[i*nvme.CompletionLen:])
	if err != nil {
		return err
	}
	if err := q.qp.PostRecv(&q.recvs[i]); err != nil {
		return err
	}
	index := int(done.CID & (maxSlots - 1))
	q.mu.Lock()
	defer q.mu.Unlock()
	if index >= len(q.slots) {
		return violation("CID %#x is not that of a command", done.CID)
	}
	s := &q.slots[index]
	if !s.responseDue || s.cid != done.CID {
		return violation("CID %#x is not that of an outstanding command", done.CID)
	}
	switch {
	case wc.Flags&verbs.WCWithInv != 0 && (!s.keyed || wc.InvalidatedRKey != s.rkey):
		return violation("it invalidates the key %#x, which is not that of the command", wc.InvalidatedRKey)
	case wc.Flags&verbs.WCWithInv != 0:
		s.keyed = false
	case s.keyed:
		if err := q.invalidate(s); err != nil {
			return err
		}
	}
	s.responseDue, s.status, s.result = false, done.Status, done.Result
	q.advance(s)
	return nil
}

// invalidate ends the peer's access by the window of a slot. mu is held.
func (q *queue) invalidate(s *slot) error {
	q.posted++
	q.signaled = q.posted
	s.keyed, s.invalidateDue = false, true
	s.send = verbs.SendWR{WRID: kindInvalidate<<kindShift | uint64(s.index)<<indexShift | uint64(q.posted), Opcode: verbs.LocalInv,
		Flags: verbs.SendSignaled, InvalidateRKey: s.rkey}
	err := q.qp.PostSend(&s.send)
	s.send = verbs.SendWR{Opcode: verbs.Send}
	return err
}

// advance completes the command of a slot, if nothing of it is outstanding. mu is held.
func (q *queue) advance(s *slot) {
	if s.responseDue || s.sendDue || s.invalidateDue {
		return
	}
	switch op := s.op; {
	case s.abandoned:
		q.abandoned--
		q.release(s)
	case op != nil:
		op.Err = s.outcome()
		q.finished = append(q.finished, op)
		q.release(s)
	default:
		q.wake(&s.waiter)
	}
}

// release frees a slot. mu is held.
func (q *queue) release(s *slot) {
	if s.chunk != nil {
		q.s.c.pool.put(s.chunk)
		s.chunk = nil
	}
	s.op = nil
	q.free = append(q.free, s)
	q.grant()
}

// take returns a free slot, or nil. mu is held.
func (q *queue) take() *slot {
	n := len(q.free)
	if n == 0 || q.posted-q.retired+sendsPerCommand*uint32(len(q.slots)+1) > q.room || q.err != nil {
		return nil
	}
	s := q.free[n-1]
	q.free = q.free[:n-1]
	return s
}

// grant gives free slots to those that wait. mu is held.
func (q *queue) grant() {
	for len(q.wanting) > 0 {
		s := q.take()
		if s == nil {
			q.attend()
			return
		}
		w := q.wanting[0]
		q.wanting = append(q.wanting[:0], q.wanting[1:]...)
		w.slot = s
		q.wake(w)
	}
}

// fail ends the queue. The controller's other queues end with it, except if it is an I/O queue of a
// controller that shuts down. Only the first call has an effect. mu is not held.
func (q *queue) fail(reason error) {
	q.mu.Lock()
	if q.err != nil {
		q.mu.Unlock()
		return
	}
	q.err = q.s.end(&LostError{q.id, reason})
	q.mu.Unlock()
	q.quit()
	if q.s.reason() != nil {
		q.s.endQueues()
	}
}

// quit ends the connection, and completes the commands. err is set.
func (q *queue) quit() {
	// When Modify returns, the peer has no access any more.
	_ = q.qp.Modify(&verbs.QPAttr{QPState: verbs.StateErr}, verbs.QPAttrState)
	q.mu.Lock()
	for i := range q.slots {
		if s := &q.slots[i]; s.responseDue || s.sendDue || s.invalidateDue {
			s.responseDue, s.sendDue, s.invalidateDue = false, false, false
			s.err = q.err
			q.advance(s)
		}
	}
	for _, w := range q.wanting {
		q.wake(w)
	}
	q.wanting = nil
	q.mu.Unlock()
	_ = q.conn.ID().Disconnect() // it fails if the connection has ended
}
