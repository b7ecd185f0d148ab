package main

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
)

// runPerfClient makes one measurement. shared says that the server is in this process too.
func runPerfClient(ctx context.Context, n *node, server netip.Addr, ctl *perfControl, p *perfPlan, shared bool) (r *perfResult, err error) {
	if err := p.check(); err != nil {
		return nil, err
	}
	if err := ctl.send(&perfMessage{Plan: p}); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = ctl.report(cause(ctx, err))
		}
	}()
	m, err := ctl.expect("offer", func(m *perfMessage) bool { return m.Offer != nil })
	if err != nil {
		return nil, err
	}
	side, err := newPerfSide(n, p, true)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, side.Close()) }()
	if err := side.dial(ctx, netip.AddrPortFrom(server, m.Offer.Port)); err != nil {
		return nil, err
	}
	if err := ctl.send(&perfMessage{Offer: side.offer()}); err != nil {
		return nil, err
	}
	if _, err := ctl.expect("readiness", func(m *perfMessage) bool { return m.Ready }); err != nil {
		return nil, err
	}
	side.prepare(m.Offer)
	own, err := side.play(ctx, ctl)
	if err != nil {
		return nil, err
	}
	if m, err = ctl.expect("result", func(m *perfMessage) bool { return m.Result != nil }); err != nil {
		return nil, err
	}
	own.merge(m.Result, shared)
	return own, ctl.send(&perfMessage{Result: own})
}

// servePerf waits on l, which it closes, for one client and does what it asks for. add is given the results as the
// client has them.
func servePerf(ctx context.Context, n *node, l net.Listener, add func(*perfResult)) error {
	stop := closeWhenDone(ctx, l)
	conn, err := l.Accept()
	stop()
	_ = l.Close() // one client is all there will be
	if err != nil {
		return cause(ctx, fmt.Errorf("accept on %v: %w", l.Addr(), err))
	}
	ctl := newPerfControl(conn)
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
		var r *perfResult
		if err == nil {
			r, err = answerPerf(ctx, n, ctl, m.Plan)
		}
		if err != nil {
			return ctl.report(cause(ctx, err))
		}
		if add != nil {
			add(r)
		}
	}
}

// answerPerf is the server's part of one measurement. It returns the client's result.
func answerPerf(ctx context.Context, n *node, ctl *perfControl, p *perfPlan) (r *perfResult, err error) {
	if err := p.check(); err != nil {
		return nil, err
	}
	side, err := newPerfSide(n, p, false)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, side.Close()) }()
	if err := side.listen(); err != nil {
		return nil, err
	}
	if err := ctl.send(&perfMessage{Offer: side.offer()}); err != nil {
		return nil, err
	}
	// A client that fails to connect says so here.
	said := make(chan error, 1)
	accepting, cancel := context.WithCancel(ctx)
	defer cancel()
	var m *perfMessage
	go func() {
		var err error
		if m, err = ctl.expect("offer", func(m *perfMessage) bool { return m.Offer != nil }); err != nil {
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
	if err := ctl.send(&perfMessage{Ready: true}); err != nil {
		return nil, err
	}
	own, err := side.play(ctx, ctl)
	if err != nil {
		return nil, err
	}
	if err := ctl.send(&perfMessage{Result: own}); err != nil {
		return nil, err
	}
	if m, err = ctl.expect("result", func(m *perfMessage) bool { return m.Result != nil }); err != nil {
		return nil, err
	}
	return m.Result, nil
}

// play is what both sides do when all is connected: they warm up, then measure.
func (s *perfSide) play(ctx context.Context, ctl *perfControl) (*perfResult, error) {
	if s.plan.Warmup > 0 {
		if err := s.run(ctx, ctl, &perfPhase{duration: s.plan.Warmup}); err != nil {
			return nil, err
		}
	}
	for _, l := range s.lanes {
		l.reset()
	}
	packets, without := s.traffic()
	cpu := cpuTime()
	phase := &perfPhase{iters: s.plan.Iters, duration: s.plan.Duration}
	if err := s.run(ctx, ctl, phase); err != nil {
		return nil, err
	}
	cpu = cpuTime() - cpu
	r := s.result(cpu, phase.mallocs)
	if p, w := s.traffic(); s.node.wire != nil && s.plan.Over != overKernel {
		p -= packets
		r.Packets, r.Without = &p, w-without
	}
	return r, nil
}

// traffic is how many packets the node's link has had, if they are counted, and how many messages the node has sent without.
func (s *perfSide) traffic() (packets, without uint64) {
	if s.node.wire == nil {
		return 0, 0
	}
	counters := s.node.dev.HWCounters()
	return s.node.wire.packets.Load(), counters["direct_msgs"] + counters["iwarp_direct_msgs"]
}

// perfSide is one side of a measurement.
type perfSide struct {
	perfEnds
	node  *node
	plan  *perfPlan
	lanes []perfLane
}

// perfEnds are a side's ends of the connections: QPs, or streams.
type perfEnds interface {
	// listen and accept are the server's, dial is the client's.
	listen() error
	accept(ctx context.Context) error
	dial(ctx context.Context, server netip.AddrPort) error
	// offer is what the peer must know, prepare is given what it says.
	offer() *perfOffer
	prepare(*perfOffer)
	// gone is closed when the peer has disconnected the first; nil if that cannot be told.
	gone() <-chan struct{}
	Close() error
}

// perfLane is a goroutine with its share of the connections.
type perfLane interface {
	// run sends and receives what there is.
	run(*perfPhase) error
	// over is called when all that the peer has sent on each connection is here. An error says that the data is not as
	// it was sent.
	over(peerSent []int64) error
	// done is called when the peer has what was sent, too.
	done()
	// sent adds what was sent on each connection.
	sent(counts []int64)
	// reset forgets what the meter has.
	reset()
	meter() *perfMeter
}

func newPerfSide(n *node, p *perfPlan, client bool) (*perfSide, error) {
	if p.Op == perfConnect {
		ends, err := newPerfConnects(n, p, client)
		if err != nil {
			return nil, err
		}
		return &perfSide{ends, n, p, ends.lanes()}, nil
	}
	if p.tcp() {
		ends := newPerfTCP(n, p, client)
		return &perfSide{ends, n, p, ends.lanes()}, nil
	}
	ends, err := newPerfRDMA(n, p, client)
	if err != nil {
		return nil, err
	}
	return &perfSide{ends, n, p, ends.lanes()}, nil
}

// sent is what this side has sent on each connection since it was made.
func (s *perfSide) sent() []int64 {
	counts := make([]int64, s.plan.QPs)
	for _, l := range s.lanes {
		l.sent(counts)
	}
	return counts
}

// perfPhase is the warm-up or the measurement.
type perfPhase struct {
	iters    int64 // on each QP; 0: for duration
	duration time.Duration

	ctx context.Context
	// untilSent ends when the peer has said what it sent, too.
	untilSent context.Context
	peerSent  atomic.Pointer[[]int64]
	sending   atomic.Int32 // lanes
	announce  func() error // the last lane's sending is over
	mallocs   uint64       // objects that this process allocated from the lanes' start until they have all there is
}

// sent is for a lane whose sending is over.
func (p *perfPhase) sent() error {
	if p.sending.Add(-1) == 0 {
		return p.announce()
	}
	return nil
}

// run runs all lanes, until both sides have all there is.
func (s *perfSide) run(ctx context.Context, ctl *perfControl, p *perfPhase) error {
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
	p.announce = func() error { return ctl.send(&perfMessage{Sent: s.sent()}) }

	hear := func() { // a peer that has disconnected says why, by another way
		select {
		case <-ctx.Done():
		case <-time.After(disconnectWait):
		}
	}
	var peer, lanes sync.WaitGroup
	peer.Go(func() {
		m, err := ctl.expect("count", func(m *perfMessage) bool {
			return len(m.Sent) == s.plan.QPs && !slices.ContainsFunc(m.Sent, func(n int64) bool { return n < 0 })
		})
		if err == nil {
			p.peerSent.Store(&m.Sent)
			wake()
			_, err = ctl.expect("completion", func(m *perfMessage) bool { return m.Done })
		}
		fail(err)
	})
	mallocs := runtimeMallocs()
	for _, l := range s.lanes {
		lanes.Go(func() {
			err := l.run(p)
			if failed := (*failedError)(nil); errors.As(err, &failed) && failed.status == verbs.WCWRFlushErr {
				hear()
			}
			fail(err)
		})
	}
	go func() { // who waits for memory to change, or for a peer that was killed, hears of nothing else
		select {
		case <-s.gone():
			if hear(); ctx.Err() == nil {
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
		fail(ctl.send(&perfMessage{Done: true}))
	}
	peer.Wait()
	for _, l := range s.lanes {
		l.done()
	}
	return context.Cause(ctx)
}
