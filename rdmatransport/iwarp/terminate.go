package iwarp

// On the path: the message that ends a stream which went wrong, out and in. (RFC 5040 §4.8, §6.2)

import (
	"github.com/softrnic/softrnic/rdmatransport/iwarp/ddp"
	"github.com/softrnic/softrnic/rdmatransport/iwarp/rdmap"
	"github.com/softrnic/softrnic/verbs"
)

// terminate tells the peer why the stream ends. A stream that has no room now is closed without.
func (q *qp) terminate(err error, bad []byte) {
	cause, _ := rdmap.CauseOf(err)
	h := cause.Quote(bad)
	s := &q.tx.segment
	s.untagged(&ddp.Untagged{Last: true, RsvdULP: rdmap.Terminate.Control(), QN: rdmap.QueueTerminate, MSN: 1})
	var message [rdmap.MaxTerminateLen]byte
	h.Encode(message[:h.Len()])
	s.pieces = append(s.pieces, message[:h.Len()])
	s.length = h.Len()
	if ok, err := q.conn.stream.Send(q.conn.framer.Size(s.n+s.length), q); ok && err == nil {
		q.e.Counters.TerminatesSent.Add(1)
	}
	clear(s.pieces)
}

// terminated handles the peer's Terminate. If it blames a READ or atomic, the oldest one outstanding fails as the cause
// says: that is the only request that can still be told from those that TCP has carried.
func (q *qp) terminated(message []byte) error {
	q.e.Counters.TerminatesReceived.Add(1)
	h, _ := rdmap.ParseTerminate(message)
	if wr := q.oldestRead(); wr != nil && h.Layer == rdmap.LayerRDMA && h.Type != rdmap.TypeLocalCatastrophic {
		status := verbs.WCRemOpErr
		switch {
		case h.Type == rdmap.TypeRemoteProtection:
			status = verbs.WCRemAccessErr
		case h.Cause == rdmap.UnexpectedOpcode, h.Cause == rdmap.InvalidVersion:
			status = verbs.WCRemInvReqErr
		}
		q.answered(status)
	}
	return errTerminated
}
