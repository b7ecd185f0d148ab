package roce

// On the path: beside it. Copa, congestion control by delay, needs to know how long a round trip takes where nothing waits; the
// connections to one address find that out together.

import (
	"net/netip"
	"sync"

	"github.com/softrnic/softrnic/rdmatransport/internal/roce/send"
	"github.com/softrnic/softrnic/rdmatransport/roce"
)

// copa is what an engine's connections have in common if they control congestion by delay.
type copa struct {
	delta float64

	mu    sync.Mutex
	bases map[netip.Addr]*base
}

type base struct {
	send.Base
	addr netip.Addr
	refs int // connections
}

const defaultDelta = 0.5

func newCopa(cfg *roce.Copa) *copa {
	return &copa{delta: positive(cfg.Delta, defaultDelta), bases: make(map[netip.Addr]*base)}
}

// take is the base of an address, which the caller gives back.
func (c *copa) take(addr netip.Addr) *base {
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

func (c *copa) give(b *base) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if b.refs--; b.refs == 0 {
		delete(c.bases, b.addr)
	}
}

// congestion is the congestion controller of a connection that enters RTS.
func (q *qp) congestion() send.CongestionController {
	c := q.e.copa
	if c == nil {
		return send.Conservation{}
	}
	p := q.pacer()
	if p.base == nil {
		p.base = c.take(q.ends.Dst)
	}
	p.spread = &q.sending
	return send.NewCopa(c.delta, &p.base.Base)
}

// endCongestion gives back what congestion took.
func (q *qp) endCongestion() {
	if p := q.pace; p != nil && p.base != nil {
		q.e.copa.give(p.base)
		p.base, p.spread = nil, nil
	}
}
