package rocetransport

// Differences of XRC from RC. An initiator QP is only a requester, a target QP only a responder,
// and the XRCETH of each request names its SRQ. (IBTA annex A14)

import (
	"github.com/softrnic/softrnic/rdmatransport/wire"
	"github.com/softrnic/softrnic/verbs"
)

// selectSRQ selects the SRQ of a request. It returns false if the domain has no such SRQ, or the
// open message is for another.
func (q *qp) selectSRQ(p *wire.Packet) bool {
	r := &q.resp
	if r.message != noMessage && p.XRCETH.SRQ != r.srqn {
		return false
	}
	r.srqn = p.XRCETH.SRQ
	r.pd = q.h.SelectSRQ(r.srqn)
	return r.pd != nil
}

// scope returns the protection domain for the keys of the peer's requests.
func (q *qp) scope() *verbs.PD {
	if q.service == wire.XRC {
		return q.resp.pd
	}
	return q.h.PD()
}
