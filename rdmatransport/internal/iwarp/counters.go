package iwarp

import "sync/atomic"

// Counters count rare events.
type Counters struct {
	TerminatesSent     atomic.Uint64
	TerminatesReceived atomic.Uint64
	StreamsLost        atomic.Uint64 // ended without a Terminate or an orderly close
	CRCErrors          atomic.Uint64
	ConnectsRefused    atomic.Uint64 // connections that were refused before an application saw them
	Revision1Retries   atomic.Uint64 // connections that were tried again with MPA revision 1

	direct atomic.Uint64 // messages moved directly, of QPs that are destroyed
}

// Snapshot is every counter by name. It locks each QP in turn.
func (e *Engine) Snapshot() map[string]uint64 {
	c := &e.Counters
	direct := c.direct.Load()
	for _, q := range e.qps.All() {
		q.h.Lock()
		direct += q.direct
		q.h.Unlock()
	}
	return map[string]uint64{
		"iwarp_direct_msgs":         direct,
		"iwarp_terminates_sent":     c.TerminatesSent.Load(),
		"iwarp_terminates_received": c.TerminatesReceived.Load(),
		"iwarp_streams_lost":        c.StreamsLost.Load(),
		"iwarp_crc_errors":          c.CRCErrors.Load(),
		"iwarp_connects_refused":    c.ConnectsRefused.Load(),
		"iwarp_mpa_v1_retries":      c.Revision1Retries.Load(),
	}
}
