package roce

// On the path: beside it. Congestion control by delay needs to know how long a round trip takes
// where nothing waits; the connections to one address find that out together.

import (
	"net/netip"
	"sync"

	"github.com/softrnic/softrnic/rdmatransport/internal/roce/send"
	"github.com/softrnic/softrnic/rdmatransport/roce"
)

// byDelay is what an engine's connections have in common if they control congestion by delay.
type byDelay struct {
	queued float64 // packets that a connection keeps in the queues

	mu    sync.Mutex
	bases map[netip.Addr]*base
}

type base struct {
	send.BaseRTT
	addr netip.Addr
	refs int // connections
}

const defaultQueued = 2

func newByDelay(cfg *roce.ByDelay) *byDelay {
	return &byDelay{queued: float64(positive(cfg.Queued, defaultQueued)), bases: make(map[netip.Addr]*base)}
}

// take is the base of an address, which the caller gives back.
func (c *byDelay) take(addr netip.Addr) *base {
	c.mu.Lock()
	defer c.mu.Unlock()
	b := c.bases[addr]
	if b == nil {
		b = &base{addr: addr}
		c.bases[addr] = b
	}
	b.refs++
	return b
}

func (c *byDelay) give(b *base) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if b.refs--; b.refs == 0 {
		delete(c.bases, b.addr)
	}
}

// congestion is the congestion controller of a connection that enters RTS.
func (q *qp) congestion() send.CongestionController {
	c := q.e.byDelay
	if c == nil {
		return send.Conservation{}
	}
	p := q.pacer()
	if p.base == nil {
		p.base = c.take(q.ends.Dst)
	}
	p.spread = &q.sending
	return send.NewByDelay(c.queued, &p.base.BaseRTT)
}

// endCongestion gives back what congestion took.
func (q *qp) endCongestion() {
	if p := q.pace; p != nil && p.base != nil {
		q.e.byDelay.give(p.base)
		p.base, p.spread = nil, nil
	}
}
