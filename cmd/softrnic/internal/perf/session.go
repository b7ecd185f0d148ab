package perf

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/softrnic/softrnic/verbs"

	"github.com/softrnic/softrnic/cmd/internal/node"
)

// errDisconnected ends a measurement if the peer has disconnected and not sent a reason within
// disconnectWait.
var errDisconnected = errors.New("the peer has disconnected")

const disconnectWait = 2 * time.Second

// runClient makes one measurement. shared means that the server is in this process.
func runClient(ctx context.Context, n *node.Node, server netip.Addr, ctl *control, p *plan, shared bool) (r *result, err error) {
	if err := p.check(); err != nil {
		return nil, err
	}
	if err := ctl.send(&message{Plan: p}); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = ctl.report(node.Cause(ctx, err))
		}
	}()
	m, err := ctl.expect("offer", func(m *message) bool { return m.Offer != nil })
	if err != nil {
		return nil, err
	}
	side, err := newSide(n, p, true)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, side.Close()) }()
	if err := side.dial(ctx, netip.AddrPortFrom(server, m.Offer.Port)); err != nil {
		return nil, err
	}
	if err := ctl.send(&message{Offer: side.offer()}); err != nil {
		return nil, err
	}
	if _, err := ctl.expect("readiness", func(m *message) bool { return m.Ready }); err != nil {
		return nil, err
	}
	side.prepare(m.Offer)
	own, err := side.play(ctx, ctl)
	if err != nil {
		return nil, err
	}
	if m, err = ctl.expect("result", func(m *message) bool { return m.Result != nil }); err != nil {
		return nil, err
	}
	own.merge(m.Result, shared)
	return own, ctl.send(&message{Result: own})
}

// serve waits on l, which it closes, for one client and makes the client's measurements. add is
// called with the client's results.
func serve(ctx context.Context, n *node.Node, l net.Listener, add func(*result)) error {
	stop := node.CloseWhenDone(ctx, l)
	conn, err := l.Accept()
	stop()
	_ = l.Close() // there is one client only
	if err != nil {
		return node.Cause(ctx, fmt.Errorf("accept on %v: %w", l.Addr(), err))
	}
	ctl := newControl(conn)
	defer ctl.Close()
	defer ctl.interrupt(ctx)()
	for {
		m, err := ctl.receive()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil && m.Plan == nil {
			err = errors.New("the peer sent something else than a plan (is it the same version?)")
		}
		var r *result
		if err == nil {
			r, err = answer(ctx, n, ctl, m.Plan)
		}
		if err != nil {
			return ctl.report(node.Cause(ctx, err))
		}
		if add != nil {
			add(r)
		}
	}
}

// answer returns the server's part of one measurement. It returns the client's result.
func answer(ctx context.Context, n *node.Node, ctl *control, p *plan) (r *result, err error) {
	if err := p.check(); err != nil {
		return nil, err
	}
	side, err := newSide(n, p, false)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, side.Close()) }()
	if err := side.listen(); err != nil {
		return nil, err
	}
	if err := ctl.send(&message{Offer: side.offer()}); err != nil {
		return nil, err
	}
	// A client that fails to connect reports it here.
	said := make(chan error, 1)
	accepting, cancel := context.WithCancel(ctx)
	defer cancel()
	var m *message
	go func() {
		var err error
		if m, err = ctl.expect("offer", func(m *message) bool { return m.Offer != nil }); err != nil {
			cancel()
		}
		said <- err
	}()
	acceptErr := side.accept(accepting)
	if acceptErr != nil && ctx.Err() == nil && accepting.Err() == nil {
		return nil, acceptErr
	}
	if err := <-said; err != nil {
		return nil, err
	}
	if acceptErr != nil {
		return nil, acceptErr
	}
	side.prepare(m.Offer)
	if err := ctl.send(&message{Ready: true}); err != nil {
		return nil, err
	}
	own, err := side.play(ctx, ctl)
	if err != nil {
		return nil, err
	}
	if err := ctl.send(&message{Result: own}); err != nil {
		return nil, err
	}
	if m, err = ctl.expect("result", func(m *message) bool { return m.Result != nil }); err != nil {
		return nil, err
	}
	m.Result.asSeenBy(own)
	return m.Result, nil
}

// play runs the warm-up and the measurement on both sides once they are connected.
func (s *side) play(ctx context.Context, ctl *control) (*result, error) {
	if s.plan.Warmup > 0 {
		if err := s.run(ctx, ctl, &phase{duration: s.plan.Warmup}); err != nil {
			return nil, err
		}
	}
	for _, l := range s.lanes {
		l.reset()
	}
	packets, without := s.traffic()
	cpu := cpuTime()
	phase := &phase{iters: s.plan.Iters, duration: s.plan.Duration}
	if err := s.run(ctx, ctl, phase); err != nil {
		return nil, err
	}
	cpu = cpuTime() - cpu
	r := s.result(cpu, phase.mallocs)
	if p, w := s.traffic(); s.node.Wire != nil && s.plan.Over != overKernel {
		p -= packets
		r.Packets, r.Without = &p, w-without
	}
	return r, nil
}

// traffic returns the number of packets on the node's link, if counted, and the number of the
// node's messages on the direct path.
func (s *side) traffic() (packets, without uint64) {
	if s.node.Wire == nil {
		return 0, 0
	}
	counters, _ := s.node.Dev.HWCounters() // the device is open
	return s.node.Wire.Packets.Load(), counters["direct_msgs"] + counters["iwarp_direct_msgs"]
}

// side is one side of a measurement.
type side struct {
	ends
	node  *node.Node
	plan  *plan
	lanes []lane
}

// ends are the QPs or streams of one side.
type ends interface {
	// listen and accept are called on the server, dial on the client.
	listen() error
	accept(ctx context.Context) error
	dial(ctx context.Context, server netip.AddrPort) error
	// offer returns the parameters of this side for the peer. prepare is called with the peer's
	// offer.
	offer() *offer
	prepare(*offer)
	// gone is closed when the peer has ended one of the connections. It is nil if that is not
	// detected.
	gone() <-chan struct{}
	Close() error
}

// lane is a goroutine with its share of the connections.
type lane interface {
	// run sends and receives until the phase is over.
	run(*phase) error
	// over is called when all messages of the peer have arrived. It returns an error if the data is
	// wrong.
	over(peerSent []int64) error
	// done is called when the peer has received all messages of this side.
	done()
	// sent adds the number of messages sent on each connection.
	sent(counts []int64)
	// reset resets the meter.
	reset()
	meter() *meter
}

func newSide(n *node.Node, p *plan, client bool) (*side, error) {
	if p.Op == opConnect {
		ends, err := newConnects(n, p, client)
		if err != nil {
			return nil, err
		}
		return &side{ends, n, p, lanesOf(ends.ways)}, nil
	}
	if p.stream() {
		ends := newTCP(n, p, client)
		return &side{ends, n, p, lanesOf(ends.ways)}, nil
	}
	ends, err := newRDMA(n, p, client)
	if err != nil {
		return nil, err
	}
	return &side{ends, n, p, lanesOf(ends.ways)}, nil
}

// lanesOf returns lanes of one kind as lanes.
func lanesOf[L lane](ways []L) (all []lane) {
	for _, l := range ways {
		all = append(all, l)
	}
	return all
}

// sent returns the number of messages on each connection since it was created.
func (s *side) sent() []int64 {
	counts := make([]int64, s.plan.QPs)
	for _, l := range s.lanes {
		l.sent(counts)
	}
	return counts
}

// phase is the warm-up or the measurement.
type phase struct {
	iters    int64 // for each QP; 0: for duration
	duration time.Duration

	ctx context.Context
	// untilSent also ends when the peer has announced its number of messages.
	untilSent context.Context
	peerSent  atomic.Pointer[[]int64]
	sending   atomic.Int32 // lanes that still send
	announce  func() error // called when the last lane has sent all messages
	mallocs   uint64       // objects allocated by this process while the lanes ran
}

// sent is called by a lane that has sent all messages.
func (p *phase) sent() error {
	if p.sending.Add(-1) == 0 {
		return p.announce()
	}
	return nil
}

// run runs all lanes until both sides have received all messages.
func (s *side) run(ctx context.Context, ctl *control, p *phase) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	fail := func(err error) {
		if err != nil {
			cancel(err)
			_ = ctl.report(context.Cause(ctx))
		}
	}
	p.ctx = ctx
	var wake context.CancelFunc
	p.untilSent, wake = context.WithCancel(ctx)
	defer wake()
	p.sending.Store(int32(len(s.lanes)))
	p.announce = func() error { return ctl.send(&message{Sent: s.sent()}) }

	// A peer that has disconnected sends the reason over the control connection.
	awaitReason := func() {
		select {
		case <-ctx.Done():
		case <-time.After(disconnectWait):
		}
	}
	var peer, lanes sync.WaitGroup
	peer.Go(func() {
		m, err := ctl.expect("count", func(m *message) bool {
			return len(m.Sent) == s.plan.QPs && !slices.ContainsFunc(m.Sent, func(n int64) bool { return n < 0 })
		})
		if err == nil {
			p.peerSent.Store(&m.Sent)
			wake()
			_, err = ctl.expect("completion", func(m *message) bool { return m.Done })
		}
		fail(err)
	})
	mallocs := runtimeMallocs()
	for _, l := range s.lanes {
		lanes.Go(func() {
			err := l.run(p)
			if failed := (*verbs.WCError)(nil); errors.As(err, &failed) && failed.Status == verbs.WCWRFlushErr {
				awaitReason()
			}
			fail(err)
		})
	}
	go func() { // a lane that polls memory does not detect a disconnection itself
		select {
		case <-s.gone():
			if awaitReason(); ctx.Err() == nil {
				fail(errDisconnected)
			}
		case <-ctx.Done():
		}
	}()
	lanes.Wait()
	<-p.untilSent.Done()
	p.mallocs = runtimeMallocs() - mallocs
	if ctx.Err() == nil {
		for _, l := range s.lanes {
			fail(l.over(*p.peerSent.Load()))
		}
		fail(ctl.send(&message{Done: true}))
	}
	peer.Wait()
	for _, l := range s.lanes {
		l.done()
	}
	return context.Cause(ctx)
}
