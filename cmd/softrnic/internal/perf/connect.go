package perf

import (
	"context"
	"errors"
	"net/netip"
	"sync"

	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"

	"github.com/softrnic/softrnic/cmd/internal/cli"
	"github.com/softrnic/softrnic/cmd/internal/node"
)

// connects is a side that makes and ends connections, as librdmacm's cmtime does.
type connects struct {
	node     *node.Node
	plan     *plan
	client   bool
	pd       *verbs.PD
	cq       *verbs.CQ
	listener *rdmacm.Listener
	server   netip.AddrPort
	ways     []*connectLane
}

func newConnects(n *node.Node, p *plan, client bool) (c *connects, err error) {
	c = &connects{node: n, plan: p, client: client}
	for range p.Threads {
		c.ways = append(c.ways, &connectLane{side: c, metered: newMeter(p)})
	}
	if c.pd, err = n.Dev.AllocPD(); err != nil {
		return c, err
	}
	if c.cq, err = n.Dev.CreateCQ(1, nil); err != nil {
		return c, errors.Join(err, c.Close())
	}
	return c, nil
}

// config returns the configuration of all connections. Nothing is sent on their QPs.
func (c *connects) config() *rdmacm.Config {
	return &rdmacm.Config{Transport: c.plan.transport(), PD: c.pd, SendCQ: c.cq, RecvCQ: c.cq,
		Cap: verbs.QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}}
}

func (c *connects) listen() (err error) {
	c.listener, err = rdmacm.Listen(c.node.Dev, ":0", c.config())
	return err
}

// accept does nothing: the lanes connect.
func (c *connects) accept(context.Context) error { return nil }

func (c *connects) dial(_ context.Context, server netip.AddrPort) error {
	c.server = server
	return nil
}

func (c *connects) offer() *offer {
	o := &offer{}
	if c.listener != nil {
		o.Port = c.listener.Addr().Port()
	}
	return o
}

func (c *connects) prepare(*offer) {}

func (c *connects) gone() <-chan struct{} { return nil }

func (c *connects) Close() error {
	return errors.Join(cli.Close(c.listener), cli.Close(c.cq), cli.Close(c.pd))
}

// connectLane is a goroutine that connects or accepts.
type connectLane struct {
	side    *connects
	metered *meter
	made    int64 // connections since the side was created
}

func (l *connectLane) meter() *meter { return l.metered }

func (l *connectLane) reset() { l.metered = newMeter(l.side.plan) }

func (l *connectLane) sent(counts []int64) { counts[0] += l.made }

func (l *connectLane) over([]int64) error { return nil }

func (l *connectLane) done() {}

func (l *connectLane) run(phase *phase) error {
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
func (l *connectLane) connect(phase *phase) error {
	l.metered.start()
	for n := int64(0); phase.iters > 0 && n < phase.iters || phase.iters == 0 && l.metered.elapsed() < phase.duration; n++ {
		began := l.metered.elapsed()
		conn, err := rdmacm.Dial(phase.ctx, l.side.node.Dev, l.side.server.String(), l.side.config())
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

// accept accepts connections until the peer has made all of its connections. The peer ends each
// connection.
func (l *connectLane) accept(phase *phase) error {
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
