package roce

import (
	"net/netip"

	"github.com/softrnic/softrnic/verbs"
)

// Beside the path: a host has left the network, so that nobody answers any more.

// Left fails the QPs whose requests a host that has left will not answer, as their retries would do later. A QP without
// requests learns of it as with any other peer: by its connection manager, or by the next request.
func (e *Engine) Left(addr netip.Addr) {
	for _, q := range e.qps.All() {
		q.h.Lock()
		if !q.destroyed && q.reliable() && sends(q.h.State()) && q.h.SendLen() > 0 && q.path != nil && q.path.Ends().Dst == addr {
			q.e.Counters.RetryExceeded.Add(1)
			q.failSend(verbs.WCRetryExcErr)
		}
		q.unlock()
	}
}
