package roce

import (
	"net/netip"
	"time"

	"github.com/softrnic/softrnic/verbs"
)

// Beside the path: a host has left the network, so that nobody answers any more.

// farewell is how long requests that are outstanding when a host has left wait before they fail.
// Two programs that are done end at about the same time, often with requests that nobody waits for
// any more: they have so long to end, as with hardware, where requests fail when their retries are
// over.
const farewell = 500 * time.Millisecond

// Left fails the QPs whose requests a host that has left will not answer, as their retries would do
// later. A QP without requests learns of it as with any other peer: by its connection manager, or
// by the next request.
func (e *Engine) Left(addr netip.Addr) {
	type waiting struct {
		q         *qp
		dest, una uint32
	}
	var left []waiting
	for _, q := range e.qps.All() {
		q.h.Lock()
		if q.asks(addr) {
			left = append(left, waiting{q, q.dest, q.sending.Una()})
		}
		q.h.Unlock()
	}
	if len(left) == 0 {
		return
	}
	time.AfterFunc(farewell, func() {
		for _, w := range left {
			q := w.q
			q.h.Lock()
			if q.asks(addr) && q.dest == w.dest && q.sending.Una() == w.una { // and not those of a new host at the address
				q.e.Counters.RetryExceeded.Add(1)
				q.failSend(verbs.WCRetryExcErr)
			}
			q.unlock()
		}
	})
}

// asks reports whether the QP, which is locked, has requests that a host has not answered.
func (q *qp) asks(addr netip.Addr) bool {
	return !q.destroyed && q.reliable() && sends(q.h.State()) && q.h.SendLen() > 0 && q.path != nil && q.path.Ends().Dst == addr
}
