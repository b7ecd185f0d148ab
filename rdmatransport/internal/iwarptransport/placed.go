package iwarptransport

// Data in the backend of a region, which arrives there after it was received.

import (
	"github.com/softrnic/softrnic/rdmatransport/rdmap"
	"github.com/softrnic/softrnic/verbs"
)

// Placed implements verbs.ProviderQP.
func (q *qp) Placed(failed *verbs.PlaceError) {
	switch {
	case q.conn == nil || q.sending.lifecycle.ended():
	case failed == nil:
		q.transmit()
	case failed.By == verbs.PlaceRemote:
		q.h.CountRemoteError(verbs.CompCntrRemoteWrite)
		q.h.Event(asyncEvent(rdmap.OperationError))
		q.fail(rdmap.OperationError, nil)
	case failed.By == verbs.PlaceAtomic:
		q.failResponse(q.sending.responses.oldest(), rdmap.OperationError)
	default:
		if failed.Incomplete && failed.By == verbs.PlaceRecv {
			q.failRecv(verbs.WCLocProtErr)
		} else if failed.Incomplete && q.oldestRead() != nil {
			q.readResponded(verbs.WCLocProtErr)
		}
		q.fail(rdmap.LocalCatastrophic, nil)
	}
}
