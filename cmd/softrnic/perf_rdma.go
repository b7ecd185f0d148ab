package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"

	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// perfRDMA is a side with QPs.
type perfRDMA struct {
	node     *node
	plan     *perfPlan
	client   bool
	pd       *verbs.PD
	mr       *verbs.MR
	ways     []*perfRDMALane
	listener *rdmacm.Listener
	seed     uint64
	// peer is what the peer sends, where data is verified; laid out as the local memory.
	peer []byte
}

func newPerfRDMA(n *node, p *perfPlan, client bool) (r *perfRDMA, err error) {
	r = &perfRDMA{node: n, plan: p, client: client, seed: rand.Uint64()}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.Close())
		}
	}()
	if r.pd, err = n.dev.AllocPD(); err != nil {
		return r, err
	}
	buf := touched(int(p.memory()) + p.QPs) // and a byte for each QP's flushes
	p.fill(buf, r.seed)
	const access = verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessRemoteRead | verbs.AccessRemoteAtomic
	if r.mr, err = r.pd.RegMR(buf, access); err != nil {
		return r, err
	}
	for i := range p.Threads {
		l := &perfRDMALane{side: r, wcs: make([]verbs.WC, perfPoll), metered: newPerfMeter(p)}
		// Sends, credits sent, a flush, and receives.
		qps := (p.QPs - i + p.Threads - 1) / p.Threads
		if l.cq, err = newWaiter(n.dev, qps*(p.Depth+2*perfCredits+p.receives()), p.Wait); err != nil {
			return r, err
		}
		r.ways = append(r.ways, l)
	}
	return r, nil
}

// perfPoll is the number of completions to take at a time.
const perfPoll = 64

// touched is n bytes of memory that has been written to: what never was is all one page, which is always in the cache.
func touched(n int) []byte {
	b := make([]byte, n)
	for i := 0; i < n; i += os.Getpagesize() {
		b[i] = 0
	}
	return b
}

// fill makes what a side has in its slots to send from: noise, if it is to be looked at.
func (p *perfPlan) fill(buf []byte, seed uint64) {
	if !p.Verify || p.Op == perfAtomic {
		return
	}
	var key [32]byte
	binary.NativeEndian.PutUint64(key[:], seed)
	noise := rand.NewChaCha8(key)
	for i := range p.QPs {
		_, _ = noise.Read(buf[i*p.block():][:p.txSlots()*p.stride()]) // never fails
	}
}

func (r *perfRDMA) lanes() (all []perfLane) {
	for _, l := range r.ways {
		all = append(all, l)
	}
	return all
}

func (r *perfRDMA) listen() (err error) {
	r.listener, err = rdmacm.Listen(r.node.dev, ":0", &rdmacm.Config{Transport: r.plan.transport(), Backlog: r.plan.QPs})
	return err
}

func (r *perfRDMA) accept(ctx context.Context) error {
	for i := range r.plan.QPs {
		req, err := r.listener.Request(ctx)
		if err != nil {
			return err
		}
		conn, err := req.Accept(ctx, r.config(i))
		if err != nil {
			return err
		}
		r.qp(i).conn = conn
	}
	return nil
}

func (r *perfRDMA) dial(ctx context.Context, server netip.AddrPort) (err error) {
	for i := range r.plan.QPs {
		conn, err := rdmacm.Dial(ctx, r.node.dev, server.String(), r.config(i))
		if err != nil {
			return fmt.Errorf("QP %d: %w", i, err)
		}
		r.qp(i).conn = conn
	}
	return nil
}

// lane is where the i-th QP belongs, qp the QP itself.
func (r *perfRDMA) lane(i int) *perfRDMALane { return r.ways[i%len(r.ways)] }
func (r *perfRDMA) qp(i int) *perfQP         { return r.lane(i).qps[i/len(r.ways)] }

// config is that of the i-th QP, which becomes part of its lane when it is made.
func (r *perfRDMA) config(i int) *rdmacm.Config {
	p, l := r.plan, r.lane(i)
	size := verbs.QPCap{MaxSendWR: p.Depth + 2*perfCredits, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}
	if p.Op == perfSend {
		size.MaxRecvWR = p.receives()
	}
	return &rdmacm.Config{
		Transport: p.transport(), PD: r.pd, SendCQ: l.cq.cq, RecvCQ: l.cq.cq, Cap: size,
		Prepare: func(c *rdmacm.Conn) error {
			q := newPerfQP(l, i, c.QP())
			l.qps = append(l.qps, q)
			return q.postFirst()
		},
	}
}

func (r *perfRDMA) offer() *perfOffer {
	o := &perfOffer{Addr: r.mr.Addr(), RKey: r.mr.RKey(), Seed: r.seed}
	if r.listener != nil {
		o.Port = r.listener.Addr().Port()
	}
	return o
}

func (r *perfRDMA) prepare(peer *perfOffer) {
	if r.plan.Verify && r.plan.Op != perfAtomic {
		r.peer = make([]byte, r.plan.memory())
		r.plan.fill(r.peer, peer.Seed)
	}
	for _, l := range r.ways {
		for _, q := range l.qps {
			q.meet(peer)
		}
	}
}

func (r *perfRDMA) gone() <-chan struct{} { return r.qp(0).conn.Done() }

// Close undoes newPerfRDMA, however far that got.
func (r *perfRDMA) Close() error {
	var errs []error
	for _, l := range r.ways {
		for _, q := range l.qps {
			if q.conn != nil {
				errs = append(errs, q.conn.Close())
			}
		}
	}
	if r.listener != nil {
		errs = append(errs, r.listener.Close())
	}
	for _, l := range r.ways {
		errs = append(errs, l.cq.Close())
	}
	if r.mr != nil {
		errs = append(errs, r.mr.Dereg())
	}
	if r.pd != nil {
		errs = append(errs, r.pd.Dealloc())
	}
	return errors.Join(errs...)
}
