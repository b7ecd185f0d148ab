package rocetransport

// Control path: creation of QPs, their state transitions, and queries.

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/softrnic/softrnic/rdmatransport/internal/rocetransport/receive"
	"github.com/softrnic/softrnic/rdmatransport/internal/rocetransport/send"
	"github.com/softrnic/softrnic/rdmatransport/wire"
	"github.com/softrnic/softrnic/verbs"
)

// CreateQP creates a QP in state RESET with a random number.
func (e *Engine) CreateQP(h verbs.QPHandle, attr *verbs.QPInitAttr) (verbs.ProviderQP, uint32, error) {
	q := &qp{e: e, h: h, kind: attr.Type, blockSelf: attr.BlockSelfMcastLB, sharedReceives: attr.SRQ != nil}
	switch attr.Type {
	case verbs.RC, verbs.XRCSend, verbs.XRCRecv:
		q.service = wire.RC
		if attr.Type != verbs.RC {
			q.service = wire.XRC
		}
	case verbs.UC:
		q.service, q.unreliable = wire.UC, new(unreliable)
	case verbs.UD:
		q.service, q.unreliable = wire.UD, new(unreliable)
	default:
		return nil, 0, fmt.Errorf("QP type %v over RoCEv2: %w", attr.Type, verbs.ErrNotSupported)
	}
	env := &e.env
	if e.trace != nil {
		traced := e.env
		traced.Trace = q.emit
		env = &traced
	}
	q.sending.Init(max(int(attr.Cap.MaxSendWR), 1), env)
	q.receiving.Init(&e.shared)
	q.timer.Init(q.expired)
	num, err := e.qps.Insert(q)
	if err != nil {
		return nil, 0, fmt.Errorf("%w: %w", verbs.ErrNoMemory, err)
	}
	q.num = num
	return q, num, nil
}

// Modify implements verbs.ProviderQP.
func (q *qp) Modify(from, to verbs.QPState, attr *verbs.QPAttr, mask verbs.QPAttrMask) error {
	if mask&verbs.QPAttrPort != 0 {
		if int(attr.PortNum) > len(q.e.nics) {
			return fmt.Errorf("port %d: %w", attr.PortNum, verbs.ErrInvalid)
		}
		q.port = attr.PortNum
	}
	if mask&verbs.QPAttrAV != 0 {
		if err := q.connect(attr, mask); err != nil {
			return err
		}
		if from == verbs.StateSQD && q.reliable() {
			q.sending.SetPath(q.sendingPath())
		}
	}
	if to == verbs.StateReset || to == verbs.StateErr {
		q.sendAckBeforeEnd()
	}
	if mask&verbs.QPAttrRateLimit != 0 && to == verbs.StateRTS {
		q.limit(attr.RateLimit)
	}
	q.sending.SetLimits(q.limits(attr, mask))
	q.resumed = from == verbs.StateSQD && to == verbs.StateRTS
	switch {
	case to == verbs.StateReset:
		q.reset()
	case to == verbs.StateErr:
		q.stop()
		q.stopTimer()
	case from == verbs.StateSQD && mask&verbs.QPAttrMaxDestRDAtomic != 0:
		q.receiving.SetLimit(attr.MaxDestRDAtomic)
	case from == verbs.StateInit && to == verbs.StateRTR:
		q.dest = attr.DestQPNum
		q.resp = responder{}
		c := receive.Connection{PSN: attr.RQPSN, Limit: attr.MaxDestRDAtomic}
		if q.reliable() {
			c.MTU = q.mtu
			if q.e.selective {
				c.Mark = wire.MarkOf(q.dest, q.num, attr.RQPSN)
			}
		}
		q.receiving.Begin(&c)
	case from == verbs.StateRTR && to == verbs.StateRTS && !q.reliable():
		*q.unreliable = unreliable{psn: attr.SQPSN}
	case from == verbs.StateRTR && to == verbs.StateRTS:
		if q.e.selective {
			q.mark = wire.MarkOf(q.num, q.dest, attr.SQPSN)
		}
		q.sending.Begin(&send.Connection{PSN: attr.SQPSN, MTU: q.mtu, Path: *q.sendingPath()})
	}
	q.traceState(from, to)
	return nil
}

// sendingPath returns the path attributes for package send.
func (q *qp) sendingPath() *send.Path {
	window := q.e.shared.Window
	return &send.Path{
		Window: send.Window(window, q.mtu), Span: receive.Span(window, q.mtu), // the peer's, if its Config is the same
		Batch: uint32(q.path.Batch(wire.BTHLen + int(q.mtu) + wire.ICRCLen)), Congestion: q.congestion(),
	}
}

// limits returns the send limits from the attributes of a QP, with the changes in attr that mask
// names.
func (q *qp) limits(attr *verbs.QPAttr, mask verbs.QPAttrMask) send.Limits {
	l := q.sending.Limits()
	if mask&verbs.QPAttrTimeout != 0 {
		l.Timeout = ackTimeout(attr.Timeout)
	}
	if mask&verbs.QPAttrRetryCnt != 0 {
		l.Retries = attr.RetryCnt
	}
	if mask&verbs.QPAttrRNRRetry != 0 {
		l.RNRRetries = attr.RNRRetry
	}
	if mask&verbs.QPAttrMaxQPRDAtomic != 0 {
		l.MaxReads = attr.MaxRDAtomic
	}
	return l
}

// ackTimeout returns the local ACK timeout of 4.096 µs × 2^n; 0 is none.
func ackTimeout(n uint8) time.Duration {
	if n == 0 {
		return 0
	}
	return 4096 * time.Nanosecond << n
}

// connect opens the path of an address vector.
func (q *qp) connect(attr *verbs.QPAttr, mask verbs.QPAttrMask) error {
	dest, mtu := q.dest, q.mtu
	if mask&verbs.QPAttrDestQPN != 0 {
		dest = attr.DestQPNum
	}
	if mask&verbs.QPAttrPathMTU != 0 {
		mtu = uint32(attr.PathMTU.Bytes())
	}
	nic, ah, srcPort := q.e.nics[q.port-1], attr.AHAttr, sourcePort(q.num, dest)
	if err := q.e.access.Check(ah.GRH.DGID.Addr()); err != nil {
		return err
	}
	notify, err := q.control(nic, &ah, dest, srcPort)
	if err != nil {
		return err
	}
	path, err := openPath(nic, q.port, &ah, dest, srcPort)
	if err != nil {
		notify.close()
		return err
	}
	if room := path.MTU(); int(mtu)+headerRoom > room {
		path.Close()
		notify.close()
		return fmt.Errorf("path MTU %d needs UDP datagrams of %d bytes, the interface takes %d: %w",
			mtu, mtu+headerRoom, room, verbs.ErrInvalid)
	}
	q.closePaths()
	q.path, q.ends, q.notify, q.mtu = path, path.Ends(), notify, mtu
	q.room = q.roomOf(path)
	if notify != nil {
		q.pacer().react = newReaction(q.e.dcqcn)
	}
	return nil
}

// closePaths closes the QP's paths.
func (q *qp) closePaths() {
	if q.path != nil {
		q.path.Close()
	}
	q.notify.close()
	q.endCongestion()
	q.path, q.ends, q.notify, q.peerPort, q.pairedQP, q.room = nil, nil, nil, nil, nil, 0
}

// reset clears everything except the QP's number and port.
func (q *qp) reset() {
	q.stopTimer()
	q.closePaths()
	q.pace = nil
	q.receiving.Reset()
	q.sending.Reset()
	if u := q.unreliable; u != nil {
		*u = unreliable{}
	}
	q.resp = responder{}
	q.mark = 0
}

// Query implements verbs.ProviderQP.
func (q *qp) Query(attr *verbs.QPAttr) {
	attr.SQPSN = q.sending.NextPSN()
	if u := q.unreliable; u != nil {
		attr.SQPSN = u.psn
	}
	attr.RQPSN = q.receiving.PSN()
}

// Peer implements verbs.ProviderQP.
func (q *qp) Peer() netip.Addr {
	if q.ends == nil {
		return netip.Addr{}
	}
	return q.ends.Dst
}

// PostRecv implements verbs.ProviderQP. There is nothing to do: a peer that has received an RNR NAK
// retries when its wait ends.
func (q *qp) PostRecv() {}

// Destroy implements verbs.ProviderQP.
func (q *qp) Destroy() {
	q.sendAckBeforeEnd()
	q.e.qps.Delete(q.num)
	q.reset()
	q.e.timers.Remove(&q.timer)
	q.destroyed = true
	q.e.Counters.fold(q.stats, q.recvs)
}
