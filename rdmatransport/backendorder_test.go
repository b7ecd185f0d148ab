package rdmatransport_test

import (
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/impair"
	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/rdmatransport/fault"
	"github.com/softrnic/softrnic/verbs"
)

// gates holds back writes to a store until they are passed one by one, or all.
type gates struct {
	p    *backs
	pass chan error
	all  chan struct{}
	open func() // closes all
}

// gated runs a test in virtual time with two stations with backends, which RoCE connects. Writes to
// one of the backends wait.
func gated(t *testing.T, n int, of func(p *backs) *store, f func(t *testing.T, g *gates)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		lan := new(pipe.Switch)
		g := &gates{pass: make(chan error), all: make(chan struct{})}
		g.open = sync.OnceFunc(func() { close(g.all) })
		on := func(addr string) *station { // everything is sent in packets, because an impaired link is not link.Shared
			return newStationOn(t, must(impair.New(lan.Port(), nil))(t), addr, nil)
		}
		g.p = connectBacks(t, on("10.0.0.1/24"), on("10.0.0.2/24"), newStore(n), newStore(n), verbs.RoCEv2)
		of(g.p).before = func(write bool, _ int64, n int) (int, error) {
			if write {
				select {
				case err := <-g.pass:
					if err != nil {
						n = 0
					}
					return n, err
				case <-g.all:
				}
			}
			return n, nil
		}
		t.Cleanup(g.open)
		f(t, g)
	})
}

// none checks that a CQ is empty after everything has happened that can.
func (g *gates) none(what string, cq *verbs.CQ) {
	g.p.t.Helper()
	synctest.Wait()
	var wc [1]verbs.WC
	if n, err := cq.Poll(wc[:]); n > 0 || err != nil {
		g.p.t.Errorf("%s: %+v, %v", what, wc[0], err)
	}
}

// one returns the next completion.
func (g *gates) one(cq *verbs.CQ) verbs.WC { return poll(g.p.t, cq) }

// TestBackendReadsDelayNoPeer: while the data of this side's READs is on its way to a backend, the
// peer's requests are executed and acknowledged.
func TestBackendReadsDelayNoPeer(t *testing.T) {
	gated(t, 4096, func(p *backs) *store { return p.sa }, func(t *testing.T, g *gates) {
		a, b := g.p.qa.QP(), g.p.qb.QP()
		plain := g.p.a.reg(make([]byte, 64), everyAccess)
		ok(t, a.PostSend(&verbs.SendWR{Opcode: verbs.RDMARead, Flags: verbs.SendSignaled, SGList: []verbs.SGE{g.p.ma.SGE(0, 64)},
			RemoteAddr: g.p.mb.Addr(), RKey: g.p.mb.RKey()}))
		g.none("the READ is complete before its data is there", a.SendCQ())
		ok(t, b.PostSend(&verbs.SendWR{Opcode: verbs.RDMAWrite, Flags: verbs.SendSignaled, SGList: []verbs.SGE{g.p.mb.SGE(0, 8)},
			RemoteAddr: plain.Addr(), RKey: plain.RKey()}))
		if wc := g.one(b.SendCQ()); wc.Status != verbs.WCSuccess {
			t.Error(wc.Status)
		}
		g.none("the READ is complete before its data is there", a.SendCQ())
		g.pass <- nil
		if wc := g.one(a.SendCQ()); wc.Status != verbs.WCSuccess {
			t.Error(wc.Status)
		}
	})
}

// TestBackendHoldsLittleOfRead: the data of a long READ into a slow backend is bounded here, and
// the READ neither times out nor is repeated too often.
func TestBackendHoldsLittleOfRead(t *testing.T) {
	const n = 16 << 20
	gated(t, n, func(p *backs) *store { return p.sa }, func(t *testing.T, g *gates) {
		a := g.p.qa.QP()
		want := g.p.sb.fill(0, n, g.p.random)
		before := heap()
		ok(t, a.PostSend(&verbs.SendWR{Opcode: verbs.RDMARead, Flags: verbs.SendSignaled, SGList: []verbs.SGE{g.p.ma.SGE(0, n)},
			RemoteAddr: g.p.mb.Addr(), RKey: g.p.mb.RKey()}))
		time.Sleep(time.Minute)
		g.none("the READ is complete before its data is there", a.SendCQ())
		if grown := heap() - before; grown > 10<<20 {
			t.Errorf("a READ of %d MiB holds %d MiB", n>>20, grown>>20)
		}
		g.open()
		if wc := g.one(a.SendCQ()); wc.Status != verbs.WCSuccess {
			t.Fatal(wc.Status)
		}
		g.p.same("READ", g.p.sa.part(0, n), want)
	})
}

// TestBackendAtomicBeforeSend: what a SEND behind an atomic completes, comes after the atomic is
// executed in a backend, and is an error if that fails. (RFC 7306 has no such order.)
func TestBackendAtomicBeforeSend(t *testing.T) {
	for _, err := range []error{nil, errors.New("on demand")} {
		gated(t, 4096, func(p *backs) *store { return p.sb }, func(t *testing.T, g *gates) {
			a, b := g.p.qa.QP(), g.p.qb.QP()
			plain := g.p.b.reg(make([]byte, 64), everyAccess)
			local := g.p.a.reg(make([]byte, 64), everyAccess)
			ok(t, b.PostRecv(&verbs.RecvWR{WRID: 1, SGList: []verbs.SGE{plain.SGE(0, 64)}}))
			for i := range 2 {
				ok(t, a.PostSend(&verbs.SendWR{WRID: uint64(i), Opcode: verbs.AtomicFetchAndAdd, Flags: verbs.SendSignaled,
					SGList: []verbs.SGE{local.SGE(8*i, 8)}, RemoteAddr: g.p.mb.Addr(), RKey: g.p.mb.RKey(), CompareAdd: 1}))
			}
			ok(t, a.PostSend(&verbs.SendWR{WRID: 2, Opcode: verbs.Send, Flags: verbs.SendSignaled, SGList: []verbs.SGE{local.SGE(32, 8)}}))
			g.none("the SEND is received before the atomics are executed", b.RecvCQ())
			g.pass <- nil
			g.none("the SEND is received before the second atomic is executed", b.RecvCQ())
			g.pass <- err
			want, recv := []verbs.WCStatus{verbs.WCSuccess, verbs.WCSuccess, verbs.WCSuccess}, verbs.WCSuccess
			if err != nil {
				want, recv = []verbs.WCStatus{verbs.WCSuccess, verbs.WCRemOpErr, verbs.WCWRFlushErr}, verbs.WCWRFlushErr
			}
			if wc := g.one(b.RecvCQ()); wc.Status != recv {
				t.Errorf("receive request %v, want %v", wc.Status, recv)
			}
			for i, s := range want {
				if wc := g.one(a.SendCQ()); wc.WRID != uint64(i) || wc.Status != s {
					t.Errorf("request %d: %v, want %v", wc.WRID, wc.Status, s)
				}
			}
		})
	}
}

// TestBackendOfClosedQP: data that has not arrived in its backend when the QP is closed, is not
// acknowledged.
func TestBackendOfClosedQP(t *testing.T) {
	gated(t, 4096, func(p *backs) *store { return p.sb }, func(t *testing.T, g *gates) {
		a, b := g.p.qa.QP(), g.p.qb.QP()
		local := g.p.a.reg(make([]byte, 64), everyAccess)
		for i := range 2 { // the second one is behind what is copied
			ok(t, a.PostSend(&verbs.SendWR{WRID: uint64(i), Opcode: verbs.RDMAWrite, Flags: verbs.SendSignaled,
				SGList: []verbs.SGE{local.SGE(0, 8)}, RemoteAddr: g.p.mb.Addr() + uint64(2048*i), RKey: g.p.mb.RKey()}))
		}
		g.none("a WRITE is complete before its data is there", a.SendCQ())
		closed := make(chan error)
		go func() { closed <- b.Close() }() // it waits for the first one
		synctest.Wait()
		g.open()
		ok(t, <-closed)
		time.Sleep(time.Minute)
		var wcs [2]verbs.WC
		n, err := a.SendCQ().Poll(wcs[:])
		ok(t, err)
		for _, wc := range wcs[:n] {
			if wc.Status == verbs.WCSuccess {
				t.Errorf("WRITE %d is complete, and its data is lost", wc.WRID)
			}
		}
	})
}

// TestBackendWriteBeforeRead: a READ or an atomic of ordinary memory is answered when an earlier
// WRITE has arrived in a backend: programs READ to know that (RFC 5040 §5.5).
func TestBackendWriteBeforeRead(t *testing.T) {
	both(t, func(t *testing.T, transport verbs.Transport) {
		for _, inProcess := range []bool{false, true} {
			for _, op := range []verbs.WROpcode{verbs.RDMARead, verbs.AtomicFetchAndAdd} {
				lan := new(pipe.Switch)
				on := func(addr string) *station {
					var l link.Link = lan.Port()
					if !inProcess { // an impaired link is not link.Shared
						l = must(impair.New(l, nil))(t)
					}
					return newStationOn(t, l, addr, nil)
				}
				sb := newStore(1 << 20)
				entered, pass := make(chan struct{}), make(chan struct{})
				sb.before = func(_ bool, _ int64, n int) (int, error) {
					entered <- struct{}{}
					<-pass
					return n, nil
				}
				p := connectBacks(t, on("10.0.0.1/24"), on("10.0.0.2/24"), newStore(1), sb, transport)
				a := p.qa.QP()
				plain, local := p.b.reg(make([]byte, 64), everyAccess), p.a.reg(make([]byte, 64), everyAccess)
				post := func(op verbs.WROpcode, flags verbs.SendFlags, addr uint64, rkey uint32) {
					ok(t, a.PostSend(&verbs.SendWR{Opcode: op, Flags: flags, SGList: []verbs.SGE{local.SGE(0, 8)}, RemoteAddr: addr, RKey: rkey}))
				}
				post(verbs.RDMAWrite, 0, p.mb.Addr(), p.mb.RKey())
				<-entered
				post(op, verbs.SendSignaled, plain.Addr(), plain.RKey())
				post(verbs.RDMAWrite, 0, p.mb.Addr()+1000, p.mb.RKey()) // does not delay the answer
				qa, _ := dial(p.a, p.b, transport, nil)                 // takes longer than the answer
				ok(t, qa.QP().PostSend(&verbs.SendWR{Opcode: verbs.RDMARead, Flags: verbs.SendSignaled, SGList: []verbs.SGE{local.SGE(8, 8)},
					RemoteAddr: plain.Addr() + 8, RKey: plain.RKey()}))
				poll(t, qa.QP().SendCQ())
				var wc [1]verbs.WC
				if n := must(a.SendCQ().Poll(wc[:]))(t); n > 0 {
					t.Errorf("in process %v: %v is answered before the WRITE has arrived", inProcess, op)
				}
				// B may send meanwhile, and returns.
				ok(t, p.qb.QP().PostSend(&verbs.SendWR{Opcode: verbs.RDMAWrite, SGList: []verbs.SGE{plain.SGE(16, 8)},
					RemoteAddr: local.Addr() + 16, RKey: local.RKey()}))
				pass <- struct{}{}
				if transport == verbs.RoCEv2 { // the window of unacknowledged packets bounds how much is before it
					<-entered
					pass <- struct{}{}
				}
				if wc := poll(t, a.SendCQ()); wc.Status != verbs.WCSuccess || wc.ByteLen != 8 {
					t.Errorf("%+v", wc)
				}
				if transport == verbs.IWARP {
					<-entered
				}
				close(pass)
			}
		}
	})
}

// TestBackendEndsWhenQPIsClosed: a copy that runs for a QP has ended when the QP is closed or
// reset: the program may then use the memory for something else.
func TestBackendEndsWhenQPIsClosed(t *testing.T) {
	for name, end := range map[string]func(qp *verbs.QP) error{
		"close": (*verbs.QP).Close,
		"reset": func(qp *verbs.QP) error {
			return qp.Modify(&verbs.QPAttr{QPState: verbs.StateReset}, verbs.QPAttrState)
		},
	} {
		t.Run(name, func(t *testing.T) {
			gated(t, 4096, func(p *backs) *store { return p.sb }, func(t *testing.T, g *gates) {
				a, b := g.p.qa.QP(), g.p.qb.QP()
				local := g.p.a.reg([]byte("arrivedXarrivedY"), everyAccess)
				write := func(i int) *verbs.SendWR {
					return &verbs.SendWR{Opcode: verbs.RDMAWrite, SGList: []verbs.SGE{local.SGE(8*i, 8)},
						RemoteAddr: g.p.mb.Addr() + uint64(2048*i), RKey: g.p.mb.RKey()}
				}
				ok(t, a.PostSend(write(0), write(1))) // the second one waits
				synctest.Wait()
				done := make(chan error, 1)
				go func() { done <- end(b) }()
				synctest.Wait()
				if len(done) > 0 {
					t.Error("it has returned while a copy runs")
				}
				g.pass <- nil
				ok(t, <-done)
				if got := string(g.p.sb.part(0, 8)); got != "arrivedX" {
					t.Errorf("the memory is %q", got)
				}
				g.open()
				time.Sleep(time.Minute)
				g.p.same("memory of the WRITE that waited", g.p.sb.part(2048, 8), make([]byte, 8))
			})
		})
	}
}

// TestBackendEndsWhenRegionChanges: data that was accepted has arrived when a region is closed, its
// rights are taken away, it is revoked, or its window is closed. Nothing is written later.
func TestBackendEndsWhenRegionChanges(t *testing.T) {
	for name, end := range map[string]func(p *backs, mw *verbs.MW) error{
		"Close":  func(p *backs, _ *verbs.MW) error { return p.mb.Close() },
		"Rereg":  func(p *backs, _ *verbs.MW) error { return p.mb.Rereg(verbs.ReregAccess, nil, nil, verbs.AccessMWBind) },
		"window": func(_ *backs, mw *verbs.MW) error { return mw.Close() },
		"revoke": func(p *backs, _ *verbs.MW) error { return p.mb.Close() }, // which waits for the revocation, below
	} {
		t.Run(name, func(t *testing.T) {
			gated(t, 4096, func(p *backs) *store { return p.sb }, func(t *testing.T, g *gates) {
				a, b, rkey := g.p.qa.QP(), g.p.qb.QP(), g.p.mb.RKey()
				mw := must(g.p.b.pd.AllocMW(verbs.MWType2))(t)
				defer mw.Close()
				if name == "window" {
					ok(t, b.PostSend(&verbs.SendWR{Opcode: verbs.BindMW, Flags: verbs.SendSignaled, Bind: &verbs.MWBind{MW: mw, RKey: 1,
						MWBindInfo: verbs.MWBindInfo{MR: g.p.mb, Addr: g.p.mb.Addr(), Length: 4096, Access: verbs.AccessRemoteWrite}}}))
					if wc := g.one(b.SendCQ()); wc.Status != verbs.WCSuccess {
						t.Fatal(wc.Status)
					}
					rkey = mw.RKey()
				}
				local := g.p.a.reg([]byte("arrivedXarrivedY"), everyAccess)
				write := func(i int) *verbs.SendWR {
					return &verbs.SendWR{Opcode: verbs.RDMAWrite, Flags: verbs.SendSignaled, SGList: []verbs.SGE{local.SGE(8*i, 8)},
						RemoteAddr: g.p.mb.Addr() + uint64(2048*i), RKey: rkey}
				}
				ok(t, a.PostSend(write(0), write(1)))
				synctest.Wait()
				revoked := make(chan error, 1)
				if name == "revoke" {
					faults := must(fault.New(g.p.b.dev, nil))(t)
					go func() { revoked <- faults.Add(must(fault.Parse("mr=revoked"))(t)...) }()
					synctest.Wait()
				} else {
					revoked <- nil
				}
				done := make(chan error, 1)
				go func() { done <- end(g.p, mw) }()
				for range 2 {
					synctest.Wait()
					if len(done) > 0 {
						t.Error("it has returned while data is on its way")
					}
					g.pass <- nil
				}
				ok(t, errors.Join(<-revoked, <-done))
				for range 2 {
					if wc := g.one(a.SendCQ()); wc.Status != verbs.WCSuccess {
						t.Errorf("what was accepted before: %v", wc.Status)
					}
				}
				g.p.same("memory", append(g.p.sb.part(0, 8), g.p.sb.part(2048, 8)...), []byte("arrivedXarrivedY"))
			})
		})
	}
}

// TestBackendOnEventEnds: a program's OnEvent function may close or reset the QP whose completion
// it was called for, and close its region, while a copy for the QP runs: it waits for the copy's
// end.
func TestBackendOnEventEnds(t *testing.T) {
	ends := map[string]func(qp *verbs.QP, mr *verbs.MR) error{
		"close": func(qp *verbs.QP, _ *verbs.MR) error { return qp.Close() },
		"reset": func(qp *verbs.QP, _ *verbs.MR) error {
			return qp.Modify(&verbs.QPAttr{QPState: verbs.StateReset}, verbs.QPAttrState)
		},
		"close, with the region": func(qp *verbs.QP, mr *verbs.MR) error { return errors.Join(qp.Close(), mr.Close()) },
		"close the region":       func(_ *verbs.QP, mr *verbs.MR) error { return mr.Close() },
	}
	// onEvent calls end at the next event of a CQ, in the function of OnEvent.
	onEvent := func(t *testing.T, cq *verbs.CQ, end func() error) (done chan error) {
		done = make(chan error, 1)
		var once sync.Once
		cq.Channel().OnEvent(func(int) { once.Do(func() { done <- end() }) })
		ok(t, cq.ReqNotify(false))
		return done
	}
	finish := func(t *testing.T, g *gates, done chan error) {
		synctest.Wait()
		g.pass <- nil // the first one completes, and the second one begins
		synctest.Wait()
		if len(done) > 0 {
			t.Error("it has returned while a copy runs")
		}
		g.open()
		ok(t, <-done)
	}
	for name, end := range ends {
		t.Run("received, "+name, func(t *testing.T) {
			gated(t, 4096, func(p *backs) *store { return p.sb }, func(t *testing.T, g *gates) {
				a, b := g.p.qa.QP(), g.p.qb.QP()
				ok(t, b.PostRecv(&verbs.RecvWR{}))
				done := onEvent(t, b.RecvCQ(), func() error { return end(b, g.p.mb) })
				local := g.p.a.reg([]byte("arrivedXarrivedY"), everyAccess)
				write := func(op verbs.WROpcode, i int) *verbs.SendWR {
					return &verbs.SendWR{Opcode: op, SGList: []verbs.SGE{local.SGE(8*i, 8)}, RemoteAddr: g.p.mb.Addr() + uint64(2048*i),
						RKey: g.p.mb.RKey()}
				}
				ok(t, a.PostSend(write(verbs.RDMAWriteWithImm, 0), write(verbs.RDMAWrite, 1)))
				finish(t, g, done)
				g.p.same("memory", append(g.p.sb.part(0, 8), g.p.sb.part(2048, 8)...), []byte("arrivedXarrivedY"))
			})
		})
		t.Run("sent, "+name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				on, other := onPipe(t) // requests complete on the goroutine that has read their data
				g := &gates{p: connectBacks(t, on, other, newStore(16), newStore(1), verbs.RoCEv2), pass: make(chan error),
					all: make(chan struct{})}
				g.open = sync.OnceFunc(func() { close(g.all) })
				t.Cleanup(g.open)
				g.p.sa.before = func(_ bool, _ int64, n int) (int, error) {
					select {
					case <-g.pass:
					case <-g.all:
					}
					return n, nil
				}
				a, remote := g.p.qa.QP(), g.p.b.reg(make([]byte, 16), everyAccess)
				done := onEvent(t, a.SendCQ(), func() error { return end(a, g.p.ma) })
				for i := range 2 {
					ok(t, a.PostSend(&verbs.SendWR{Opcode: verbs.RDMAWrite, Flags: verbs.SendSignaled, SGList: []verbs.SGE{g.p.ma.SGE(8*i, 8)},
						RemoteAddr: remote.Addr() + uint64(8*i), RKey: remote.RKey()}))
				}
				finish(t, g, done)
			})
		})
	}
}
