package rocetransport

import "sync/atomic"

// Counters count rare events; frequent ones are counted per QP. Their names are those of rxe's
// hw_counters, if it has one.
type Counters struct {
	Malformed   atomic.Uint64 // packets whose headers do not parse
	ICRCErrors  atomic.Uint64
	Trimmed     atomic.Uint64 // packets whose headers a switch has left, and that caused an answer
	Identified  atomic.Uint64 // packets with an IPv4 identification computed from the ICRC
	UnknownQP   atomic.Uint64
	Misdirected atomic.Uint64 // wrong state, port or address for the QP
	BadPKey     atomic.Uint64

	QKeyViolations atomic.Uint64 // datagrams with a wrong Q_Key
	NoReceive      atomic.Uint64 // unreliable messages without a receive request
	TooLong        atomic.Uint64 // unreliable messages too long for the receive request

	Suspect          atomic.Uint64 // requests that may be forged
	DuplicateRequest atomic.Uint64
	OutOfSeqRequest  atomic.Uint64 // gaps, but not the packets after them
	RcvdRNR          atomic.Uint64
	SentRNR          atomic.Uint64
	RcvdSeqErr       atomic.Uint64
	RetryExceeded    atomic.Uint64
	RNRRetryExceeded atomic.Uint64
	Retries          atomic.Uint64
	Repeated         atomic.Uint64 // packets retransmitted one by one, from the scoreboard
	Probes           atomic.Uint64
	SendErrors       atomic.Uint64

	Marked, SentCNPs         atomic.Uint64 // received packets with an ECN mark, and CNPs sent for them
	HandledCNPs, IgnoredCNPs atomic.Uint64

	sentPkts, rcvdPkts atomic.Uint64 // of closed QPs, of QP 1, and received multicast
	sends, recvs       atomic.Uint64
	direct             atomic.Uint64 // messages sent without packets
}

// stats are a QP's own counters. The QP's lock protects them.
type stats struct {
	sentPkts, rcvdPkts   uint64
	sentBytes, rcvdBytes uint64 // payload of packets and of messages moved directly
	sends, direct        uint64

	// The device has its own counters of these.
	retries, repeated, rcvdRNR, duplicates uint32
}

// count returns the QP's counters. A QP that never sent or received anything has none, because a
// program may have very many QPs.
func (q *qp) count() *stats {
	if q.stats == nil {
		q.stats = new(stats)
	}
	return q.stats
}

// Counters implements verbs.ProviderQP.
func (q *qp) Counters() map[string]uint64 {
	s := q.stats
	if s == nil {
		s = &stats{}
	}
	return map[string]uint64{
		"sent_pkts":           s.sentPkts,
		"rcvd_pkts":           s.rcvdPkts,
		"sent_bytes":          s.sentBytes,
		"rcvd_bytes":          s.rcvdBytes,
		"rdma_sends":          s.sends,
		"rdma_recvs":          q.recvs,
		"direct_msgs":         s.direct,
		"completer_retry_err": uint64(s.retries),
		"selective_repeats":   uint64(s.repeated),
		"rcvd_rnr_err":        uint64(s.rcvdRNR),
		"duplicate_request":   uint64(s.duplicates),
	}
}

func (c *Counters) fold(s *stats, recvs uint64) {
	if s == nil {
		s = &stats{}
	}
	c.sentPkts.Add(s.sentPkts)
	c.rcvdPkts.Add(s.rcvdPkts)
	c.sends.Add(s.sends)
	c.recvs.Add(recvs)
	c.direct.Add(s.direct)
}

// Snapshot returns all counters by name. It locks each QP in turn.
func (e *Engine) Snapshot() map[string]uint64 {
	c := &e.Counters
	total := stats{sentPkts: c.sentPkts.Load(), rcvdPkts: c.rcvdPkts.Load(), sends: c.sends.Load(), direct: c.direct.Load()}
	recvs := c.recvs.Load()
	for _, q := range e.qps.All() {
		q.h.Lock()
		if s := q.stats; s != nil {
			total.sentPkts += s.sentPkts
			total.rcvdPkts += s.rcvdPkts
			total.sends += s.sends
			total.direct += s.direct
		}
		recvs += q.recvs
		q.unlockOnly()
	}
	return map[string]uint64{
		"sent_pkts":                  total.sentPkts,
		"rcvd_pkts":                  total.rcvdPkts,
		"rdma_sends":                 total.sends,
		"rdma_recvs":                 recvs,
		"direct_msgs":                total.direct,
		"duplicate_request":          c.DuplicateRequest.Load(),
		"out_of_seq_request":         c.OutOfSeqRequest.Load(),
		"rcvd_rnr_err":               c.RcvdRNR.Load(),
		"send_rnr_err":               c.SentRNR.Load(),
		"rcvd_seq_err":               c.RcvdSeqErr.Load(),
		"ack_deferred":               0, // only rxe defers any: see package rdmatransport
		"retry_exceeded_err":         c.RetryExceeded.Load(),
		"retry_rnr_exceeded_err":     c.RNRRetryExceeded.Load(),
		"completer_retry_err":        c.Retries.Load(),
		"selective_repeats":          c.Repeated.Load(),
		"tail_probes":                c.Probes.Load(),
		"np_ecn_marked_roce_packets": c.Marked.Load(),
		"np_cnp_sent":                c.SentCNPs.Load(),
		"rp_cnp_handled":             c.HandledCNPs.Load(),
		"rp_cnp_ignored":             c.IgnoredCNPs.Load(),
		"send_err":                   c.SendErrors.Load(),
		"suspect_requests":           c.Suspect.Load(),
		"malformed_packets":          c.Malformed.Load(),
		"icrc_errors":                c.ICRCErrors.Load(),
		"trimmed_packets":            c.Trimmed.Load(),
		"icrc_id_solved":             c.Identified.Load(),
		"unknown_qp":                 c.UnknownQP.Load(),
		"misdirected_packets":        c.Misdirected.Load(),
		"bad_pkey":                   c.BadPKey.Load(),
		"qkey_viol":                  c.QKeyViolations.Load(),
		"no_recv_dropped":            c.NoReceive.Load(),
		"too_long_dropped":           c.TooLong.Load(),
	}
}
