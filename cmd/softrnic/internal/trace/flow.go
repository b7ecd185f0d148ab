package trace

import (
	"fmt"
	"net/netip"

	"github.com/softrnic/softrnic/rdmatransport/wire"
)

const (
	// maxFlows is the most flows at a time. Those idle longest are evicted.
	maxFlows = 1 << 15
	// firstRing is the initial size of a flow's ring of packets, and maxRing the largest.
	firstRing, maxRing = 16, 1 << 13
	// maxRemembered is the most packets that all flows together keep beyond firstRing.
	maxRemembered = 1 << 20
	// maxMissing is the most gaps of a flow, and the most READs without a response, that are kept.
	maxMissing = 64
)

// flowKey identifies the packets from one address to one QP.
type flowKey struct {
	src, dst netip.Addr
	qp       uint32
}

// flow has the packets of one side of a connection: its requests, and its responses to the other
// side's requests.
type flow struct {
	flowKey
	order     int   // of appearance
	peer      *flow // the other direction, if it is known
	transport wire.Transport
	first     int64
	last      int64
	lastSeen  int // number of the last packet
	req       requester
	rsp       responder
	stats     statistics

	disordered bool // its packets may have been reordered
	late       bool // a packet has come after later ones
	rxeFlush   bool // a FLUSH has had the ICRC of Linux's rxe

	burst   int   // the first packet after the longest silence of the last slowTimeout
	began   int64 // its time
	silence int64 // that silence

	upper  *upper // nil: no SEND has come
	prefix prefix
}

func (w *flow) String() string {
	if w.peer != nil {
		return fmt.Sprintf("%v QP %#x to %v QP %#x", w.src, w.peer.qp, w.dst, w.qp)
	}
	return fmt.Sprintf("%v to %v QP %#x", w.src, w.dst, w.qp)
}

// root returns the same flow for both directions of a connection.
func (w *flow) root() *flow {
	if w.peer != nil && w.peer.order < w.order {
		return w.peer
	}
	return w
}

// reordered reports whether a packet of the connection has come after later ones. w may be nil.
func (w *flow) reordered() bool { return w != nil && (w.late || w.peer != nil && w.peer.late) }

// sure returns wrong, or unsure if reordering of the connection's packets may be the cause.
func (w *flow) sure() level {
	if w.disordered || w.peer != nil && w.peer.disordered {
		return unsure
	}
	return wrong
}

// flowOf returns the flow that a packet belongs to.
func (a *analysis) flowOf(k flowKey, now int64) *flow {
	if w := a.lastFlow; w != nil && w.flowKey == k {
		return w
	}
	w := a.flows[k]
	if w == nil {
		if len(a.flows) >= maxFlows {
			a.makeRoom()
		}
		a.ordered++
		w = &flow{flowKey: k, order: a.ordered, first: now}
		a.flows[k] = w
		a.unpaired[pair{k.src, k.dst}] = append(a.unpaired[pair{k.src, k.dst}], w)
	}
	a.lastFlow = w
	return w
}

// pair is the sender and the receiver of packets.
type pair struct{ src, dst netip.Addr }

// connect makes two flows the directions of one connection.
func (a *analysis) connect(w, o *flow) {
	if w.peer == o {
		return
	}
	for _, f := range []*flow{w, o} {
		if f.peer != nil {
			f.peer.peer, f.peer = nil, nil
		}
	}
	w.peer, o.peer = o, w
	a.paired(w)
	a.paired(o)
}

// paired removes a flow from the list of flows with an unknown other direction.
func (a *analysis) paired(w *flow) {
	k := pair{w.src, w.dst}
	list := a.unpaired[k]
	for i, f := range list {
		if f == w {
			list[i] = list[len(list)-1]
			list[len(list)-1] = nil
			if list = list[:len(list)-1]; len(list) == 0 {
				delete(a.unpaired, k)
			} else {
				a.unpaired[k] = list
			}
			return
		}
	}
}

// requesterOf returns the flow whose requests a response answers if CM did not reveal it: the only
// flow in the other direction that has sent the PSN.
func (a *analysis) requesterOf(w *flow, psn uint32) *flow {
	var found *flow
	list := a.unpaired[pair{w.dst, w.src}]
	for i, f := range list {
		if i == 1<<8 {
			break
		}
		q := &f.req
		if f.transport == wire.UC || !q.began || wire.PSNDiff(psn, q.next) >= 0 || wire.PSNDiff(psn, q.una) < 0 && !q.mayLack(psn) {
			continue
		}
		if found != nil {
			return nil
		}
		found = f
	}
	if found != nil {
		a.connect(w, found)
		q, o := &found.req, w.rsp.orphan
		// Until now several requesters may have sent the PSN.
		if s := q.at(o.psn); o.number != 0 && s != nil && s.number > o.number && wire.PSNDiff(o.psn, q.first) >= 0 {
			a.report(doubtful, w, o.number, "answers PSN %d before the capture has it", o.psn)
		}
	}
	return found
}

// mayLack reports whether a PSN may belong to packets in front of the first one of the capture:
// that one does not begin a message, and nothing is acknowledged.
func (q *requester) mayLack(psn uint32) bool {
	return q.midst && q.una == q.first && wire.PSNDiff(psn, q.first) < 0 && wire.PSNDiff(psn, q.first) > -maxRing
}

// makeRoom evicts the quarter of the flows that were idle longest.
func (a *analysis) makeRoom() {
	oldest, newest := int64(1<<62), int64(-1<<62)
	for _, w := range a.flows {
		oldest, newest = min(oldest, w.last), max(newest, w.last)
	}
	limit := oldest + (newest-oldest)/4
	for n := 0; n < maxFlows/4; limit += (newest-oldest)/4 + 1 {
		for _, w := range a.flows {
			if w.last <= limit && n < maxFlows/2 {
				a.forget(w)
				n++
			}
		}
	}
}

// forget finishes a flow and removes it.
func (a *analysis) forget(w *flow) {
	a.finish(w)
	a.out.statistics(a, w)
	a.dropped++
	a.paired(w)
	if w.peer != nil {
		w.peer.peer = nil
	}
	delete(a.flows, w.flowKey)
	a.remembered -= max(len(w.req.ring)-firstRing, 0)
	a.discard(&w.prefix)
	a.endUpper(w.upper)
	if a.lastFlow == w {
		a.lastFlow = nil
	}
}
