package rocetransport

import (
	"net/netip"
	"time"

	"github.com/softrnic/softrnic/verbs"
)

// Control path: a host has left the network.

// hostLeftGrace is the time that outstanding requests wait after their host has left, before they
// fail. Two programs often end at about the same time, with requests that no longer matter. During
// this time they can end without errors. On hardware, requests fail only when their retries are
// exhausted.
const hostLeftGrace = 500 * time.Millisecond

// HostLeft fails the requests that are outstanding at a host that has left, before their retries
// are exhausted. A QP without outstanding requests detects the departure by the connection manager
// or by its next request.
func (e *Engine) HostLeft(addr netip.Addr) {
	type waiting struct {
		q         *qp
		dest, una uint32
	}
	var affected []waiting
	for _, q := range e.qps.All() {
		q.h.Lock()
		if q.awaitsHost(addr) {
			affected = append(affected, waiting{q, q.dest, q.sending.Una()})
		}
		q.unlockOnly()
	}
	if len(affected) == 0 {
		return
	}
	e.timers.Clock().AfterFunc(hostLeftGrace, func() {
		for _, w := range affected {
			q := w.q
			q.h.Lock()
			// This excludes QPs that are connected to a new host at the address.
			if q.awaitsHost(addr) && q.dest == w.dest && q.sending.Una() == w.una {
				q.e.Counters.RetryExceeded.Add(1)
				q.failSend(verbs.WCRetryExcErr)
			}
			q.sendDueAndUnlock()
		}
	})
}

// awaitsHost reports whether the QP, which is locked, has requests outstanding at a host.
func (q *qp) awaitsHost(addr netip.Addr) bool {
	return !q.destroyed && q.reliable() && sends(q.h.State()) && q.h.SendLen() > 0 && q.path != nil && q.path.Ends().Dst == addr
}
