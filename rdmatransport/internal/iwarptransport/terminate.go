package iwarptransport

// The Terminate message, sent and received. (RFC 5040 §4.8, §6.2)

import (
	"slices"

	"github.com/softrnic/softrnic/rdmatransport/ddp"
	"github.com/softrnic/softrnic/rdmatransport/rdmap"
	"github.com/softrnic/softrnic/rdmatransport/trace"
	"github.com/softrnic/softrnic/verbs"
)

// terminate ends the stream with a Terminate message. err is the reason, and bad the segment with
// the error.
func (q *qp) terminate(err error, bad []byte) {
	cause, _ := rdmap.CauseOf(err)
	h := cause.Quote(bad)
	message := make([]byte, h.Len())
	h.Encode(message)
	q.sending.lifecycle.fail(message)
	q.finish()
}

// finish sends the Terminate message and closes the stream after it. If the stream has no room yet,
// transmit calls finish again. A side that awaits the peer closes without the message (RFC 5044
// §7.1.2, rule 4).
func (q *qp) finish() {
	s := &q.sending
	if s.lifecycle.is(terminating) {
		s.segment.untagged(&ddp.Untagged{Last: true, RsvdULP: rdmap.Terminate.Control(), QN: rdmap.QueueTerminate, MSN: 1})
		s.segment.add(s.lifecycle.terminate, false)
		switch ok, err := q.sendSegment(); {
		case err != nil:
		case !ok:
			return
		default:
			q.e.Counters.TerminatesSent.Add(1)
			q.traceTerminate(trace.TerminateSent, s.lifecycle.terminate)
		}
	}
	q.closeStream()
}

// terminated handles the peer's Terminate message. If it is about a READ or an atomic, that request
// fails with the status of the cause. Earlier READs and atomics are flushed, because their
// responses will not arrive. Other requests are complete: TCP has delivered them.
func (q *qp) terminated(message []byte) error {
	q.e.Counters.TerminatesReceived.Add(1)
	q.traceTerminate(trace.TerminateReceived, message)
	h, _ := rdmap.ParseTerminate(message)
	if i := q.failedRead(&h); i >= 0 {
		status := verbs.WCRemOpErr
		switch {
		case h.Layer == rdmap.LayerRDMA && h.Type == rdmap.TypeRemoteProtection:
			status = verbs.WCRemAccessErr
		case h.Cause == rdmap.UnexpectedOpcode, h.Cause == rdmap.InvalidVersion, h.Cause == rdmap.StreamCatastrophic:
			status = verbs.WCRemInvReqErr
		}
		q.failRequest(q.sending.reads.list[i].number, status)
	} else {
		q.h.Event(verbs.EventQPFatal) // the request has already completed; it may be a WRITE
	}
	return errTerminated
}

// failedRead returns the READ or atomic that a Terminate message is about, as an index in
// reads.list. It is the one whose request the message quotes, or the oldest if it quotes none. It
// returns -1 if the message is about another message.
func (q *qp) failedRead(h *rdmap.TerminateHeader) int {
	s := &q.sending
	if len(s.reads.list) == 0 || h.Layer == rdmap.LayerLLP || h.Type == rdmap.TypeLocalCatastrophic {
		return -1
	}
	if h.DDPHeader == nil {
		if h.Layer == rdmap.LayerRDMA && h.Cause != rdmap.CannotInvalidate {
			return 0
		}
		return -1
	}
	if ddp.IsTagged(h.DDPHeader) {
		return -1
	}
	quoted, _, err := ddp.ParseUntagged(h.DDPHeader)
	if err != nil || quoted.QN != rdmap.QueueReadRequest {
		return -1
	}
	// Number of requests sent after the quoted one.
	back := s.numbers.sent[rdmap.QueueReadRequest] - quoted.MSN
	if uint64(back) < uint64(len(s.reads.list)) {
		return len(s.reads.list) - 1 - int(back)
	}
	// siw quotes the READ's length instead of its MSN. The READ is then identified by its memory.
	request, err := rdmap.ParseReadRequest(h.RDMAHeader)
	if err != nil {
		return -1
	}
	return slices.IndexFunc(s.reads.list, func(r outstandingRead) bool {
		wr := q.h.Send(s.cursor.index(r.number))
		return wr.Opcode == verbs.RDMARead && wr.RKey == request.SourceSTag && wr.RemoteAddr == request.SourceTO &&
			wr.Length() == uint64(request.Size)
	})
}
