package rocetransport

// Local requests, which bind and invalidate memory windows. They are executed in order, without
// packets. So are requests with a known fault.

import (
	"github.com/softrnic/softrnic/rdmatransport/internal/memory"
	"github.com/softrnic/softrnic/verbs"
)

// executeLocal executes a local request.
func (q *qp) executeLocal(wr *verbs.PostedSend) verbs.WCStatus {
	if s := wr.Fault(); s != verbs.WCSuccess {
		return s
	}
	if wr.Opcode == verbs.BindMW {
		return q.e.regions.Bind(q.h, wr.Bind)
	}
	if q.e.regions.InvalidateWindow(q.h, wr.InvalidateRKey) != memory.Allowed {
		return verbs.WCMWBindErr // the name for Memory Management Operation Error
	}
	return verbs.WCSuccess
}
