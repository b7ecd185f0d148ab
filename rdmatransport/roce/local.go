package roce

// On the path: beside it. Requests that are carried out here, in their turn and without a packet: windows are bound and
// invalidated.

import (
	"github.com/softrnic/softrnic/rdmatransport/internal/memory"
	"github.com/softrnic/softrnic/verbs"
)

// carryOut does what a local request asks for.
func (q *qp) carryOut(wr *verbs.SendWR) verbs.WCStatus {
	if wr.Opcode == verbs.BindMW {
		return q.e.regions.Bind(q.h, wr.Bind)
	}
	if q.e.regions.InvalidateWindow(q.h, wr.InvalidateRKey) != memory.Allowed {
		return verbs.WCLocQPOpErr
	}
	return verbs.WCSuccess
}
