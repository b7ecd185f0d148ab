package rocetransport

// Data in the backend of a region, which arrives there after it was received.

import (
	"github.com/softrnic/softrnic/rdmatransport/wire"
	"github.com/softrnic/softrnic/verbs"
)

// Placed implements verbs.ProviderQP.
func (q *qp) Placed(failed *verbs.PlaceError) {
	switch {
	case !receives(q.h.State()):
	case failed == nil:
		if !q.h.PlacingFull() {
			q.sending.OnRoom()
		}
		q.sendAllNow()
	case failed.By == verbs.PlaceSend:
		q.failPlacedResponse(failed)
	default:
		q.failPlacedRequest(failed)
	}
}

// failPlacedResponse ends the connection after an error of the memory of a READ or an atomic.
func (q *qp) failPlacedResponse(e *verbs.PlaceError) {
	if !e.Incomplete {
		q.fail()
		return
	}
	for q.h.SendLen() > 1 && !hasAnswer(q.h.Send(0).Opcode) {
		q.h.CompleteSend(verbs.WCWRFlushErr, 0)
	}
	// No acknowledgement goes out: the peer's data behind it is dropped too.
	q.h.CompleteSend(verbs.WCLocProtErr, 0)
	q.fail()
}

// failPlacedRequest ends the connection after an error of the memory of a SEND, a WRITE or an
// atomic. Its packets have not been acknowledged.
func (q *qp) failPlacedRequest(e *verbs.PlaceError) {
	if q.reliable() {
		q.receiving.DropPending()
		q.sendNAK(wire.AETH{Syndrome: wire.NakRemoteOperational, MSN: q.receiving.MSN()}, e.PSN)
		q.sendGathered()
	}
	switch {
	case e.By == verbs.PlaceRemote || e.By == verbs.PlaceAtomic:
		if e.By == verbs.PlaceRemote {
			q.h.CountRemoteError(verbs.CompCntrRemoteWrite)
		}
		q.resp.taken = false // by a message behind it
		q.failRecv(verbs.WCRemOpErr)
	case e.Incomplete:
		q.failRecv(verbs.WCLocProtErr)
	default:
		q.fail()
	}
}
