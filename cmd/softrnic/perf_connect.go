package main

import (
	"context"
	"errors"
	"net/netip"
	"sync"

	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// perfConnects is a side that makes connections and ends them, as cmtime does.
type perfConnects struct {
	node     *node
	plan     *perfPlan
	client   bool
	pd       *verbs.PD
	cq       *verbs.CQ
	listener *rdmacm.Listener
	server   netip.AddrPort
	ways     []*perfConnectLane
}

func newPerfConnects(n *node, p *perfPlan, client bool) (c *perfConnects, err error) {
	c = &perfConnects{node: n, plan: p, client: client}
	for range p.Threads {
		c.ways = append(c.ways, &perfConnectLane{side: c, metered: newPerfMeter(p)})
	}
	if c.pd, err = n.dev.AllocPD(); err != nil {
		return c, err
	}
	if c.cq, err = n.dev.CreateCQ(1, nil); err != nil {
		return c, errors.Join(err, c.Close())
	}
	return c, nil
}

func (c *perfConnects) lanes() (all []perfLane) {
	for _, l := range c.ways {
		all = append(all, l)
	}
	return all
}

// config is that of all QPs: nothing is sent on them.
func (c *perfConnects) config() *rdmacm.Config {
	return &rdmacm.Config{Transport: c.plan.transport(), PD: c.pd, SendCQ: c.cq, RecvCQ: c.cq,
		Cap: verbs.QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}}
}

func (c *perfConnects) listen() (err error) {
	c.listener, err = rdmacm.Listen(c.node.dev, ":0", c.config())
	return err
}

// accept and dial leave it to the lanes.
func (c *perfConnects) accept(context.Context) error { return nil }

func (c *perfConnects) dial(_ context.Context, server netip.AddrPort) error {
	c.server = server
	return nil
}

func (c *perfConnects) offer() *perfOffer {
	o := &perfOffer{}
	if c.listener != nil {
		o.Port = c.listener.Addr().Port()
	}
	return o
}

func (c *perfConnects) prepare(*perfOffer) {}

func (c *perfConnects) gone() <-chan struct{} { return nil }

func (c *perfConnects) Close() error {
	var errs []error
	if c.listener != nil {
		errs = append(errs, c.listener.Close())
	}
	if c.cq != nil {
		errs = append(errs, c.cq.Destroy())
	}
	if c.pd != nil {
		errs = append(errs, c.pd.Dealloc())
	}
	return errors.Join(errs...)
}

// perfConnectLane is a goroutine that connects, or accepts.
type perfConnectLane struct {
	side    *perfConnects
	metered *perfMeter
	made    int64 // since the side was
}

func (l *perfConnectLane) meter() *perfMeter { return l.metered }

func (l *perfConnectLane) reset() { l.metered = newPerfMeter(l.side.plan) }

func (l *perfConnectLane) sent(counts []int64) { counts[0] += l.made }

func (l *perfConnectLane) over([]int64) error { return nil }

func (l *perfConnectLane) done() {}

func (l *perfConnectLane) run(phase *perfPhase) error {
	if l.side.client {
		err := l.connect(phase)
		if err != nil {
			return err
		}
		return phase.sent()
	}
	if err := phase.sent(); err != nil {
		return err
	}
	return l.accept(phase)
}

// connect makes one connection after the other.
func (l *perfConnectLane) connect(phase *perfPhase) error {
	l.metered.start()
	for n := int64(0); phase.iters > 0 && n < phase.iters || phase.iters == 0 && l.metered.elapsed() < phase.duration; n++ {
		began := l.metered.elapsed()
		conn, err := rdmacm.Dial(phase.ctx, l.side.node.dev, l.side.server.String(), l.side.config())
		if err != nil {
			return err
		}
		l.metered.record(l.metered.elapsed() - began)
		l.made++
		if err := conn.Close(); err != nil {
			return err
		}
	}
	l.metered.stop()
	return nil
}

// accept takes connections until the peer has made all of its own. Each ends when the peer ends it.
func (l *perfConnectLane) accept(phase *perfPhase) error {
	var open sync.WaitGroup
	defer open.Wait()
	for {
		conn, err := l.side.listener.Accept(phase.untilSent)
		if err != nil {
			if phase.untilSent.Err() != nil {
				err = phase.ctx.Err()
			}
			return err
		}
		open.Go(func() {
			select {
			case <-conn.Done():
			case <-phase.ctx.Done():
			}
			_ = conn.Close()
		})
	}
}
