package roce

// On the path: where XRC differs from RC. An initiator QP has only the requester's half, a target
// QP only the responder's, and each request says by its XRCETH which SRQ takes it. (IBTA annex A14)

import (
	"github.com/softrnic/softrnic/rdmatransport/roce/wire"
	"github.com/softrnic/softrnic/verbs"
)

// selectSRQ finds the SRQ that a request names. It returns false if the domain has no such SRQ, or
// the open message is for another.
func (q *qp) selectSRQ(p *wire.Packet) bool {
	r := &q.resp
	if r.message != noMessage && p.XRCETH.SRQ != r.srqn {
		return false
	}
	r.srqn = p.XRCETH.SRQ
	r.pd = q.h.SelectSRQ(r.srqn)
	return r.pd != nil
}

// scope is the protection domain in which the keys of the peer's requests are looked up.
func (q *qp) scope() *verbs.PD {
	if q.service == wire.XRC {
		return q.resp.pd
	}
	return q.h.PD()
}
