package iwarp

// On the path: the QP's state, shared by sender and receiver, and how verbs' transitions and the stream's end change it.

import (
	"math/bits"
	"time"

	"github.com/softrnic/softrnic/rdmatransport/iwarp/ddp"
	"github.com/softrnic/softrnic/rdmatransport/iwarp/rdmap"
	"github.com/softrnic/softrnic/verbs"
)

// qp is the provider's half of a reliable connection over iWARP. All of it is guarded by the QP's lock.
type qp struct {
	e     *Engine
	h     verbs.QPHandle
	num   uint32
	depth int  // of the send queue
	srq   bool // receive requests come from an SRQ

	posting  bool // the goroutine that holds the lock has posted what there is to send, and may take its time
	carrying bool // sendDirect is under way, if the QP is not locked for it just now: nobody else carries anything over

	conn *conn // the stream; nil before RTS and after its end

	tx sender
	rx receiver

	direct uint64 // messages sent without the stream
}

// slots is the power of two that holds n.
func slots(n int) int { return 1 << bits.Len(uint(max(n, 1)-1)) }

// Modify implements verbs.ProviderQP.
func (q *qp) Modify(from, to verbs.QPState, attr *verbs.QPAttr, mask verbs.QPAttrMask) error {
	switch {
	case to == verbs.StateReset:
		q.drop()
		q.tx.reset()
		q.rx = receiver{}
	case to == verbs.StateErr:
		q.closeStream()
	case from == verbs.StateInit && to == verbs.StateRTS:
		c, ok := attr.LLPStream.(*conn)
		if !ok || c.e != q.e {
			return verbs.Errorf(verbs.ErrInvalid, "modify QP", "LLPStream %T is not a stream of this device", attr.LLPStream)
		}
		return q.attach(c, attr, mask)
	}
	return nil
}

// attach starts the QP on a stream that MPA has started.
func (q *qp) attach(c *conn, attr *verbs.QPAttr, mask verbs.QPAttrMask) error {
	if err := c.bind(q, attr, mask); err != nil {
		return err
	}
	q.conn = c
	q.e.countStream(q.h.PD(), 1)
	q.tx.begin(c)
	q.rx = receiver{}
	c.meet()
	c.stream.SetReadBuffer(0)
	c.stream.OnRoom(q.roomAgain)
	if c.initiator { // the accepting side's reader has attended the stream since the request
		q.e.work.Go(func() { q.read(c) })
	}
	q.transmit()
	if c.initiator {
		q.nudge(c)
	}
	return nil
}

// detach parts the QP from its stream, and returns that; nil if it has none any more.
func (q *qp) detach() *conn {
	c := q.conn
	if c != nil {
		q.conn = nil
		q.tx.output.clear()
		q.tx.lifecycle.on(onDetach)
		c.part()
		q.e.countStream(q.h.PD(), -1)
	}
	return c
}

// Query implements verbs.ProviderQP: the depths are those of the stream.
func (q *qp) Query(attr *verbs.QPAttr) {
	if c := q.conn; c != nil {
		attr.MaxDestRDAtomic, attr.MaxRDAtomic = uint8(c.ird), uint8(c.ord)
	}
}

// PostSend implements verbs.ProviderQP.
func (q *qp) PostSend() { q.transmitPosted() }

// transmitPosted is transmit on a goroutine that serves only this QP.
func (q *qp) transmitPosted() {
	q.posting = true
	q.transmit()
	q.posting = false
}

// PostRecv implements verbs.ProviderQP.
func (q *qp) PostRecv() {}

// Destroy implements verbs.ProviderQP. What has completed still goes out.
func (q *qp) Destroy() {
	q.e.qps.Delete(q.num)
	q.closeStream()
	q.e.Counters.direct.Add(q.direct)
	q.direct = 0
}

// drop breaks the stream off.
func (q *qp) drop() {
	if c := q.detach(); c != nil {
		c.stream.Abort()
	}
}

// closeStream ends the stream in order: what is in its send buffer, or was to go there next, still goes out. The reader
// stays until the peer has closed too, or the linger time is over.
func (q *qp) closeStream() {
	c := q.conn
	if c == nil {
		return
	}
	c.linger()
	if ok, err := q.sendGathered(); !ok && err == nil {
		rest := q.tx.output.takeGathered()
		q.e.work.Go(func() {
			_ = c.stream.SetWriteDeadline(time.Now().Add(lingerTimeout))
			_, _ = c.stream.Write(rest)
			_ = c.stream.CloseWrite()
		})
	} else {
		_ = c.stream.CloseWrite()
	}
	q.detach()
}

// leave closes c in order if the QP still has it; the QP is not locked.
func (q *qp) leave(c *conn) {
	q.h.Lock()
	defer q.h.Unlock()
	if q.conn == c {
		c.part() // what is posted waits for nothing any more
		q.transmitNow()
		q.closeStream()
	}
}

// roomAgain is called when the stream's send buffer takes more.
func (q *qp) roomAgain() {
	q.h.Lock()
	defer q.h.Unlock()
	if q.conn == nil {
		return
	}
	q.tx.output.hasRoom()
	q.transmit()
}

// fail ends the connection after an error that was found on this side: the peer is told why, everything posted is
// flushed. bad is the segment at fault, if a segment was.
func (q *qp) fail(err error, bad []byte) {
	if q.tx.lifecycle.ended() {
		return
	}
	q.conn.linger()
	q.terminate(err, bad)
	q.h.Fail()
}

// linger gives the peer a while to read what was sent and to close. The QP is locked: its reader sets the deadline too.
func (c *conn) linger() {
	_ = c.stream.SetReadDeadline(time.Now().Add(lingerTimeout))
}

// receiver is the state of a QP's incoming half.
type receiver struct {
	queues  [rdmap.Queues]ddp.Queue
	allowed bool   // the peer may send
	heard   bool   // and has
	writing uint64 // bytes of the RDMA Write message under way, for the immediate data that may follow it
	written uint64 // bytes of the last one
	ulpdu   []byte // being handled
	told    bool   // a completion says what was wrong with it
}
