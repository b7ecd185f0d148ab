package iwarptransport

// Control path: creation of QPs, their state transitions, and queries.

import (
	"net/netip"

	"github.com/softrnic/softrnic/verbs"
)

// CreateQP creates a QP in state RESET with a random number.
func (e *Engine) CreateQP(h verbs.QPHandle, attr *verbs.QPInitAttr) (verbs.ProviderQP, uint32, error) {
	if attr.Type != verbs.RC {
		return nil, 0, verbs.Errorf(verbs.ErrNotSupported, "create QP", "QP type %v over iWARP", attr.Type)
	}
	q := &qp{e: e, h: h, depth: uint32(attr.Cap.MaxSendWR), srq: attr.SRQ != nil}
	q.sending.init(attr.Cap.MaxSendWR)
	num, err := e.qps.Insert(q)
	if err != nil {
		return nil, 0, verbs.Errorf(verbs.ErrNoMemory, "create QP", "%v", err)
	}
	q.num = num
	if e.trace != nil {
		q.sending.lifecycle.setTracer(q.tracePhase)
	}
	return q, num, nil
}

// Modify implements verbs.ProviderQP.
func (q *qp) Modify(from, to verbs.QPState, attr *verbs.QPAttr, mask verbs.QPAttrMask) error {
	switch {
	case to == verbs.StateReset:
		q.abortStream()
		q.sending.reset()
		q.receiving = receiveState{}
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

// attach gives the QP a stream whose MPA request and reply are exchanged.
func (q *qp) attach(c *conn, attr *verbs.QPAttr, mask verbs.QPAttrMask) error {
	if err := c.bind(q, attr, mask); err != nil {
		return err
	}
	q.conn = c
	q.e.countStream(q.h.PD(), 1)
	q.traceNegotiated(c)
	q.sending.begin(c)
	q.receiving = receiveState{rtrDue: !c.initiator}
	c.pair()
	c.stream.SetReadBuffer(0)
	c.stream.OnRoom(q.resumeSending)
	if c.initiator { // the responder has been reading the stream since the request
		c.waitReadable()
	}
	q.transmit()
	// A peer in this process is not siw, and need not be woken.
	if c.initiator && (c.peerConn.Load() == nil || c.rtr == noRTR) {
		q.wakePeer(c)
	}
	return nil
}

// Query implements verbs.ProviderQP: IRD and ORD are those of the stream.
func (q *qp) Query(attr *verbs.QPAttr) {
	if c := q.conn; c != nil {
		attr.MaxDestRDAtomic, attr.MaxRDAtomic = c.ird, c.ord
	}
}

// Peer implements verbs.ProviderQP.
func (q *qp) Peer() netip.Addr {
	if q.conn == nil {
		return netip.Addr{}
	}
	return q.conn.peer
}

// PostRecv implements verbs.ProviderQP.
func (q *qp) PostRecv() {}

// Destroy implements verbs.ProviderQP. Messages whose requests are complete are still sent.
func (q *qp) Destroy() {
	q.e.qps.Delete(q.num)
	q.closeStream()
	q.e.Counters.direct.Add(q.direct)
	q.direct = 0
}

// disconnect sends as many posted requests as the stream has room for. Then it closes c in an
// orderly way, if the QP still has it. The QP is not locked.
func (q *qp) disconnect(c *conn) {
	q.h.Lock()
	defer q.h.Unlock()
	if q.conn == c {
		c.unpair() // no request waits for the peer any more
		q.transmitNow()
		q.closeStream()
	}
}
