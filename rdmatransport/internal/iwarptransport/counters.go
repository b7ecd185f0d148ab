package iwarptransport

import "sync/atomic"

// Counters count rare events.
type Counters struct {
	TerminatesSent     atomic.Uint64
	TerminatesReceived atomic.Uint64
	StreamsLost        atomic.Uint64 // streams that ended without a Terminate or an orderly close
	CRCErrors          atomic.Uint64
	ConnectsRefused    atomic.Uint64 // connections refused before they were reported to an application
	Revision1Retries   atomic.Uint64 // connections retried with MPA revision 1

	direct atomic.Uint64 // messages moved directly, of closed QPs

	// Bytes of FPDUs, of streams that no longer have a QP.
	sent, received atomic.Uint64
}

// Snapshot returns all counters by name. It locks each QP in turn.
func (e *Engine) Snapshot() map[string]uint64 {
	c := &e.Counters
	direct, sent, received := c.direct.Load(), c.sent.Load(), c.received.Load()
	for _, q := range e.qps.All() {
		q.h.Lock()
		direct += q.direct
		if q.conn != nil {
			sent, received = sent+q.conn.sent, received+q.conn.received
		}
		q.h.Unlock()
	}
	return map[string]uint64{
		"iwarp_direct_msgs":         direct,
		"iwarp_xmit_bytes":          sent,
		"iwarp_rcv_bytes":           received,
		"iwarp_terminates_sent":     c.TerminatesSent.Load(),
		"iwarp_terminates_received": c.TerminatesReceived.Load(),
		"iwarp_streams_lost":        c.StreamsLost.Load(),
		"iwarp_crc_errors":          c.CRCErrors.Load(),
		"iwarp_connects_refused":    c.ConnectsRefused.Load(),
		"iwarp_mpa_v1_retries":      c.Revision1Retries.Load(),
	}
}

// Counters implements verbs.ProviderQP.
func (q *qp) Counters() map[string]uint64 {
	var sent, received uint64
	if q.conn != nil {
		sent, received = q.conn.sent, q.conn.received
	}
	return map[string]uint64{"iwarp_xmit_bytes": sent, "iwarp_rcv_bytes": received, "iwarp_direct_msgs": q.direct}
}
