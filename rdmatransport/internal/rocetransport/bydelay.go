package rocetransport

// Congestion control by delay needs the round-trip time with empty queues. All connections to one
// address share the measurement of it.

import (
	"cmp"
	"net/netip"
	"sync"

	"github.com/softrnic/softrnic/rdmatransport/internal/rocetransport/send"
	"github.com/softrnic/softrnic/rdmatransport/roce"
)

// byDelay is the state of congestion control by delay that an engine's connections share.
type byDelay struct {
	minQueued float64 // packets that a connection keeps queued

	mu       sync.Mutex
	baseRTTs map[netip.Addr]*baseRTT
}

type baseRTT struct {
	send.BaseRTT
	addr netip.Addr
	refs int // connections
}

const defaultQueued = 2

func newByDelay(cfg *roce.ByDelay) *byDelay {
	return &byDelay{minQueued: float64(cmp.Or(cfg.Queued, defaultQueued)), baseRTTs: make(map[netip.Addr]*baseRTT)}
}

// get returns the state of an address, with a reference for the caller.
func (c *byDelay) get(addr netip.Addr) *baseRTT {
	c.mu.Lock()
	defer c.mu.Unlock()
	b := c.baseRTTs[addr]
	if b == nil {
		b = &baseRTT{addr: addr}
		c.baseRTTs[addr] = b
	}
	b.refs++
	return b
}

func (c *byDelay) put(b *baseRTT) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if b.refs--; b.refs == 0 {
		delete(c.baseRTTs, b.addr)
	}
}

// congestion returns the congestion controller of a connection that enters RTS.
func (q *qp) congestion() send.CongestionController {
	c := q.e.byDelay
	if c == nil {
		return send.Conservation{}
	}
	p := q.pacer()
	if p.baseRTT == nil {
		p.baseRTT = c.get(q.ends.Dst)
	}
	p.sending = &q.sending
	return send.NewByDelay(c.minQueued, &p.baseRTT.BaseRTT)
}

// endCongestion releases the reference of congestion.
func (q *qp) endCongestion() {
	if p := q.pace; p != nil && p.baseRTT != nil {
		q.e.byDelay.put(p.baseRTT)
		p.baseRTT, p.sending = nil, nil
	}
}
