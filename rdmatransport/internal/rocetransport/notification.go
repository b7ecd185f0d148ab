package rocetransport

// Explicit congestion notification. A marked packet is answered by a congestion notification packet
// (CNP), and a received CNP slows the QP down. (IBTA A17.9)

import (
	"github.com/softrnic/softrnic/rdmatransport/wire"
	"github.com/softrnic/softrnic/stack"
	"github.com/softrnic/softrnic/verbs"
)

// The ECN bits of the traffic class (RFC 3168 §5).
const (
	ecnMask               = 3
	ecnCapable            = 2 // ECT(0)
	congestionExperienced = 3
)

// control sets up congestion control on a connection's new path. It returns a notifier, and sets
// ECT(0) in ah, so that switches may mark the packets. RoCE v1 has no ECN.
func (q *qp) control(nic stack.NIC, ah *verbs.AHAttr, dest uint32, srcPort uint16) (*notifier, error) {
	if q.e.dcqcn == nil || q.service == wire.UD || isV1(&ah.GRH) {
		return nil, nil
	}
	own := *ah
	own.GRH.TrafficClass, own.SL = q.e.dcqcn.CNPDSCP<<2, q.e.dcqcn.CNP802PPrio
	path, err := openPath(nic, q.port, &own, dest, srcPort)
	if err != nil {
		return nil, err
	}
	ah.GRH.TrafficClass = ah.GRH.TrafficClass&^ecnMask | ecnCapable
	return &notifier{path: path}, nil
}

func (n *notifier) close() {
	if n != nil {
		n.path.Close()
	}
}

// onECNMark answers a packet that a switch has marked, unless a CNP was just sent.
func (q *qp) onECNMark() {
	c, n := &q.e.Counters, q.notify
	c.Marked.Add(1)
	now := q.e.now()
	if now < n.next {
		return
	}
	n.next = now + q.e.dcqcn.MinTimeBetweenCNPs
	p := wire.Packet{BTH: wire.BTH{Opcode: wire.CNP, BECN: true, DestQP: q.dest}}
	header, b := q.packet(n.path, &p, wire.CNPPayloadLen)
	if b == nil {
		return
	}
	clear(b[p.EncodeHeader(b):])
	q.seal(header, b)
	c.SentCNPs.Add(1)
}

// onCNP handles a CNP.
func (q *qp) onCNP() {
	if q.pace == nil || q.pace.react == nil {
		q.e.Counters.IgnoredCNPs.Add(1)
		return
	}
	now := q.e.now()
	q.pace.advance(now)
	q.pace.react.onCNP(now)
	q.e.Counters.HandledCNPs.Add(1)
}
