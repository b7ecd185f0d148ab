package iwarp

// On the path: the QP's state, and how verbs' transitions and the end of the stream change it.

import (
	"math/bits"
	"time"

	"github.com/softrnic/softrnic/rdmatransport/iwarp/ddp"
	"github.com/softrnic/softrnic/rdmatransport/iwarp/rdmap"
	"github.com/softrnic/softrnic/verbs"
)

// qp is the provider's half of a reliable connection over iWARP. All of it is guarded by the QP's
// lock.
type qp struct {
	e     *Engine
	h     verbs.QPHandle
	num   uint32
	depth uint32 // of the send queue
	srq   bool   // receive requests come from an SRQ

	posting bool // the goroutine that holds the lock is the one that posts: it may spend time on moving messages directly
	moving  bool // sendDirect is under way, and may have left the lock meanwhile: no other goroutine moves anything

	conn *conn // nil before RTS and after the end of the stream

	tx sender
	rx receiver

	direct uint64 // messages that were moved directly
}

// slots is the power of two that holds n.
func slots(n int) int { return 1 << bits.Len(uint(max(n, 1)-1)) }

// Modify implements verbs.ProviderQP.
func (q *qp) Modify(from, to verbs.QPState, attr *verbs.QPAttr, mask verbs.QPAttrMask) error {
	switch {
	case to == verbs.StateReset:
		q.abortStream()
		q.tx.reset()
		q.rx = receiver{}
	case to == verbs.StateErr:
		q.closeStream()
	case from == verbs.StateInit && to == verbs.StateRTS:
		c, ok := attr.LLPStream.(*conn)
		if !ok || c.e != q.e {
			return verbs.Errorf(verbs.ErrInvalid, "modify QP", "LLPStream %T is not a stream of this device", attr.LLPStream)
		}
		if err := q.attach(c, attr, mask); err != nil {
			return err
		}
	}
	q.traceState(from, to)
	return nil
}

// attach gives the QP a stream whose request and reply frames are exchanged.
func (q *qp) attach(c *conn, attr *verbs.QPAttr, mask verbs.QPAttrMask) error {
	if err := c.bind(q, attr, mask); err != nil {
		return err
	}
	q.conn = c
	q.e.countStream(q.h.PD(), 1)
	q.traceNegotiated(c)
	q.tx.begin(c)
	q.rx = receiver{}
	c.pair()
	c.stream.SetReadBuffer(0)
	c.stream.OnRoom(q.resumeSending)
	if c.initiator { // on the accepting side the stream is waited for since the request
		c.park()
	}
	q.transmit()
	if c.initiator && (c.other.Load() == nil || c.rtr == noRTR) { // an end in this process is none of siw's
		q.nudge(c)
	}
	return nil
}

// detach takes the stream from the QP, and returns its connection; nil if the QP has none any more.
func (q *qp) detach() *conn {
	c := q.conn
	if c != nil {
		q.conn = nil
		q.tx.output.clear()
		q.tx.lifecycle.on(onDetach)
		c.unpair()
		q.e.countStream(q.h.PD(), -1)
		q.e.Counters.sent.Add(c.sent)
		q.e.Counters.received.Add(c.received)
	}
	return c
}

// Query implements verbs.ProviderQP: IRD and ORD are those of the stream.
func (q *qp) Query(attr *verbs.QPAttr) {
	if c := q.conn; c != nil {
		attr.MaxDestRDAtomic, attr.MaxRDAtomic = c.ird, c.ord
	}
}

// PostSend implements verbs.ProviderQP.
func (q *qp) PostSend() { q.transmitPosted() }

// transmitPosted is transmit on a goroutine that has nothing else to do.
func (q *qp) transmitPosted() {
	q.posting = true
	q.transmit()
	q.posting = false
}

// PostRecv implements verbs.ProviderQP.
func (q *qp) PostRecv() {}

// Destroy implements verbs.ProviderQP. Messages that have completed are still sent.
func (q *qp) Destroy() {
	q.e.qps.Delete(q.num)
	q.closeStream()
	q.e.Counters.direct.Add(q.direct)
	q.direct = 0
}

// abortStream resets the stream.
func (q *qp) abortStream() {
	if c := q.detach(); c != nil {
		c.stream.Abort()
	}
}

// closeStream closes the stream in order: what is in its send buffer, and what was gathered to go
// there, is still sent. The reader stays until the peer has closed too, or the linger time is over.
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

// disconnect sends what is posted, as far as the stream takes it, and closes c in order, if the QP
// still has it. The QP is not locked.
func (q *qp) disconnect(c *conn) {
	q.h.Lock()
	defer q.h.Unlock()
	if q.conn == c {
		c.unpair() // nothing waits for the other end any more
		q.transmitNow()
		q.closeStream()
	}
}

// resumeSending is called when the stream's send buffer has room again.
func (q *qp) resumeSending() {
	q.h.Lock()
	defer q.h.Unlock()
	if q.conn == nil {
		return
	}
	q.tx.output.hasRoom()
	q.transmit()
}

// fail ends the connection after an error that was found on this side: a Terminate message tells
// the peer why, and everything posted is flushed. bad is the segment at fault, nil if none is.
func (q *qp) fail(err error, bad []byte) {
	if q.tx.lifecycle.ended() {
		return
	}
	q.conn.linger()
	q.terminate(err, bad)
	q.failQP()
}

// failQP moves the QP to ERR.
func (q *qp) failQP() {
	q.traceState(q.h.State(), verbs.StateErr)
	q.h.Fail()
}

// linger gives the peer a while to read what was sent and to close. The QP is locked, as its reader
// sets the deadline too.
func (c *conn) linger() {
	_ = c.stream.SetReadDeadline(time.Now().Add(lingerTimeout))
}

// receiver is the state of a QP's incoming half.
type receiver struct {
	queues     [rdmap.Queues]ddp.Queue
	allowed    bool   // the peer may send FPDUs
	heard      bool   // the peer has sent one
	reported   bool   // a completion reports what was wrong with ulpdu
	writeBytes uint64 // placed of the RDMA Write message under way
	lastWrite  uint64 // bytes of the last RDMA Write message, which the immediate data that may follow reports
	ulpdu      []byte // that is being handled
}
