package iwarptransport

import (
	"fmt"

	"github.com/softrnic/softrnic/rdmatransport/rdmap"
	"github.com/softrnic/softrnic/rdmatransport/trace"
	"github.com/softrnic/softrnic/verbs"
)

// SetTrace enables tracing of QPs and connections. It must be called before there are any.
func (e *Engine) SetTrace(sink trace.Sink) { e.trace = sink }

// emit traces an event of QP qpn. The engine has a sink.
func (e *Engine) emit(qpn uint32, ev trace.Event) {
	ev.Time, ev.Transport, ev.QPN = e.timers.Clock().Now(), "iWARP", qpn
	e.trace(ev)
}

// traceState traces a change of the QP's state.
func (q *qp) traceState(from, to verbs.QPState) {
	if q.e.trace != nil && from != to {
		q.e.emit(q.num, trace.Event{Type: trace.QPState, From: from.String(), To: to.String()})
	}
}

// tracePhase traces a change of the phase of sending.
func (q *qp) tracePhase(from, to phase) {
	q.e.emit(q.num, trace.Event{Type: trace.SendPhase, From: from.String(), To: to.String()})
}

// traceNegotiated traces the result of MPA's negotiation for the QP's stream.
func (q *qp) traceNegotiated(c *conn) {
	if q.e.trace == nil {
		return
	}
	rtr := ""
	if c.rtr != noRTR {
		rtr = ", ready-to-receive message " + c.rtr.String()
	}
	q.e.emit(q.num, trace.Event{Type: trace.MPANegotiated, Detail: fmt.Sprintf(
		"revision %d, IRD %d, ORD %d, CRC %t, markers sent %t, markers received %t, MULPDU %d%s",
		c.revision, c.ird, c.ord, c.framer.CRC, c.framer.Markers, c.deframer.Markers, c.mulpdu, rtr,
	)})
}

// traceFailed traces a failed set-up on the initiator.
func (c *conn) traceFailed(err error) {
	if c.e.trace != nil {
		c.e.emit(0, trace.Event{Type: trace.MPAFailed, Detail: "with " + c.peer.String(), Err: err})
	}
}

// traceTerminate traces a Terminate message, sent or received.
func (q *qp) traceTerminate(t trace.Type, message []byte) {
	if q.e.trace != nil {
		h, _ := rdmap.ParseTerminate(message) // the cause is valid in any case
		q.e.emit(q.num, trace.Event{Type: t, Detail: h.Cause.String()})
	}
}

// traceLost traces the loss of the stream.
func (q *qp) traceLost(err error) {
	if q.e.trace != nil {
		q.e.emit(q.num, trace.Event{Type: trace.StreamLost, Err: err})
	}
}
