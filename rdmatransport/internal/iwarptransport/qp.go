package iwarptransport

// Control path: the QP's state transitions, and the end of its stream.

import (
	"math/bits"
	"time"

	"github.com/softrnic/softrnic/internal/rdmatransport/ddp"
	"github.com/softrnic/softrnic/internal/rdmatransport/rdmap"
	"github.com/softrnic/softrnic/rdmatransport/internal/direct"
	"github.com/softrnic/softrnic/verbs"
)

// qp is the provider's part of a reliable connection over iWARP. The QP's lock protects it.
type qp struct {
	e     *Engine
	h     verbs.QPHandle
	num   uint32
	depth uint32 // of the send queue
	srq   bool   // receive requests come from an SRQ

	mover direct.Mover

	conn *conn // nil before RTS and after the end of the stream

	tx sender
	rx receiver

	direct uint64 // messages moved directly
}

// slots returns the smallest power of two that is at least n.
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

// attach gives the QP a stream after the exchange of request and reply frames.
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
	if c.initiator { // the responder has been reading the stream since the request
		c.waitReadable()
	}
	q.transmit()
	if c.initiator && (c.peerConn.Load() == nil || c.rtr == noRTR) { // a peer in this process is not siw
		q.wakePeer(c)
	}
	return nil
}

// detach takes the stream from the QP, and returns its connection, or nil if there is none.
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
	q.mover.SetPosting(true)
	q.transmit()
	q.mover.SetPosting(false)
}

// PostRecv implements verbs.ProviderQP.
func (q *qp) PostRecv() {}

// Destroy implements verbs.ProviderQP. Completed messages are still sent.
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

// closeStream closes the stream in an orderly way: its send buffer and the coalesced FPDUs are
// still sent. The reader stays until the peer has closed too, or the linger time is over.
func (q *qp) closeStream() {
	c := q.conn
	if c == nil {
		return
	}
	c.linger()
	if ok, err := q.sendCoalesced(); !ok && err == nil {
		rest := q.tx.output.takeCoalesced()
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

// disconnect sends posted requests, as far as the stream takes them, and closes c in an orderly way
// if the QP still has it. The QP is not locked.
func (q *qp) disconnect(c *conn) {
	q.h.Lock()
	defer q.h.Unlock()
	if q.conn == c {
		c.unpair() // nothing waits for the peer any more
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
	q.tx.output.onRoom()
	q.transmit()
}

// fail ends the connection after an error on this side: a Terminate message reports it to the peer,
// and all posted requests are flushed. bad is the segment with the error, or nil.
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

// linger sets the peer's time to read everything and to close. The QP is locked, because its reader
// sets the deadline too.
func (c *conn) linger() {
	_ = c.stream.SetReadDeadline(time.Now().Add(lingerTimeout))
}

// receiver is the receive state of a QP.
type receiver struct {
	queues     [rdmap.Queues]ddp.Queue
	allowed    bool   // the peer may send FPDUs
	gotFPDU    bool   // the peer has sent an FPDU
	reported   bool   // a completion reports the error in ulpdu
	writeBytes uint64 // placed bytes of the current RDMA Write message
	lastWrite  uint64 // length of the last RDMA Write message, reported with immediate data that follows it
	ulpdu      []byte // the current ULPDU
}
