package perf

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

	"github.com/softrnic/softrnic/cmd/internal/cli"
	"github.com/softrnic/softrnic/cmd/internal/node"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/completion"
)

// rdma is a side with QPs.
type rdma struct {
	node     *node.Node
	plan     *plan
	client   bool
	pd       *verbs.PD
	mr       *verbs.MR
	ways     []*rdmaLane
	listener *rdmacm.Listener
	seed     uint64
	// peer has the peer's data if data is verified, in the layout of the local memory.
	peer []byte
}

func newRDMA(n *node.Node, p *plan, client bool) (r *rdma, err error) {
	r = &rdma{node: n, plan: p, client: client, seed: rand.Uint64()}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.Close())
		}
	}()
	if r.pd, err = n.Dev.AllocPD(); err != nil {
		return r, err
	}
	buf := touched(int(p.memory()) + p.QPs) // plus one byte per QP for flushes
	p.fill(buf, r.seed)
	const access = verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessRemoteRead | verbs.AccessRemoteAtomic
	if r.mr, err = r.pd.RegMREx(&verbs.MRInitAttr{Buf: buf, Access: access, Mapped: p.Mapped}); err != nil {
		return r, err
	}
	for i := range p.Threads {
		l := &rdmaLane{side: r, wcs: make([]verbs.WC, pollBatch), metered: newMeter(p)}
		// Sends, sent credits, a flush, and receives.
		qps := (p.QPs - i + p.Threads - 1) / p.Threads
		if l.cq, err = completion.NewWaiter(n.Dev, qps*(p.Depth+2*creditsInFlight+p.receives()), p.Wait); err != nil {
			return r, err
		}
		r.ways = append(r.ways, l)
	}
	return r, nil
}

// pollBatch is the most completions of a poll.
const pollBatch = 64

// touched returns n bytes of memory that has been written. Memory that was never written maps to a
// single page of zeros, which is always in the cache.
func touched(n int) []byte {
	b := make([]byte, n)
	for i := 0; i < n; i += os.Getpagesize() {
		b[i] = 0
	}
	return b
}

// fill fills a side's send slots, with random data if data is verified.
func (p *plan) fill(buf []byte, seed uint64) {
	if !p.Verify || p.Op == opAtomic {
		return
	}
	var key [32]byte
	binary.NativeEndian.PutUint64(key[:], seed)
	noise := rand.NewChaCha8(key)
	for i := range p.QPs {
		_, _ = noise.Read(buf[i*p.block():][:p.txSlots()*p.stride()]) // never fails
	}
}

func (r *rdma) listen() (err error) {
	r.listener, err = rdmacm.Listen(r.node.Dev, ":0", &rdmacm.Config{Transport: r.plan.transport(), Backlog: r.plan.QPs})
	return err
}

func (r *rdma) accept(ctx context.Context) error {
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

func (r *rdma) dial(ctx context.Context, server netip.AddrPort) (err error) {
	for i := range r.plan.QPs {
		conn, err := rdmacm.Dial(ctx, r.node.Dev, server.String(), r.config(i))
		if err != nil {
			return fmt.Errorf("QP %d: %w", i, err)
		}
		r.qp(i).conn = conn
	}
	return nil
}

// lane and qp return the lane of the i-th QP and the QP.
func (r *rdma) lane(i int) *rdmaLane { return r.ways[i%len(r.ways)] }
func (r *rdma) qp(i int) *queuePair  { return r.lane(i).qps[i/len(r.ways)] }

// config returns the configuration of the i-th connection. Its QP is added to its lane when it is
// created.
func (r *rdma) config(i int) *rdmacm.Config {
	p, l := r.plan, r.lane(i)
	size := verbs.QPCap{MaxSendWR: p.Depth + 2*creditsInFlight, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}
	if p.Op == opSend {
		size.MaxRecvWR = p.receives()
	}
	return &rdmacm.Config{
		Transport: p.transport(), PD: r.pd, SendCQ: l.cq.CQ, RecvCQ: l.cq.CQ, Cap: size,
		Prepare: func(c *rdmacm.Conn) error {
			q := newQueuePair(l, i, c.QP())
			l.qps = append(l.qps, q)
			return q.postFirst()
		},
	}
}

func (r *rdma) offer() *offer {
	o := &offer{Addr: r.mr.Addr(), RKey: r.mr.RKey(), Seed: r.seed}
	if r.listener != nil {
		o.Port = r.listener.Addr().Port()
	}
	return o
}

func (r *rdma) prepare(peer *offer) {
	if r.plan.Verify && r.plan.Op != opAtomic {
		r.peer = make([]byte, r.plan.memory())
		r.plan.fill(r.peer, peer.Seed)
	}
	for _, l := range r.ways {
		for _, q := range l.qps {
			q.setPeer(peer)
		}
	}
}

func (r *rdma) gone() <-chan struct{} { return r.qp(0).conn.Done() }

// Close closes the objects of newRDMA, even if it has failed midway.
func (r *rdma) Close() error {
	var errs []error
	for _, l := range r.ways {
		for _, q := range l.qps {
			errs = append(errs, cli.Close(q.conn))
		}
	}
	errs = append(errs, cli.Close(r.listener))
	for _, l := range r.ways {
		errs = append(errs, l.cq.Close())
	}
	return errors.Join(append(errs, cli.Close(r.mr), cli.Close(r.pd))...)
}
