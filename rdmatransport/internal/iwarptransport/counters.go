package iwarptransport

import (
	"net/netip"
)

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

// Peer implements verbs.ProviderQP.
func (q *qp) Peer() netip.Addr {
	if q.conn == nil {
		return netip.Addr{}
	}
	return q.conn.peer
}
