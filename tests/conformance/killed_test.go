package conformance

import (
	"context"
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/softrnic/softrnic/link/impair"
	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/tests/internal/gate"
	"github.com/softrnic/softrnic/verbs"
)

// requests returns n requests of one kind with IDs from 1. Only the last is signalled.
func (p *pair) requests(code verbs.WROpcode, n, size int) []*verbs.SendWR {
	if code == verbs.AtomicCmpAndSwp || code == verbs.AtomicFetchAndAdd {
		size = 8
	}
	wrs := make([]*verbs.SendWR, n)
	for i := range wrs {
		wrs[i] = &verbs.SendWR{WRID: uint64(i + 1), Opcode: code, SGList: []verbs.SGE{p.am.SGE(0, size)},
			RemoteAddr: p.bm.Addr(), RKey: p.bm.RKey()}
	}
	wrs[n-1].Flags = verbs.SendSignaled
	return wrs
}

// TestPeerKilled: if a peer falls silent during a transfer, its QPs fail after their retries, with
// any outstanding requests.
func TestPeerKilled(t *testing.T) {
	for _, code := range []verbs.WROpcode{verbs.Send, verbs.SendWithImm, verbs.RDMAWrite, verbs.RDMAWriteWithImm,
		verbs.RDMARead, verbs.AtomicCmpAndSwp, verbs.AtomicFetchAndAdd} {
		t.Run(code.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { peerKilled(t, code) })
		})
	}
}

func peerKilled(t *testing.T, code verbs.WROpcode) {
	const sends, recvs, dieAfter = 32, 16, 4
	var p *pair
	var died time.Time
	seen := 0
	// The peer dies before it responds: it sends nothing more.
	fall := impair.Rule{Action: impair.Drop, Count: -1, Match: func(frame []byte) bool {
		if roce := must(impair.Class("roce"))(t); !roce(frame) {
			return !died.IsZero()
		}
		if seen++; seen == dieAfter {
			died = time.Now()
		}
		return !died.IsZero()
	}}
	p = newPair(t, pairOptions{
		terms:  func(c *terms) { c.sides[0].timeout, c.sides[0].retries = 14, 5 },
		bSends: []impair.Rule{fall},
	})
	defer p.close()
	for i := range uint64(recvs) {
		ok(t, p.a.qp.PostRecv(&verbs.RecvWR{WRID: 100 + i}))
	}
	for i := range uint64(sends) {
		ok(t, p.b.qp.PostRecv(&verbs.RecvWR{WRID: 200 + i, SGList: []verbs.SGE{p.bm.SGE(0, 30_000)}}))
	}
	for _, wr := range p.requests(code, sends, 30_000) {
		p.a.post(wr)
	}
	first := p.a.next()
	took := time.Since(died)
	if died.IsZero() || first.Status != verbs.WCRetryExcErr {
		t.Fatalf("WR %d: %v, want RETRY_EXC_ERR", first.WRID, first.Status)
	}
	// Six unanswered timeouts. The IBTA permits a timeout of T to last up to 4T.
	const timeout = 4096 * time.Nanosecond << 14
	if took < 5*timeout || took > 6*4*timeout {
		t.Errorf("given up after %v, want about %v", took, 6*timeout)
	}
	if s := p.a.qp.State(); s != verbs.StateErr {
		t.Errorf("the QP is in %v", s)
	}
	p.a.flushed(first.WRID+1, sends)
	p.a.flushed(100, 100+recvs-1)
	p.a.none()

	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if e, err := p.a.dev.GetAsyncEvent(ctx); err == nil {
		t.Errorf("event %v: a completion already reports the error", e.Type)
	}
	// Requests posted from now on are flushed immediately.
	p.a.post(&verbs.SendWR{WRID: 300, Opcode: verbs.RDMAWrite})
	p.a.flushed(300, 300)
	p.b.toErr()
	p.b.poll()
}

// flushed polls the completions of the work requests from from to to, which must all be flushed.
func (e *endpoint) flushed(from, to uint64) {
	e.t.Helper()
	for id := from; id <= to; id++ {
		if wc := e.next(); wc.WRID != id || wc.Status != verbs.WCWRFlushErr {
			e.t.Fatalf("WR %d: %v, want WR %d: WR_FLUSH_ERR", wc.WRID, wc.Status, id)
		}
	}
}

// poll polls all available completions.
func (e *endpoint) poll() []verbs.WC {
	e.t.Helper()
	wcs := make([]verbs.WC, e.cq.Cap())
	return wcs[:must(e.cq.Poll(wcs))(e.t)]
}

// TestNothingStaysBehind kills and closes nodes repeatedly, and checks that none of their
// goroutines and memory remain.
func TestNothingStaysBehind(t *testing.T) {
	bothWays(t, nothingStaysBehind)
}

func nothingStaysBehind(t *testing.T, direct bool) {
	cycle := func(t *testing.T) {
		lan := new(pipe.Switch)
		var p pair
		port := lan.Port()
		o := pairOptions{direct: direct}
		p.a = newNode(t, o.link(t, lan.Port(), nil), nil, "10.0.0.1/24").newEndpoint(smallCap)
		p.b = newNode(t, o.link(t, port, nil), nil, "10.0.0.2/24").newEndpoint(smallCap)
		p.am, p.bm = p.a.reg(make([]byte, 1<<20), allAccess), p.b.reg(make([]byte, 1<<20), allAccess)
		connect(p.a, p.b, defaultTerms())
		p.a.post(p.requests(verbs.RDMAWrite, 1, 1<<20)...)
		p.a.succeed(1)
		wrs := p.requests(verbs.RDMAWrite, 8, 1<<20)
		p.a.post(wrs...)
		ok(t, port.Close()) // without notice
		last := verbs.WC{}
		for last.WRID != 8 {
			last = p.a.next()
		}
		p.close()
	}
	const cycles = 20
	inVirtualTime := func(n int) {
		for range n {
			synctest.Test(t, cycle)
		}
	}
	inVirtualTime(2)
	goroutines, heap := settled()
	inVirtualTime(cycles)
	const mayGrow = cycles * 64 << 10
	goroutinesAfter, heapAfter := settled()
	// Background work and gVisor's goroutines end a little later.
	for give := time.Now().Add(20 * time.Second); (goroutinesAfter > goroutines || int64(heapAfter)-int64(heap) > mayGrow) &&
		time.Now().Before(give); {
		time.Sleep(10 * time.Millisecond)
		goroutinesAfter, heapAfter = settled()
	}
	if goroutinesAfter > goroutines {
		buf := make([]byte, 1<<16)
		t.Errorf("%d goroutines, %d before:\n%s", goroutinesAfter, goroutines, buf[:runtime.Stack(buf, true)])
	}
	if grown := int64(heapAfter) - int64(heap); grown > mayGrow {
		t.Errorf("the heap has grown by %d bytes in %d cycles", grown, cycles)
	}
}

// settled returns the number of goroutines and the bytes of live heap after everything closed has
// ended.
func settled() (goroutines int, heap uint64) {
	var m runtime.MemStats
	for range 4 { // finalizers, pools
		runtime.GC()
		runtime.Gosched()
	}
	runtime.ReadMemStats(&m)
	return runtime.NumGoroutine(), m.HeapAlloc
}

// TestChurn creates and destroys thousands of objects while others are in use.
func TestChurn(t *testing.T) {
	bothWays(t, churns)
}

func churns(t *testing.T, direct bool) {
	rounds := 300
	if gate.InSystem() && !raceEnabled {
		rounds = 2000
	}
	p := newPair(t, pairOptions{direct: direct})
	defer p.close()
	done := make(chan error, 3)
	for range cap(done) {
		go func() { done <- churn(p.a.node, rounds) }()
	}
	ended := 0
	for id := uint64(1); ended < cap(done); id++ {
		p.a.post(&verbs.SendWR{WRID: id, Opcode: verbs.RDMAWrite, Flags: verbs.SendSignaled,
			SGList: []verbs.SGE{p.am.SGE(0, 5000)}, RemoteAddr: p.bm.Addr(), RKey: p.bm.RKey()})
		p.a.succeed(id)
		select {
		case err := <-done:
			ok(t, err)
			ended++
		default:
		}
	}
}

func churn(n *node, rounds int) error {
	buf := make([]byte, 4096)
	for i := range rounds {
		pd, err := n.dev.AllocPD()
		if err != nil {
			return err
		}
		mr, err := pd.RegMR(buf, allAccess)
		if err != nil {
			return err
		}
		cq, err := n.dev.CreateCQ(16, nil)
		if err != nil {
			return err
		}
		qp, err := pd.CreateQP(&verbs.QPInitAttr{Type: verbs.RC, SendCQ: cq, RecvCQ: cq,
			Cap: verbs.QPCap{MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 1, MaxRecvSGE: 1}})
		if err != nil {
			return err
		}
		if i%2 == 0 {
			if err := qp.Modify(&verbs.QPAttr{QPState: verbs.StateInit, PortNum: 1},
				verbs.QPAttrState|verbs.QPAttrPKeyIndex|verbs.QPAttrPort|verbs.QPAttrAccessFlags); err != nil {
				return err
			}
			if err := qp.PostRecv(&verbs.RecvWR{WRID: 1, SGList: []verbs.SGE{mr.SGE(0, 8)}}); err != nil {
				return err
			}
		}
		for _, f := range []func() error{qp.Close, cq.Close, mr.Close, pd.Close} {
			if err := f(); err != nil {
				return fmt.Errorf("round %d: %w", i, err)
			}
		}
	}
	return nil
}

// TestDeregDuringTraffic: after Close has returned, neither WRITEs of the peer nor responses to
// READs access the memory.
func TestDeregDuringTraffic(t *testing.T) {
	rounds := 16
	if gate.InSystem() && !raceEnabled {
		rounds = 60
	}
	for _, c := range []struct {
		code verbs.WROpcode
		want verbs.WCStatus
	}{{verbs.RDMAWrite, verbs.WCRemAccessErr}, {verbs.RDMARead, verbs.WCLocProtErr}} {
		t.Run(c.code.String(), func(t *testing.T) {
			bothWays(t, func(t *testing.T, direct bool) {
				for round := range rounds {
					deregDuringTraffic(t, c.code, c.want, round, direct)
				}
			})
		})
	}
}

func deregDuringTraffic(t *testing.T, code verbs.WROpcode, want verbs.WCStatus, round int, direct bool) {
	const size = 256 << 10
	p := newPair(t, pairOptions{direct: direct})
	defer p.close()
	from, to := p.a.reg(make([]byte, size), allAccess), p.b.reg(make([]byte, size), allAccess)
	victim := to
	if code == verbs.RDMARead {
		victim = from
	}
	for i := range from.Buf() {
		from.Buf()[i], to.Buf()[i] = 1, 1
	}
	wrs := make([]*verbs.SendWR, 32)
	for i := range wrs {
		wrs[i] = &verbs.SendWR{WRID: uint64(i), Opcode: code, Flags: verbs.SendSignaled,
			SGList: []verbs.SGE{from.SGE(0, size)}, RemoteAddr: to.Addr(), RKey: to.RKey()}
	}
	p.a.post(wrs...)
	taken := round % 8
	for i := range taken {
		p.a.succeed(uint64(i))
	}
	ok(t, victim.Close())
	buf := victim.Buf()
	for i := range buf {
		buf[i] = 2
	}
	for range len(wrs) - taken {
		if wc := p.a.next(); wc.Status != verbs.WCSuccess && wc.Status != want && wc.Status != verbs.WCWRFlushErr {
			t.Errorf("WR %d: %v, want %v", wc.WRID, wc.Status, want)
		}
	}
	for i, b := range buf {
		if b != 2 {
			t.Fatalf("byte %d was written after deregistration", i)
		}
	}
	for _, m := range []*verbs.MR{from, to} {
		if m != victim {
			ok(t, m.Close())
		}
	}
}

// TestBlockingCallsReturn: calls that wait for an object return when it is closed, and
// destroying objects under load ends.
func TestBlockingCallsReturn(t *testing.T) {
	bothWays(t, func(t *testing.T, direct bool) {
		synctest.Test(t, func(t *testing.T) { blockingCallsReturn(t, direct) })
	})
}

func blockingCallsReturn(t *testing.T, direct bool) {
	p := newPair(t, pairOptions{direct: direct})
	ch := must(p.a.dev.CreateCompChannel())(t)
	got := make(chan error, 2)
	go func() {
		_, err := ch.GetEvent(context.Background())
		got <- err
	}()
	go func() {
		_, err := p.a.dev.GetAsyncEvent(context.Background())
		got <- err
	}()
	synctest.Wait()
	ok(t, ch.Close())
	if err := <-got; err == nil {
		t.Error("GetEvent returned an event of a closed channel")
	}
	// Two QPs that send to each other are closed by both sides at once, with responses in
	// flight.
	p.a.post(p.requests(verbs.RDMAWrite, 32, pairMemory)...)
	p.a.post(p.requests(verbs.RDMARead, 32, pairMemory)...)
	closed := make(chan error, 2)
	for _, e := range []*endpoint{p.a, p.b} {
		go func() { closed <- e.qp.Close() }()
	}
	ok(t, <-closed)
	ok(t, <-closed)
	for _, e := range []*endpoint{p.a, p.b} {
		ok(t, e.cq.Close())
		ok(t, e.ch.Close())
	}
	ok(t, p.am.Close())
	ok(t, p.bm.Close())
	p.a.close()
	p.b.close()
	if err := <-got; err == nil {
		t.Error("GetAsyncEvent returned an event of a closed device")
	}
}
