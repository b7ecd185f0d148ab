package rocetransport

import (
	"fmt"

	"github.com/softrnic/softrnic/rdmatransport/trace"
	"github.com/softrnic/softrnic/rdmatransport/wire"
	"github.com/softrnic/softrnic/verbs"
)

// SetTrace enables tracing of QPs. It must be called before there are any.
func (e *Engine) SetTrace(sink trace.Sink) { e.trace = sink }

// emit traces an event. The engine has a sink.
func (q *qp) emit(e trace.Event) {
	e.Time, e.Transport, e.QPN = q.e.timers.Clock().Now(), "RoCE", q.num
	q.e.trace(e)
}

// traceState traces a change of the QP's state.
func (q *qp) traceState(from, to verbs.QPState) {
	if q.e.trace != nil && from != to {
		q.emit(trace.Event{Type: trace.QPState, From: from.String(), To: to.String()})
	}
}

// traceNAK traces an acknowledgement, sent or received, if it is negative.
func (q *qp) traceNAK(t trace.Type, syndrome uint8, psn uint32) {
	if q.e.trace != nil {
		if a := (wire.AETH{Syndrome: syndrome}); !a.IsACK() {
			q.emit(trace.Event{Type: t, PSN: psn, Detail: nakName(&a)})
		}
	}
}

// nakName returns the name of a NAK in IBTA Vol 1 §9.7.5.2.2.
func nakName(a *wire.AETH) string {
	if a.IsRNR() {
		return "RNR"
	}
	switch a.Type() | a.Value() {
	case wire.NakPSNSeq:
		return "PSN sequence error"
	case wire.NakInvalidRequest:
		return "invalid request"
	case wire.NakRemoteAccess:
		return "remote access error"
	case wire.NakRemoteOperational:
		return "remote operational error"
	case wire.NakInvalidRD:
		return "invalid RD request"
	}
	return fmt.Sprintf("syndrome %#x", a.Syndrome)
}
