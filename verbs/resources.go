package verbs

import (
	"cmp"
	"net/netip"
	"slices"
)

// This file has the data of `rdma resource show` and `rdma statistic qp show`.

// Resources has the number of objects of each kind of a device.
type Resources struct{ PD, MR, MW, AH, CQ, SRQ, QP, CompChannel int }

// Resources counts the device's objects. Unlike Snapshot, it locks no QP.
func (d *Device) Resources() Resources {
	d.mu.Lock()
	defer d.mu.Unlock()
	return Resources{PD: len(d.pdSet), MR: d.mrs, MW: d.mws, AH: d.ahs, CQ: d.cqs, SRQ: d.srqs, QP: d.qps, CompChannel: d.channels}
}

// QPs returns the device's queue pairs, in the order of their numbers.
func (d *Device) QPs() []*QP {
	d.mu.Lock()
	pds := d.allPDs()
	d.mu.Unlock()
	var qps []*QP
	for _, pd := range pds {
		pd.qpsMu.Lock()
		for qp := range pd.qps {
			qp.lock()
			if qp.prov != nil { // otherwise it is being created, or its creation failed
				qps = append(qps, qp)
			}
			qp.mu.Unlock()
		}
		pd.qpsMu.Unlock()
	}
	slices.SortFunc(qps, func(a, b *QP) int { return cmp.Compare(a.num, b.num) })
	return qps
}

// QPStats is a snapshot of the state and counters of a QP.
type QPStats struct {
	State          QPState
	PortNum        uint8
	DestQPNum      uint32     // of a connected QP
	Peer           netip.Addr // of a connected QP
	Sends, Recvs   int        // work requests that are posted and not completed
	Counters       map[string]uint64
	SendsCompleted Latency // of measured send requests: see MeasureLatency
}

// Stats returns a consistent snapshot of the QP. The provider's documentation describes the
// counters, which start at 0 when the QP is created.
func (qp *QP) Stats() (QPStats, error) {
	qp.lock()
	defer qp.mu.Unlock()
	if err := qp.alive("query the statistics of"); err != nil {
		return QPStats{}, err
	}
	qp.takeRing()
	s := QPStats{
		State: qp.state, PortNum: qp.attr.PortNum, DestQPNum: qp.attr.DestQPNum, Peer: qp.prov.Peer(),
		Sends: qp.posted(), Recvs: qp.rq.len(), Counters: qp.prov.Counters(),
	}
	if qp.observed&measured != 0 {
		s.SendsCompleted = qp.extra.latency.Latency
	}
	return s, nil
}
