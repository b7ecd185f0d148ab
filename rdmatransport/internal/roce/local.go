package roce

// On the path: instead of packets. Local requests, which bind and invalidate memory windows, are
// executed in their turn, and so are those whose fault is known.

import (
	"github.com/softrnic/softrnic/rdmatransport/internal/memory"
	"github.com/softrnic/softrnic/verbs"
)

// executeLocal does what a local request asks for.
func (q *qp) executeLocal(wr *verbs.SendWR) verbs.WCStatus {
	if s := wr.Fault(); s != verbs.WCSuccess {
		return s
	}
	if wr.Opcode == verbs.BindMW {
		return q.e.regions.Bind(q.h, wr.Bind)
	}
	if q.e.regions.InvalidateWindow(q.h, wr.InvalidateRKey) != memory.Allowed {
		return verbs.WCMWBindErr // the name of Memory Management Operation Error
	}
	return verbs.WCSuccess
}
